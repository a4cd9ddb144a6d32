//! Failures of drivers, and the tenants that they concern.
//!
//! A claim's own request may make a driver fail. So the failures of one tenant do not exclude a node for others.

use super::{capacity_backoff::CapacityBackoff, volume_failures::remove_oldest};
use flexvol_sdk::Bytes;
use std::collections::BTreeMap;

/// A volume that needs a node.
#[derive(Clone, Copy, Debug)]
pub struct VolumeRequest<'a> {
    /// The volume's name.
    pub volume: &'a str,
    /// The namespace of its claim.
    pub namespace: &'a str,
}

/// Number of namespaces with failures from which on a node counts as failing for all.
const SEVERAL: usize = 2;

/// Maximum number of remembered namespaces, for each node and class.
const MOST: usize = 64;

/// Repeated failures of a node's driver at one class: either volumes that it calls infeasible, or others, except for lack
/// of capacity.
#[derive(Debug, Default)]
pub(super) struct Failing(BTreeMap<String, CapacityBackoff>);

impl Failing {
    /// Records a failure at a volume of this namespace.
    pub fn add(&mut self, namespace: &str) {
        self.0.retain(|_, pause| !pause.is_long_ago());
        let before = self.0.remove(namespace);
        if self.0.len() >= MOST {
            remove_oldest(&mut self.0, CapacityBackoff::since);
        }
        let pause = CapacityBackoff::now(Bytes(1), before);
        self.0.insert(namespace.to_owned(), pause);
    }

    /// Whether a volume of this namespace would probably fail.
    pub fn is_failing_for(&self, namespace: &str) -> bool {
        let own = self.0.get(namespace);
        own.is_some_and(CapacityBackoff::pauses) || self.is_failing_for_all()
    }

    /// Whether any volume would probably fail.
    pub fn is_failing_for_all(&self) -> bool {
        let lately = self.0.values().filter(|pause| pause.pauses());
        lately.count() >= SEVERAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_fails_for_all_once_it_fails_for_several_namespaces() {
        let mut failing = Failing::default();
        failing.add("one");
        assert!(failing.is_failing_for("one") && !failing.is_failing_for("two"));
        for number in 0..MOST * 2 {
            failing.add(&format!("n{number}"));
            assert!(failing.is_failing_for_all());
        }
        assert_eq!(failing.0.len(), MOST);
    }
}
