//! Which reports of a node are a reason to reconcile the volumes that fit no node.

use crate::api::v1alpha1::StorageNodeStatus;
use std::collections::{BTreeMap, BTreeSet};

/// What a node offered when such volumes were last reconciled because of it, less what it has lost since.
#[derive(Debug, Default)]
pub(super) struct Offered {
    drivers: BTreeSet<String>,
    capacities: BTreeMap<String, u64>,
}

impl Offered {
    /// Whether the node offers more: a driver, a class, or a sixteenth of a class's capacity. Capacities change by some
    /// bytes all the time, and volumes without a node are reconciled now and then anyway.
    pub(super) fn gains(&mut self, status: &StorageNodeStatus) -> bool {
        self.drivers
            .retain(|driver| status.drivers.contains_key(driver));
        self.capacities
            .retain(|class, _| status.capacities.contains_key(class));
        let mut gains = false;
        for driver in status.drivers.keys() {
            gains |= self.drivers.insert(driver.clone());
        }
        for (class, capacity) in &status.capacities {
            match self.capacities.get_mut(class) {
                Some(had) if capacity <= had => *had = *capacity,
                Some(had) if capacity - *had < (*had / 16).max(1) => {}
                _ => {
                    self.capacities.insert(class.clone(), *capacity);
                    gains = true;
                }
            }
        }
        gains
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_bytes_are_not_more_until_they_add_up() {
        let mut offered = Offered::default();
        let mut gains = |capacity: Option<u64>| {
            let capacities = capacity.map(|capacity| ("class".to_owned(), capacity));
            offered.gains(&StorageNodeStatus {
                capacities: capacities.into_iter().collect(),
                ..StorageNodeStatus::default()
            })
        };
        assert!(gains(Some(1600)));
        for capacity in [1601, 1650, 1699] {
            assert!(!gains(Some(capacity)), "{capacity}");
        }
        assert!(gains(Some(1700)), "more than at the last reconciliation");
        assert!(!gains(Some(1700)));
        assert!(!gains(Some(0)));
        assert!(gains(Some(1)));
        assert!(!gains(None));
        assert!(gains(Some(1)), "it is told again");
    }
}
