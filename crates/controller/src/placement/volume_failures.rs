//! Volumes that nodes failed to make.
//!
//! What was learnt at a volume stays with it. What a node reports afterwards, for example more capacity, is forgiven a few
//! times: a node that reports that again and again and makes nothing would keep the volume from all others.

use super::{VolumeRequest, capacity_backoff::CapacityBackoff};
use crate::runtime::backoff::Backoff;
use flexvol_sdk::{Bytes, ErrorClass};
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of remembered volumes, and of nodes for each.
const MOST_VOLUMES: usize = 4096;
const MOST_NODES: usize = 64;

/// Maximum number of remembered characters of a driver's message.
const WORDS: usize = 256;

/// Number of failures in a row from which on nothing that the node reports ends the pause.
const FORGIVEN: u32 = 5;

/// Pause before a volume that drivers call infeasible is tried again. What a claim requests never changes before it is
/// bound, so only another configuration of the driver can help. Trying a node takes half a minute, or several on a busy
/// one, and the first verdict has to count for longer than that.
const INFEASIBLE: Backoff = Backoff {
    first: Duration::from_secs(600),
    longest: Duration::from_secs(3600),
};

/// The failures at each volume.
#[derive(Debug, Default)]
pub(super) struct VolumeFailures(BTreeMap<String, OfVolume>);

#[derive(Debug)]
struct OfVolume {
    namespace: String,
    nodes: BTreeMap<String, Failed>,
}

#[derive(Debug)]
struct Failed {
    class: String,
    pause: CapacityBackoff,
    /// Whether it counts. Lack of capacity is judged by what the node reports, and a report may end a failure.
    counts: bool,
    /// The driver's message, if it called the volume infeasible.
    infeasible: Option<String>,
}

impl Failed {
    fn pauses(&self) -> bool {
        let pauses = match self.infeasible {
            Some(_) => self.pause.lasts(INFEASIBLE),
            None => self.pause.pauses(),
        };
        (self.counts || self.pause.times() >= FORGIVEN) && pauses
    }
}

impl VolumeFailures {
    /// Records a failure of a node at this volume.
    pub fn add(
        &mut self,
        asker: VolumeRequest<'_>,
        node: &str,
        class: &str,
        error: ErrorClass,
        words: &str,
    ) {
        if !self.0.contains_key(asker.volume) && self.0.len() >= MOST_VOLUMES {
            self.make_way();
        }
        let of = self.0.entry(asker.volume.to_owned());
        let of = of.or_insert_with(|| OfVolume {
            namespace: asker.namespace.to_owned(),
            nodes: BTreeMap::new(),
        });
        let before = of.nodes.remove(node);
        if of.nodes.len() >= MOST_NODES {
            remove_oldest(&mut of.nodes, |failed| failed.pause.since());
        }
        let infeasible = error == ErrorClass::Infeasible;
        let failed = Failed {
            class: class.to_owned(),
            pause: CapacityBackoff::now(Bytes(1), before.map(|before| before.pause)),
            counts: error != ErrorClass::Exhausted,
            infeasible: infeasible.then(|| words.chars().take(WORDS).collect()),
        };
        of.nodes.insert(node.to_owned(), failed);
    }

    /// Whether this volume of the class failed on the node recently.
    pub fn has_failed(&self, asker: VolumeRequest<'_>, node: &str, class: &str) -> bool {
        let failed = self.0.get(asker.volume).and_then(|of| of.nodes.get(node));
        failed.is_some_and(|failed| failed.class == class && failed.pauses())
    }

    /// Returns the message of a driver if drivers of at least so many nodes call this volume of the class infeasible, and
    /// no node is to be asked now. Nodes that `refuse` volumes of several tenants do not count. The pause grows with every
    /// verdict, whichever node gives it.
    pub fn infeasible(
        &self,
        asker: VolumeRequest<'_>,
        class: &str,
        least: u32,
        refuse: impl Fn(&str) -> bool,
    ) -> Option<&str> {
        let nodes = &self.0.get(asker.volume)?.nodes;
        let counts = |failed: &Failed| failed.class == class && !failed.pause.is_long_ago();
        let of_class = nodes
            .iter()
            .filter(|(node, failed)| counts(failed) && !refuse(node));
        let (mut nodes_count, mut times, mut last) = (0, 0_u32, None);
        for (_, failed) in of_class {
            let Some(words) = &failed.infeasible else {
                continue;
            };
            nodes_count += 1;
            times = times.saturating_add(failed.pause.times());
            last = last.max(Some((failed.pause.since(), words.as_str())));
        }
        let (since, words) = last.filter(|_| nodes_count >= least)?;
        let pause = INFEASIBLE.after((times + 1).saturating_sub(least));
        (since.elapsed() < pause).then_some(words)
    }

    /// Forgives a node that made a volume of the class. What is infeasible stays so.
    pub fn made_one(&mut self, node: &str, class: &str) {
        for failed in self.of_node(node, class) {
            failed.counts &= failed.infeasible.is_some();
        }
    }

    /// Forgives a node that reports a capacity for the class again.
    pub fn reported_again(&mut self, node: &str, class: &str) {
        for failed in self.of_node(node, class) {
            (failed.counts, failed.infeasible) = (false, None);
        }
    }

    /// Forgets a volume, which was made or is not wanted any more.
    pub fn forget(&mut self, volume: &str) {
        self.0.remove(volume);
    }

    /// Forgets what failed of a class that was deleted.
    pub fn forget_class(&mut self, class: &str) {
        self.0.retain(|_, of| {
            of.nodes.retain(|_, failed| failed.class != class);
            !of.nodes.is_empty()
        });
    }

    fn of_node<'a>(
        &'a mut self,
        node: &'a str,
        class: &'a str,
    ) -> impl Iterator<Item = &'a mut Failed> {
        let nodes = self.0.values_mut();
        let failed = nodes.filter_map(move |of| of.nodes.get_mut(node));
        failed.filter(move |failed| failed.class == class)
    }

    /// Removes what is long ago, or else the oldest volume of the namespace that has most: one tenant's failures displace
    /// no other's.
    fn make_way(&mut self) {
        self.0.retain(|_, of| {
            of.nodes.retain(|_, failed| !failed.pause.is_long_ago());
            !of.nodes.is_empty()
        });
        if self.0.len() < MOST_VOLUMES {
            return;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for of in self.0.values() {
            *counts.entry(&of.namespace).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let most = most.map(|(namespace, _)| namespace.to_owned());
        let since = |of: &OfVolume| of.nodes.values().map(|failed| failed.pause.since()).max();
        let of_most = self
            .0
            .iter()
            .filter(|(_, of)| Some(&of.namespace) == most.as_ref());
        let oldest = of_most.min_by_key(|(_, of)| since(of));
        if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
            self.0.remove(&oldest);
        }
    }
}

/// Removes the oldest entry.
pub(super) fn remove_oldest<T>(
    all: &mut BTreeMap<String, T>,
    since: impl Fn(&T) -> tokio::time::Instant,
) {
    let oldest = all.iter().min_by_key(|(_, one)| since(one));
    if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
        all.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(volume: &'a str, namespace: &'a str) -> VolumeRequest<'a> {
        VolumeRequest { volume, namespace }
    }

    #[test]
    fn what_one_tenant_makes_fail_is_remembered_within_bounds_and_displaces_no_other() {
        let mut failures = VolumeFailures::default();
        let mut fails = |asker: VolumeRequest<'_>| {
            let words = "no".repeat(WORDS);
            failures.add(asker, "one", "class", ErrorClass::Infeasible, &words);
            failures.has_failed(asker, "one", "class")
        };
        assert!(fails(of("v", "other")));
        for number in 0..MOST_VOLUMES + 500 {
            assert!(fails(of(&format!("v{number}"), "tenant")), "{number}");
        }
        assert_eq!(failures.0.len(), MOST_VOLUMES);
        let first = of("v", "other");
        assert!(
            failures.has_failed(first, "one", "class")
                && !failures.has_failed(first, "two", "class")
        );
        let words = failures.infeasible(first, "class", 1, |_| false);
        assert_eq!(words.map(str::len), Some(WORDS));
        assert_eq!(failures.infeasible(first, "class", 2, |_| false), None);
        assert_eq!(failures.infeasible(first, "another", 1, |_| false), None);
        let refuses = |node: &str| node == "one";
        assert_eq!(failures.infeasible(first, "class", 1, refuses), None);
        failures.made_one("one", "class");
        assert!(
            failures.has_failed(first, "one", "class"),
            "it is infeasible"
        );
        failures.forget("v");
        assert!(!failures.has_failed(first, "one", "class"));
        failures.forget_class("class");
        assert!(failures.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_says_it_can_and_cannot_is_forgiven_a_few_times() {
        for error in [ErrorClass::Exhausted, ErrorClass::Retryable] {
            let mut failures = VolumeFailures::default();
            let v = of("v", "ns");
            for time in 1..=FORGIVEN {
                failures.add(v, "liar", "class", error, "no");
                failures.reported_again("liar", "class");
                failures.made_one("liar", "class");
                assert_eq!(
                    failures.has_failed(v, "liar", "class"),
                    time == FORGIVEN,
                    "{time}"
                );
            }
            assert!(!failures.has_failed(of("w", "ns"), "liar", "class"));
            tokio::time::advance(std::time::Duration::from_secs(3600)).await;
            assert!(
                !failures.has_failed(v, "liar", "class"),
                "it is asked now and then"
            );
        }
    }
}
