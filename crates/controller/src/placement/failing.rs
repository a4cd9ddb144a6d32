//! Failures of drivers, and the tenants that they concern.
//!
//! A claim's own request may make a driver fail. So the failures of one tenant do not exclude a node for others.

use super::capacity_backoff::CapacityBackoff;
use flexvol_sdk::{Bytes, ErrorClass};
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

/// Maximum number of remembered volumes, and of namespaces, for each node and class.
const MOST: usize = 64;

/// Maximum number of remembered characters of a driver's message.
const WORDS: usize = 256;

/// Repeated failures of a node's driver at one class, except for lack of capacity.
#[derive(Debug, Default)]
pub(super) struct Failing {
    volumes: BTreeMap<String, Failed>,
    namespaces: BTreeMap<String, CapacityBackoff>,
}

#[derive(Debug)]
struct Failed {
    pause: CapacityBackoff,
    /// The driver's message, if it called the volume infeasible.
    infeasible: Option<String>,
}

impl Failing {
    /// Records a failure at this volume.
    pub fn add(&mut self, asker: VolumeRequest<'_>, class: ErrorClass, words: &str) {
        self.volumes.retain(|_, failed| !failed.pause.is_long_ago());
        let before = self.volumes.remove(asker.volume);
        let infeasible = class == ErrorClass::Infeasible;
        let failed = Failed {
            pause: CapacityBackoff::now(Bytes(1), before.map(|before| before.pause)),
            infeasible: infeasible.then(|| words.chars().take(WORDS).collect()),
        };
        make_way(&mut self.volumes, |failed| failed.pause.since());
        self.volumes.insert(asker.volume.to_owned(), failed);
        if infeasible {
            // Another claim may be feasible.
            return;
        }
        self.namespaces.retain(|_, pause| !pause.is_long_ago());
        let before = self.namespaces.remove(asker.namespace);
        make_way(&mut self.namespaces, CapacityBackoff::since);
        self.namespaces.insert(
            asker.namespace.to_owned(),
            CapacityBackoff::now(Bytes(1), before),
        );
    }

    /// Records a success: only infeasible volumes keep their failures.
    pub fn made_one(&mut self) {
        self.namespaces.clear();
        self.volumes.retain(|_, failed| failed.infeasible.is_some());
    }

    /// Whether this volume failed there recently.
    pub fn has_failed(&self, asker: VolumeRequest<'_>) -> bool {
        let failed = self.volumes.get(asker.volume);
        failed.is_some_and(|failed| failed.pause.pauses())
    }

    /// Returns the driver's message if it recently called this volume infeasible.
    pub fn infeasible(&self, asker: VolumeRequest<'_>) -> Option<&str> {
        let failed = self.volumes.get(asker.volume)?;
        failed
            .infeasible
            .as_deref()
            .filter(|_| failed.pause.pauses())
    }

    /// Whether a volume of this namespace would probably fail.
    pub fn is_failing_for(&self, namespace: &str) -> bool {
        let own = self.namespaces.get(namespace);
        own.is_some_and(CapacityBackoff::pauses) || self.is_failing_for_all()
    }

    /// Whether any volume would probably fail.
    pub fn is_failing_for_all(&self) -> bool {
        let lately = self.namespaces.values().filter(|pause| pause.pauses());
        lately.count() >= SEVERAL
    }
}

/// Removes the oldest entry if the map is full.
fn make_way<T>(all: &mut BTreeMap<String, T>, since: impl Fn(&T) -> tokio::time::Instant) {
    if all.len() < MOST {
        return;
    }
    let oldest = all.iter().min_by_key(|(_, one)| since(one));
    if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
        all.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_tenant_makes_fail_is_remembered_within_bounds_and_displaces_no_other() {
        let mut failing = Failing::default();
        let mut fails = |volume: &str, namespace: &str, class: ErrorClass| {
            let asker = VolumeRequest { volume, namespace };
            failing.add(asker, class, &"no".repeat(WORDS));
            (failing.has_failed(asker), failing.is_failing_for_all())
        };
        assert_eq!(fails("v", "other", ErrorClass::Retryable), (true, false));
        for number in 0..1000 {
            let volume = format!("v{number}");
            let found = fails(&volume, "tenant", ErrorClass::Infeasible);
            assert_eq!(found, (true, false), "{number}");
        }
        assert_eq!(fails("w", "tenant", ErrorClass::Uncertain), (true, true));
        assert_eq!(failing.volumes.len(), MOST);
        let last = VolumeRequest {
            volume: "v999",
            namespace: "tenant",
        };
        assert_eq!(failing.infeasible(last).unwrap().len(), WORDS);
        failing.made_one();
        assert!(failing.has_failed(last) && !failing.is_failing_for("tenant"));
    }
}
