//! Injected faults.

use crate::{ask::Ask, store::write::Part};
use http::Method;

/// A fault that a real API server can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write is refused with a conflict, as if another client had written before.
    Conflict,
    /// A request is not carried out: 503.
    Unavailable,
    /// A write is carried out, but answered with 504.
    LostAnswer,
    /// A write is carried out after its client has given up, and not answered.
    Late,
    /// Half of the answer with a single object is sent, and the rest never.
    Stall,
    /// A request is answered, and all watches are closed.
    DropWatches,
    /// The same, and the history is dropped, so that watches cannot resume: 410.
    Forget,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 7] = [
        Fault::Conflict,
        Fault::Unavailable,
        Fault::LostAnswer,
        Fault::Late,
        Fault::Stall,
        Fault::DropWatches,
        Fault::Forget,
    ];

    /// Whether the fault applies to a request, for counting. Never for a lease: the leader renews it at its own pace,
    /// so counts would not be reproducible.
    pub(crate) fn meets(self, ask: &Ask) -> bool {
        if ask.kind.kind == "Lease" {
            return false;
        }
        match self {
            Fault::Conflict => ask.writes() && ask.method != Method::POST,
            Fault::LostAnswer | Fault::Late => ask.writes(),
            // For a list, a client may wait a minute.
            Fault::Stall => !ask.writes() && ask.name.is_some(),
            Fault::Unavailable | Fault::DropWatches | Fault::Forget => true,
        }
    }
}

/// A planned fault.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The fault.
    pub fault: Fault,
    /// Number of the request that fails, counting those the fault applies to, from 1.
    pub at: u64,
}

/// The requests so far, and the planned faults.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Method, kind and name of each request, except those for leases.
    pub all: Vec<String>,
    pub plan: Option<Plan>,
    pub met: u64,
    /// Fault of the next write of a lease.
    pub lease: Option<Fault>,
}

impl Requests {
    /// Counts a request and returns its fault.
    pub fn count(&mut self, ask: &Ask) -> Option<Fault> {
        if ask.kind.kind == "Lease" {
            return self.lease.take_if(|_| ask.writes());
        }
        let name = ask.name.as_deref().unwrap_or_default();
        let verb = if ask.watch {
            "WATCH"
        } else {
            ask.method.as_str()
        };
        let part = if ask.part == Part::Status {
            "/status"
        } else {
            ""
        };
        self.all
            .push(format!("{verb} {}{part} {name}", ask.kind.kind));
        let plan = self.plan?;
        if !plan.fault.meets(ask) {
            return None;
        }
        self.met += 1;
        if self.met < plan.at {
            return None;
        }
        self.plan = None;
        Some(plan.fault)
    }
}
