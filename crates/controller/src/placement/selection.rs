//! Selection of a node for a volume.

use super::{
    LastHeartbeat, NoNode, NodeRecord, Nodes, VolumeRequest, estimate::Estimate, failing::Failing,
};
use crate::{
    api::well_known::checksum,
    k8s::node::{is_cordoned, taints},
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::Node;
use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
    time::Duration,
};
use tokio::time::Instant;

/// Time for which a node counts as unschedulable.
const UNSCHEDULABLE_FOR: Duration = Duration::from_secs(60);

/// Number of nodes whose drivers call a volume infeasible after which no other is tried: each takes half a minute.
const REFUSALS: u32 = 2;

/// Why pods do not run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unschedulable {
    /// It is tainted. Some pods may run there: the tolerations of a claim's pods are unknown before the pods exist.
    Tainted,
    /// It is cordoned, whatever pods tolerate.
    Cordoned,
    /// No volume can be bound to it, or its object was read in part. It is the last resort.
    Unfit,
}

impl Unschedulable {
    /// Reads the reason from a node's object.
    pub fn of(node: &Node) -> Option<Self> {
        if is_cordoned(node) {
            return Some(Unschedulable::Cordoned);
        }
        taints(node)
            .next()
            .is_some()
            .then_some(Unschedulable::Tainted)
    }
}

/// A node that may get the volume.
#[derive(Debug)]
struct Candidate<'a> {
    node: &'a str,
    room: Estimate,
    unschedulable: Option<Unschedulable>,
    /// Whether its driver failed recently at others' volumes, or hangs.
    doubtful: bool,
    /// The size of other volumes that were ordered of it.
    load: Bytes,
    /// Tie breaker that spreads volumes over equal nodes.
    turn: u64,
}

impl Candidate<'_> {
    fn order(&self, other: &Self) -> Ordering {
        let by = |candidate: &Self| {
            let free = |largest: Bytes| i128::from(largest.0) - i128::from(candidate.load.0);
            let (rank, free) = match candidate.room {
                Estimate::Largest(largest) => (2, free(largest)),
                Estimate::Any => (1, free(Bytes(0))),
                Estimate::Unknown(_) => (0, free(Bytes(0))),
            };
            let schedulability = Reverse(candidate.unschedulable);
            (
                schedulability,
                !candidate.doubtful,
                rank,
                free,
                candidate.turn,
            )
        };
        by(self).cmp(&by(other))
    }
}

impl Nodes {
    /// Sets why pods may not run on a node, if so.
    pub(crate) fn set_unschedulable(&self, name: &str, why: Option<Unschedulable>) {
        if let Some(known) = self.all().get_mut(name) {
            known.unschedulable = why.map(|why| (Instant::now(), why));
        }
    }

    /// Returns why the node that the scheduler selected cannot have a volume, if it is known.
    pub fn unfit_reason(
        &self,
        node: &str,
        driver: &str,
        class: &str,
        size: Bytes,
        asker: VolumeRequest<'_>,
    ) -> Option<String> {
        let all = self.all();
        let known = all.get(node)?;
        let room = known.room(driver, class);
        let lacks_room = || match room {
            Estimate::Largest(room) | Estimate::Unknown(Some(room)) if room < size => Some(
                format!("node {node} has no room for {size}; the largest volume there has {room}"),
            ),
            _ => None,
        };
        let fails = || {
            self.volume_failures().has_failed(asker, node, class).then(|| {
                format!(
                    "node {node} failed again and again to make this volume of storage class {class:?}"
                )
            })
        };
        known
            .lacks_driver(node, driver)
            .or_else(fails)
            .or_else(lacks_room)
    }

    /// Returns why no other node is tried: several drivers call the volume infeasible.
    pub fn infeasible_reason(&self, class: &str, asker: VolumeRequest<'_>) -> Option<String> {
        let all = self.all();
        self.infeasible_reason_of(&all, class, asker)
    }

    fn infeasible_reason_of(
        &self,
        all: &BTreeMap<String, NodeRecord>,
        class: &str,
        asker: VolumeRequest<'_>,
    ) -> Option<String> {
        // Such a node would otherwise, with another one, keep every volume from the nodes that can make it.
        let refuses = |node: &str| {
            let refusing = all.get(node).and_then(|known| known.refusing.get(class));
            refusing.is_some_and(Failing::is_failing_for_all)
        };
        let failures = self.volume_failures();
        let words = failures.infeasible(asker, class, REFUSALS, refuses);
        words.map(|words| {
            format!(
                "storage class {class:?} cannot have this volume, as the drivers of {REFUSALS} nodes say ({words}); make a claim that it can have"
            )
        })
    }

    /// Returns the best node for a volume among available nodes where pods may run and that did not fail at it. The
    /// one with the most capacity is best. Nodes of unknown capacity rank lower, and nodes that failed at others'
    /// volumes or whose driver hangs rank lowest. Equal nodes take turns.
    ///
    /// # Errors
    /// When no node fits.
    pub fn select_node(
        &self,
        driver: &str,
        class: &str,
        size: Bytes,
        asker: VolumeRequest<'_>,
    ) -> Result<String, NoNode> {
        let all = self.all();
        if let Some(why) = self.infeasible_reason_of(&all, class, asker) {
            return Err(NoNode(why));
        }
        let able = || {
            let has_driver = |known: &NodeRecord| known.status.drivers.contains_key(driver);
            all.iter().filter(move |(_, known)| has_driver(known))
        };
        let heard = || able().filter(|(_, known)| known.may_be_asked(self.silence));
        let answers = heard().next().is_some();
        let (calls, failures) = (self.pending_calls(), self.volume_failures());
        let mut others = Vec::new();
        let mut candidates = Vec::new();
        for (node, known) in heard() {
            let unschedulable = known
                .unschedulable
                .filter(|(since, _)| since.elapsed() < UNSCHEDULABLE_FOR);
            let unschedulable = unschedulable.map(|(_, why)| why);
            let fails = |at: &BTreeMap<String, Failing>| {
                let failing = at.get(class);
                failing.is_some_and(|failing| failing.is_failing_for(asker.namespace))
            };
            if unschedulable == Some(Unschedulable::Cordoned) {
                others.push(format!("node {node} is cordoned"));
            } else if failures.has_failed(asker, node, class) {
                others.push(format!("node {node} failed again and again to make it"));
            } else {
                candidates.push(Candidate {
                    node,
                    room: known.room(driver, class),
                    unschedulable,
                    doubtful: calls.is_hanging(node, driver)
                        || fails(&known.failing)
                        || fails(&known.refusing),
                    load: known.load.sum(),
                    turn: checksum(&format!("{}/{node}", asker.volume)),
                });
            }
        }
        let silent = able().find(|(_, known)| !known.may_be_asked(self.silence));
        others.extend(silent.map(|(node, known)| {
            format!(
                "the agent of node {node} {}",
                LastHeartbeat::since(&known.status)
            )
        }));
        let others = others.last().map_or_else(String::new, |why| {
            format!("; of nodes that do not count, {why}")
        });
        let fits = candidates.iter().filter(|one| one.room.fits(size));
        if let Some(best) = fits.max_by(|one, other| one.order(other)) {
            return Ok(best.node.to_owned());
        }
        let largest = candidates.iter().filter_map(|one| match one.room {
            Estimate::Largest(room) | Estimate::Unknown(Some(room)) => Some((room, one.node)),
            Estimate::Any | Estimate::Unknown(None) => None,
        });
        Err(NoNode(match largest.max() {
            Some((room, node)) => format!(
                "no node has room for {size}; the largest volume, {room}, could be made on {node}{others}",
            ),
            None if answers => format!("no node can have the volume{others}"),
            None => format!("no node has driver {driver}{others}"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    #[test]
    fn pods_run_where_neither_a_cordon_nor_a_taint_keeps_them_out() {
        let unschedulable = |spec: Value| {
            Unschedulable::of(&from_value(json!({"metadata": {}, "spec": spec})).unwrap())
        };
        let taint = |effect: &str| json!({"taints": [{"key": "own", "effect": effect}]});
        assert_eq!(unschedulable(json!({})), None);
        assert_eq!(unschedulable(taint("PreferNoSchedule")), None);
        assert_eq!(
            unschedulable(taint("NoSchedule")),
            Some(Unschedulable::Tainted)
        );
        assert_eq!(
            unschedulable(taint("NoExecute")),
            Some(Unschedulable::Tainted)
        );
        // Kubernetes also taints a cordoned node.
        let mut cordoned = taint("NoSchedule");
        cordoned["unschedulable"] = true.into();
        assert_eq!(unschedulable(cordoned), Some(Unschedulable::Cordoned));
    }
}
