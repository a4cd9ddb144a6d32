//! How and when the double fails.

use crate::{ask::Ask, store::write::Part};
use http::Method;

/// A way to fail, each of which the real one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write is refused, as if somebody else had been faster.
    Conflict,
    /// A request is not done: 503.
    Unavailable,
    /// A write is done, and its answer is 504.
    LostAnswer,
    /// A write is done after its client has given up, and not answered.
    Late,
    /// An object that is read is answered by half, and the rest never comes.
    Stall,
    /// A request is answered, and every watch ends.
    DropWatches,
    /// The same, and nothing is known of the past any more, so that watches cannot go on: 410.
    Forget,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 7] = [
        Fault::Conflict,
        Fault::Unavailable,
        Fault::LostAnswer,
        Fault::Late,
        Fault::Stall,
        Fault::DropWatches,
        Fault::Forget,
    ];

    /// Whether it can meet such a request when requests are counted. None meets a lease: whoever leads
    /// may take time to renew it, so nothing could be counted.
    pub(crate) fn meets(self, ask: &Ask) -> bool {
        if ask.kind.kind == "Lease" {
            return false;
        }
        match self {
            Fault::Conflict => ask.writes() && ask.method != Method::POST,
            Fault::LostAnswer | Fault::Late => ask.writes(),
            // Of many objects a client may wait for a minute.
            Fault::Stall => !ask.writes() && ask.name.is_some(),
            Fault::Unavailable | Fault::DropWatches | Fault::Forget => true,
        }
    }
}

/// One fault to come.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Which.
    pub fault: Fault,
    /// At which of the requests that it can meet, from one on.
    pub at: u64,
}

/// What was asked so far.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Method, kind and name of each, but those about leases.
    pub all: Vec<String>,
    pub plan: Option<Plan>,
    pub met: u64,
    /// How the next write of a lease fails.
    pub lease: Option<Fault>,
}

impl Requests {
    /// Counts a request, and says how it fails.
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
