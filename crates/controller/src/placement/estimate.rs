//! Estimates of the capacity of each node.

use super::{NodeRecord, Nodes, failing::Failing};
use flexvol_sdk::Bytes;

/// Estimate of the largest volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// Unknown: the driver could not tell, or was not asked yet. The size is the limit after a lack of capacity.
    Unknown(Option<Bytes>),
    /// Unlimited: the driver reports no capacities, so only a call can tell.
    Any,
    /// At most this size.
    Largest(Bytes),
}

impl Estimate {
    /// Lowers the estimate after a lack of capacity.
    pub fn at_most(self, largest: Bytes) -> Self {
        match self {
            Estimate::Largest(told) => Estimate::Largest(told.min(largest)),
            Estimate::Any => Estimate::Largest(largest),
            Estimate::Unknown(_) => Estimate::Unknown(Some(largest)),
        }
    }

    /// Whether a volume of this size may fit.
    pub fn fits(self, size: Bytes) -> bool {
        match self {
            Estimate::Largest(largest) | Estimate::Unknown(Some(largest)) => size <= largest,
            Estimate::Any | Estimate::Unknown(None) => true,
        }
    }
}

/// The capacity of a node for a storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    /// The node's name.
    pub node: String,
    /// The UID of its StorageNode.
    pub uid: String,
    /// The size of the largest volume.
    pub largest: Bytes,
}

impl Nodes {
    /// Returns the capacity for a class of each available node that has the driver.
    pub fn capacities(&self, driver: &str, class: &str) -> Vec<NodeCapacity> {
        let all = self.all();
        let able = all.iter().filter(|(node, known)| {
            known.may_be_asked(self.silence) && known.lacks_driver(node, driver).is_none()
        });
        let fails = |known: &NodeRecord| {
            known.is_unbindable()
                || known
                    .failing
                    .get(class)
                    .is_some_and(Failing::is_failing_for_all)
        };
        // If all nodes fail, none is worse than another.
        let all_fail = able.clone().all(|(_, known)| fails(known));
        // Kubernetes counts in `i64`.
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
