//! What can be had on each node, for others to choose by.

use super::{NodeRecord, Nodes, failing::Failing};
use flexvol_sdk::Bytes;

/// What is known of how large a volume may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// Nothing: the driver could not tell, or was not asked yet. It may have had no room for more than this.
    Unknown(Option<Bytes>),
    /// The driver tells nobody, so it has to be tried.
    Any,
    /// No larger than this.
    Largest(Bytes),
}

impl Estimate {
    /// The same, and it had no room for more than this.
    pub fn at_most(self, largest: Bytes) -> Self {
        match self {
            Estimate::Largest(told) => Estimate::Largest(told.min(largest)),
            Estimate::Any => Estimate::Largest(largest),
            Estimate::Unknown(_) => Estimate::Unknown(Some(largest)),
        }
    }

    /// Whether a volume of this size may be had.
    pub fn fits(self, size: Bytes) -> bool {
        match self {
            Estimate::Largest(largest) | Estimate::Unknown(Some(largest)) => size <= largest,
            Estimate::Any | Estimate::Unknown(None) => true,
        }
    }
}

/// What can be had of a class on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    /// The node's name.
    pub node: String,
    /// The UID of what its agent says.
    pub uid: String,
    /// The largest volume.
    pub largest: Bytes,
}

impl Nodes {
    /// The largest volume of a class on each node that is heard of and has the driver.
    pub fn rooms(&self, driver: &str, class: &str) -> Vec<NodeCapacity> {
        let all = self.all();
        let able = all.iter().filter(|(node, known)| {
            known.may_be_asked(self.silence) && known.lacks_driver(node, driver).is_none()
        });
        let fails = |known: &NodeRecord| {
            known.is_unbindable() || known.failing.get(class).is_some_and(Failing::for_all)
        };
        // Where all fail, whichever the scheduler takes is as good as another.
        let all_fail = able.clone().all(|(_, known)| fails(known));
        // Kubernetes counts no further.
        let most = Bytes(i64::MAX.unsigned_abs());
        let rooms = able.filter_map(|(node, known)| {
            let largest = match known.room(driver, class) {
                Estimate::Unknown(_) => return None,
                _ if fails(known) && !all_fail => return None,
                Estimate::Any => most,
                Estimate::Largest(largest) => largest.min(most),
            };
            Some(NodeCapacity {
                node: node.clone(),
                uid: known.uid.clone(),
                largest,
            })
        });
        rooms.collect()
    }
}
