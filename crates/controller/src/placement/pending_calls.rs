//! Open NodeVolumes: nodes' drivers that hang, or whose calls lead to nothing.
//!
//! A broken or malicious agent may answer anything. While a volume is unmade, an answer proves only that the agent
//! runs.

#[cfg(test)]
mod tests;

use crate::{
    agent::callout::{Callout, next_callout},
    api::v1alpha1::{NodeVolume, StorageState},
};
use flexvol_sdk::ErrorClass;
use kube::ResourceExt;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// How often a NodeVolume may have waited for its turn for as long as a call may take.
const TURNS: u32 = 2;

/// Time without an answer after which a driver counts as hanging, or busy.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Time for which a driver counts as hanging after a NodeVolume without progress.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// A node, and a driver.
type NodeDriver = (String, String);

/// All open NodeVolumes.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    calls: BTreeMap<NodeDriver, Calls>,
    /// Node and driver of each open NodeVolume, by its name. It may be recreated elsewhere while a watch is broken.
    node_drivers: BTreeMap<String, NodeDriver>,
}

/// Open NodeVolumes of one driver on one node.
#[derive(Debug, Default)]
struct Calls {
    /// By the NodeVolume's name.
    open: BTreeMap<String, Open>,
    /// Whether the outcome of the last call is uncertain, and none has succeeded since.
    uncertain: bool,
    /// When a NodeVolume was last found without progress.
    stalled: Option<Instant>,
    /// When a NodeVolume was last done.
    done: Option<Instant>,
}

/// An open NodeVolume.
#[derive(Debug)]
struct Open {
    generation: Option<i64>,
    /// When it was first seen, unless it was answered.
    since: Option<Instant>,
    /// Since when its volume is unmade, whatever the answers, or its storage undeleted.
    undone: Option<Instant>,
    /// Whether its lack of progress was reported.
    is_reported: bool,
    /// Whether its lateness was reported.
    is_late_reported: bool,
}

impl PendingCalls {
    /// Applies a watch's report of a NodeVolume.
    pub fn seen(&mut self, node_volume: &NodeVolume) {
        let node_driver = (
            node_volume.spec.node.clone(),
            node_volume.spec.driver.clone(),
        );
        let name = node_volume.name_any();
        if self
            .node_drivers
            .get(&name)
            .is_some_and(|known| *known != node_driver)
        {
            self.close(&name);
        }
        let status = node_volume.status.clone().unwrap_or_default();
        let generation = node_volume.metadata.generation;
        let callout = next_callout(&node_volume.spec, &status);
        if callout == Callout::Nothing {
            self.done(
                &node_driver,
                &name,
                node_volume.spec.state == StorageState::Present,
            );
            return;
        }
        let spec = &node_volume.spec;
        let is_unmade = spec.state == StorageState::Present && !spec.publishing && !spec.published;
        let answered = Some(status.observed_generation) == generation;
        let problem = status.error.filter(|_| answered);
        let uncertain = problem.map(|problem| problem.class() == ErrorClass::Uncertain);
        if uncertain == Some(false) && !is_unmade {
            self.done(&node_driver, &name, callout != Callout::Delete);
            return;
        }
        self.node_drivers.insert(name.clone(), node_driver.clone());
        let calls = self.calls.entry(node_driver).or_default();
        calls.uncertain |= uncertain == Some(true);
        let before = calls.open.get(&name);
        // An answer from before this NodeVolume was first seen proves nothing.
        if uncertain == Some(false) && before.is_some() {
            calls.uncertain = false;
        }
        let since = match before {
            _ if answered => None,
            Some(open) if open.generation == generation => open.since,
            _ => Some(Instant::now()),
        };
        let same = before.filter(|open| open.generation == generation);
        let undone = same.and_then(|open| open.undone);
        let is_undone = is_unmade || spec.state == StorageState::Absent;
        let open = Open {
            generation,
            since,
            undone: is_undone.then(|| undone.unwrap_or_else(Instant::now)),
            is_reported: same.is_some_and(|open| open.is_reported),
            is_late_reported: same.is_some_and(|open| open.is_late_reported),
        };
        calls.open.insert(name, open);
    }

    /// Returns the NodeVolumes that have passed the deadline since the last call.
    pub fn stalled(&mut self, longest: impl Fn(&str) -> Duration) -> Vec<String> {
        let mut stalled = Vec::new();
        for ((node, _), calls) in &mut self.calls {
            let longest = longest(node);
            for (name, open) in &mut calls.open {
                let is_stalled = open.is_stalled(calls.done, longest);
                let is_news = is_stalled && !open.is_reported;
                open.is_reported = is_stalled;
                if is_news {
                    calls.stalled = Some(Instant::now());
                    stalled.push(name.clone());
                }
            }
        }
        self.calls.retain(|_, calls| !calls.is_empty());
        stalled
    }

    /// Returns the NodeVolumes that have become late since the last call.
    pub fn late(&mut self) -> Vec<String> {
        let mut late = Vec::new();
        for calls in self.calls.values_mut() {
            for (name, open) in &mut calls.open {
                let is_late = open.is_late(calls.done);
                if is_late && !open.is_late_reported {
                    late.push(name.clone());
                }
                open.is_late_reported |= is_late;
            }
        }
        late
    }

    /// Whether a NodeVolume has passed the deadline.
    pub fn is_stalled(&self, node: &str, driver: &str, name: &str, longest: Duration) -> bool {
        self.has_open(node, driver, name, |open, done| {
            open.is_stalled(done, longest)
        })
    }

    /// Whether a NodeVolume is unanswered for longer than usual.
    pub fn is_late(&self, node: &str, driver: &str, name: &str) -> bool {
        self.has_open(node, driver, name, Open::is_late)
    }

    fn has_open(
        &self,
        node: &str,
        driver: &str,
        name: &str,
        is: impl FnOnce(&Open, Option<Instant>) -> bool,
    ) -> bool {
        let Some(calls) = self.calls.get(&(node.to_owned(), driver.to_owned())) else {
            return false;
        };
        let open = calls.open.get(name);
        open.is_some_and(|open| is(open, calls.done))
    }

    /// Removes deleted NodeVolumes.
    pub fn gone<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            self.close(name);
        }
        self.calls.retain(|_, calls| !calls.is_empty());
    }

    /// Removes a node with all its NodeVolumes.
    pub fn forget(&mut self, node: &str) {
        self.calls.retain(|(of, _), _| of != node);
        self.node_drivers.retain(|_, (of, _)| of != node);
    }

    /// Closes a NodeVolume. Returns whether it was open.
    fn close(&mut self, name: &str) -> bool {
        let node_driver = self.node_drivers.remove(name);
        let calls = node_driver.and_then(|node_driver| self.calls.get_mut(&node_driver));
        calls.is_some_and(|calls| calls.open.remove(name).is_some())
    }

    /// Records that a node is done with a NodeVolume. A volume that was made or grown proves that others can be; a
    /// deletion does not.
    fn done(&mut self, node_driver: &NodeDriver, name: &str, tells: bool) {
        let was_open = self.close(name);
        let Some(calls) = self.calls.get_mut(node_driver) else {
            return;
        };
        // An answer from before this NodeVolume was first seen proves nothing.
        if was_open && tells {
            calls.uncertain = false;
        }
        if was_open {
            calls.done = Some(Instant::now());
        }
        if calls.is_empty() {
            self.calls.remove(node_driver);
        }
    }

    /// Whether a node's driver hangs.
    pub fn is_hanging(&self, node: &str, driver: &str) -> bool {
        let calls = self.calls.get(&(node.to_owned(), driver.to_owned()));
        calls.is_some_and(|calls| {
            let mut since = calls
                .open
                .values()
                .flat_map(|open| open.since.into_iter().chain(open.undone));
            calls.uncertain || calls.stalls() || since.any(|since| since.elapsed() >= LONG)
        })
    }
}

impl Calls {
    fn is_empty(&self) -> bool {
        self.open.is_empty() && !self.uncertain && !self.stalls()
    }

    fn stalls(&self) -> bool {
        self.stalled
            .is_some_and(|since| since.elapsed() < REMEMBERED)
    }
}

impl Open {
    fn is_late(&self, done: Option<Instant>) -> bool {
        self.since.is_some() && self.is_stalled(done, LONG)
    }

    /// Whether it has passed the deadline. If it was never answered, it may have waited for its turn behind `done`, but
    /// not for ever.
    fn is_stalled(&self, done: Option<Instant>, longest: Duration) -> bool {
        let turn = done.filter(|_| self.since.is_some());
        self.undone.is_some_and(|since| {
            let begun = turn.map_or(since, |turn| turn.clamp(since, since + longest * TURNS));
            begun.elapsed() >= longest
        })
    }
}
