//! Injected faults.

use crate::{request::ApiRequest, store::write::Part};
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
    pub(crate) fn meets(self, request: &ApiRequest) -> bool {
        if request.kind.kind == "Lease" {
            return false;
        }
        match self {
            Fault::Conflict => request.writes() && request.method != Method::POST,
            Fault::LostAnswer | Fault::Late => request.writes(),
            // For a list, a client may wait a minute.
            Fault::Stall => !request.writes() && request.name.is_some(),
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
    pub fn count(&mut self, request: &ApiRequest) -> Option<Fault> {
        if request.kind.kind == "Lease" {
            return self.lease.take_if(|_| request.writes());
        }
        let name = request.name.as_deref().unwrap_or_default();
        let verb = if request.watch {
            "WATCH"
        } else {
            request.method.as_str()
        };
        let part = if request.part == Part::Status {
            "/status"
        } else {
            ""
        };
        self.all
            .push(format!("{verb} {}{part} {name}", request.kind.kind));
        let plan = self.plan?;
        if !plan.fault.meets(request) {
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
