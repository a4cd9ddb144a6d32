//! Placement: what agents report of their nodes, and which nodes are silent.
//!
//! Silence is measured by this process's own clock, from the arrival of the last heartbeat, as Kubernetes does with
//! nodes (`pkg/controller/nodelifecycle`). Clocks of different hosts are never compared. So a new leader considers an
//! agent alive until it has waited for the silence limit itself, unless the last heartbeat is so old that no difference
//! of clocks explains it.

mod capacity_backoff;
mod deadline;
mod estimate;
mod failing;
mod last_heartbeat;
mod load;
mod offered;
mod outcomes;
mod pending_calls;
mod removed_nodes;
mod selection;
mod volume_failures;

pub use estimate::NodeCapacity;
pub use failing::VolumeRequest;
pub use last_heartbeat::LastHeartbeat;
pub(crate) use selection::Unschedulable;

use crate::api::v1alpha1::{NodeVolume, StorageNode, StorageNodeStatus};
use capacity_backoff::CapacityBackoff;
use estimate::Estimate;
use failing::Failing;
use flexvol_sdk::Bytes;
use k8s_openapi::jiff::Timestamp;
use load::Load;
use offered::Offered;
use pending_calls::PendingCalls;
use removed_nodes::RemovedNode;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use volume_failures::VolumeFailures;

/// Silence limit: three heartbeats, and the delay of one.
pub const SILENCE: Duration = Duration::from_secs(200);

/// Multiple of the silence limit by which the last heartbeat, by two hosts' clocks, proves silence before this start.
const SILENCES_BEFORE: u32 = 3;

/// The nodes that have, or had, an agent.
#[derive(Debug)]
pub struct Nodes {
    all: Mutex<BTreeMap<String, NodeRecord>>,
    /// Nodes whose StorageNode was removed. Their agents may still run.
    gone: Mutex<BTreeMap<String, RemovedNode>>,
    /// When this process began to watch agents. A process that waits for the lease does not.
    listens: OnceLock<Instant>,
    /// Open NodeVolumes, which may be seen before their nodes.
    pending_calls: Mutex<PendingCalls>,
    volume_failures: Mutex<VolumeFailures>,
    /// UIDs of storage classes, by name.
    classes: Mutex<BTreeMap<String, String>>,
    silence: Duration,
}

#[derive(Debug)]
struct NodeRecord {
    uid: String,
    status: StorageNodeStatus,
    /// The arrival of its last heartbeat, or when it became known.
    heard: Instant,
    /// Whether its last heartbeat was already too old at that time.
    was_silent: bool,
    /// Whether Kubernetes misses the node since then. No new volume is placed there.
    is_missing: bool,
    /// Whether its silence was reported.
    is_reported: bool,
    /// Backoff after lack of capacity, by class.
    full: BTreeMap<String, Exhausted>,
    /// Other failures of its driver, by class.
    failing: BTreeMap<String, Failing>,
    /// Volumes that its driver called infeasible, by class. Any tenant can request such ones, so they tell schedulers
    /// nothing.
    refusing: BTreeMap<String, Failing>,
    /// Backoff after no volume could be bound to it.
    unbindable: Option<CapacityBackoff>,
    /// Ordered volumes that the agent's last report may not include.
    load: Load,
    offered: Offered,
    /// Why pods may not run there, when last seen.
    unschedulable: Option<(Instant, Unschedulable)>,
}

/// The error if no node fits a volume, with a message for the claim's author.
#[derive(Debug, PartialEq, Eq)]
pub struct NoNode(pub(crate) String);

impl Nodes {
    /// Creates an empty set of nodes with this silence limit.
    #[must_use]
    pub fn new(silence: Duration) -> Self {
        Nodes {
            all: Mutex::default(),
            gone: Mutex::default(),
            listens: OnceLock::new(),
            pending_calls: Mutex::default(),
            volume_failures: Mutex::default(),
            classes: Mutex::default(),
            silence,
        }
    }

    /// Notes that this process watches agents from now on.
    pub fn listen(&self) {
        let _ = self.listens.set(Instant::now());
    }

    /// Stores an agent's report, new or listed again. Returns whether the node offers more than before.
    pub fn put(&self, node: StorageNode) -> bool {
        let name = node.metadata.name.unwrap_or_default();
        let mut now = NodeRecord {
            uid: node.metadata.uid.unwrap_or_default(),
            status: node.status,
            heard: Instant::now(),
            was_silent: false,
            is_missing: false,
            is_reported: false,
            full: BTreeMap::new(),
            failing: BTreeMap::new(),
            refusing: BTreeMap::new(),
            unbindable: None,
            load: Load::default(),
            offered: Offered::default(),
            unschedulable: None,
        };
        let mut all = self.all();
        let Some(before) = all.get_mut(&name) else {
            let seen = now.status.last_heartbeat_time.as_ref();
            let seen = seen.and_then(|seen| seen.parse::<Timestamp>().ok());
            let longest = self.silence.saturating_mul(SILENCES_BEFORE);
            let is_old = |seen| Timestamp::now().duration_since(seen).unsigned_abs() > longest;
            now.was_silent = seen.is_some_and(is_old);
            self.gone().remove(&name);
            now.offered.gains(&now.status);
            all.insert(name, now);
            return true;
        };
        now.load = std::mem::take(&mut before.load);
        now.offered = std::mem::take(&mut before.offered);
        now.unschedulable = before.unschedulable;
        now.unbindable = before.unbindable.take();
        if before.status.last_heartbeat_time == now.status.last_heartbeat_time {
            (now.heard, now.is_reported) = (before.heard, before.is_reported);
            (now.was_silent, now.is_missing) = (before.was_silent, before.is_missing);
        } else {
            now.load.record_report();
        }
        now.failing = std::mem::take(&mut before.failing);
        now.refusing = std::mem::take(&mut before.refusing);
        // A capacity that is reported again ends the failures.
        for class in now.status.capacities.keys() {
            if !before.status.capacities.contains_key(class) {
                now.failing.remove(class);
                now.refusing.remove(class);
                self.volume_failures().reported_again(&name, class);
            }
        }
        let is_back = !before.may_be_asked(self.silence) && now.may_be_asked(self.silence);
        let better = now.offered.gains(&now.status) || is_back;
        now.full = std::mem::take(&mut before.full);
        now.full.retain(|class, exhausted| {
            let has = now.status.capacities.get(class);
            !has.is_some_and(|has| exhausted.has_gained(*has))
        });
        all.insert(name, now);
        better
    }

    /// Removes a node whose StorageNode was removed. No new volume is placed there, but the agent may still answer for
    /// existing NodeVolumes.
    pub fn remove(&self, name: &str) {
        let mut all = self.all();
        if let Some(known) = all.remove(name) {
            self.gone()
                .insert(name.to_owned(), RemovedNode::from(known));
        }
        self.pending_calls().forget(name);
    }

    /// Returns the node that the scheduler selected, if it has an agent and the driver.
    ///
    /// # Errors
    /// When it has not.
    pub fn check(&self, node: &str, driver: &str) -> Result<String, NoNode> {
        let why = match self.all().get(node) {
            None => Some(format!("node {node} has no agent of flexvol-controller")),
            Some(known) => known.lacks_driver(node, driver),
        };
        why.map_or_else(|| Ok(node.to_owned()), |why| Err(NoNode(why)))
    }

    /// Adds an ordered volume to a node's load.
    pub fn record_request(&self, node: &str, volume: &str, size: Bytes) {
        if let Some(known) = self.all().get_mut(node) {
            known.load.add(volume, size);
        }
    }

    /// Marks an ordered volume as made: the agent's next report includes it.
    pub fn complete_request(&self, node: &str, volume: &str) {
        if let Some(known) = self.all().get_mut(node) {
            known.load.mark_made(volume);
        }
    }

    /// Applies a watch's report of a NodeVolume.
    pub(crate) fn node_volume_seen(&self, node_volume: &NodeVolume) {
        self.pending_calls().seen(node_volume);
    }

    /// Applies a watch's report of a class. Failures at a former class of the same name do not count for it.
    pub(crate) fn class_seen(&self, name: &str, uid: &str) {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = classes.insert(name.to_owned(), uid.to_owned());
        if before.is_some_and(|before| before != uid) {
            self.forget_class(name);
        }
    }

    /// Removes a deleted class. A later class of the same name is another one.
    pub(crate) fn class_gone(&self, name: &str) {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes.remove(name);
        self.forget_class(name);
    }

    fn forget_class(&self, name: &str) {
        for known in self.all().values_mut() {
            known.full.remove(name);
            known.failing.remove(name);
            known.refusing.remove(name);
        }
        self.volume_failures().forget_class(name);
    }

    /// Removes deleted NodeVolumes.
    pub(crate) fn node_volumes_gone<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.pending_calls().gone(names);
    }

    /// Locked after the other maps.
    fn volume_failures(&self) -> MutexGuard<'_, VolumeFailures> {
        self.volume_failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_calls(&self) -> MutexGuard<'_, PendingCalls> {
        self.pending_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Locked after the other maps.
    fn gone(&self) -> MutexGuard<'_, BTreeMap<String, RemovedNode>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, NodeRecord>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A driver's lack of capacity for a class.
#[derive(Debug)]
struct Exhausted {
    pause: CapacityBackoff,
    /// The size that it lacked last, and the capacity that it reported then.
    size: Bytes,
    reported: Option<u64>,
}

impl Exhausted {
    /// Whether the driver reports more than then, by an eighth of what it lacked: capacities change by some bytes all the
    /// time. A first report is no increase.
    fn has_gained(&self, has: u64) -> bool {
        let least = (self.size.0 / 8).max(1);
        self.reported
            .is_some_and(|reported| has >= reported.saturating_add(least))
    }
}

impl NodeRecord {
    fn lacks_driver(&self, node: &str, driver: &str) -> Option<String> {
        let answers = self.status.drivers.contains_key(driver);
        (!answers).then(|| format!("driver {driver} does not answer on node {node}"))
    }

    /// The estimate for a class: the driver's report, limited by recent lack of capacity.
    fn room(&self, driver: &str, class: &str) -> Estimate {
        let told = self.status.capacities.get(class);
        let told = match told {
            Some(room) => Estimate::Largest(Bytes(*room)),
            None => match self.status.drivers.get(driver) {
                Some(report) if report.capacity_unsupported => Estimate::Any,
                _ => Estimate::Unknown(None),
            },
        };
        let full = self.full.get(class);
        let largest = full.and_then(|exhausted| exhausted.pause.largest());
        largest.map_or(told, |largest| told.at_most(largest))
    }

    fn is_unbindable(&self) -> bool {
        self.unbindable
            .as_ref()
            .is_some_and(CapacityBackoff::pauses)
    }

    fn is_silent(&self, silence: Duration) -> bool {
        self.was_silent || self.heard.elapsed() >= silence
    }

    fn may_be_asked(&self, silence: Duration) -> bool {
        !self.is_missing && !self.is_silent(silence)
    }
}

impl fmt::Display for NoNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoNode {}

#[cfg(test)]
mod tests;
