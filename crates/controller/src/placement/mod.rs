//! What the nodes' agents say of their nodes, and of which nothing is heard.
//!
//! How long an agent has been silent is told by this process's own clock, from when its last heartbeat
//! was seen, as Kubernetes does with its nodes (`pkg/controller/nodelifecycle`): clocks of different
//! hosts are never compared. So a new leader takes an agent for alive until it has waited as long itself, but for
//! one whose last words are so old that no two clocks differ by that.

mod capacity_backoff;
mod deadline;
mod estimate;
mod failing;
mod last_heartbeat;
mod load;
mod pending_calls;
mod removed_nodes;
mod selection;

pub use estimate::NodeCapacity;
pub use failing::VolumeRequest;
pub use last_heartbeat::LastHeartbeat;
pub(crate) use selection::Unschedulable;

use crate::api::v1alpha1::{NodeVolume, StorageNode, StorageNodeStatus};
use capacity_backoff::CapacityBackoff;
use estimate::Estimate;
use failing::Failing;
use flexvol_sdk::{Bytes, ErrorClass};
use k8s_openapi::jiff::Timestamp;
use load::Load;
use pending_calls::PendingCalls;
use removed_nodes::RemovedNode;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// After how long an agent counts as away: three heartbeats, and what one may be late.
pub const SILENCE: Duration = Duration::from_secs(200);

/// After how many times that, by the clocks of two hosts, an agent was silent already when this process began.
const SILENCES_BEFORE: u32 = 3;

/// The nodes that have, or had, an agent.
#[derive(Debug)]
pub struct Nodes {
    all: Mutex<BTreeMap<String, NodeRecord>>,
    /// Those of which the object with their agents' words was removed: that ends no agent.
    gone: Mutex<BTreeMap<String, RemovedNode>>,
    /// Since when this process listens to agents: one that waits to lead does not.
    listens: OnceLock<Instant>,
    /// NodeVolumes may be seen before their nodes.
    pending_calls: Mutex<PendingCalls>,
    /// The UIDs of classes, by name.
    classes: Mutex<BTreeMap<String, String>>,
    silence: Duration,
}

#[derive(Debug)]
struct NodeRecord {
    uid: String,
    status: StorageNodeStatus,
    /// When its last heartbeat was seen here, or since when it is known.
    heard: Instant,
    /// Its last words were so old by then that it was silent already.
    was_silent: bool,
    /// Kubernetes missed the node after that: nothing new is asked of it.
    missed: bool,
    /// Somebody was told that it is silent.
    told: bool,
    /// What its driver had no room for, by class.
    full: BTreeMap<String, CapacityBackoff>,
    /// What its driver could not make, for another reason, by class.
    failing: BTreeMap<String, Failing>,
    /// No volume could be bound to it.
    unbindable: Option<CapacityBackoff>,
    /// What was ordered of it, and its agent may not have told of yet.
    load: Load,
    /// Why pods may not run there, as it was last seen.
    barred: Option<(Instant, Unschedulable)>,
}

/// No node can have the volume: in words for the claim's author.
#[derive(Debug, PartialEq, Eq)]
pub struct NoNode(pub(crate) String);

impl Nodes {
    /// Nodes whose agents count as away when they were silent for so long.
    #[must_use]
    pub fn new(silence: Duration) -> Self {
        Nodes {
            all: Mutex::default(),
            gone: Mutex::default(),
            listens: OnceLock::new(),
            pending_calls: Mutex::default(),
            classes: Mutex::default(),
            silence,
        }
    }

    /// From now on this process hears what agents say.
    pub fn listen(&self) {
        let _ = self.listens.set(Instant::now());
    }

    /// An agent has said something, or its words were read again. Says whether more can be had of the
    /// node than before.
    pub fn put(&self, node: StorageNode) -> bool {
        let name = node.metadata.name.unwrap_or_default();
        let mut now = NodeRecord {
            uid: node.metadata.uid.unwrap_or_default(),
            status: node.status,
            heard: Instant::now(),
            was_silent: false,
            missed: false,
            told: false,
            full: BTreeMap::new(),
            failing: BTreeMap::new(),
            unbindable: None,
            load: Load::default(),
            barred: None,
        };
        let mut all = self.all();
        let Some(before) = all.get_mut(&name) else {
            let seen = now.status.last_heartbeat_time.as_ref();
            let seen = seen.and_then(|seen| seen.parse::<Timestamp>().ok());
            let longest = self.silence.saturating_mul(SILENCES_BEFORE);
            let is_old = |seen| Timestamp::now().duration_since(seen).unsigned_abs() > longest;
            now.was_silent = seen.is_some_and(is_old);
            self.gone().remove(&name);
            all.insert(name, now);
            return true;
        };
        now.load = std::mem::take(&mut before.load);
        now.barred = before.barred;
        now.unbindable = before.unbindable.take();
        if before.status.last_heartbeat_time == now.status.last_heartbeat_time {
            (now.heard, now.told) = (before.heard, before.told);
            (now.was_silent, now.missed) = (before.was_silent, before.missed);
        } else {
            now.load.told();
        }
        now.failing = std::mem::take(&mut before.failing);
        now.failing.retain(|class, _| {
            let (had, has) = (&before.status.capacities, &now.status.capacities);
            // It can tell again.
            had.contains_key(class) || !has.contains_key(class)
        });
        let is_back = !before.may_be_asked(self.silence) && now.may_be_asked(self.silence);
        let better = is_back || offers_more(&before.status, &now.status);
        now.full = std::mem::take(&mut before.full);
        now.full.retain(|class, _| {
            let (had, has) = (&before.status.capacities, &now.status.capacities);
            // What is said for the first time is no room that was made.
            let made = had
                .get(class)
                .zip(has.get(class))
                .is_some_and(|(had, has)| has > had);
            !made
        });
        all.insert(name, now);
        better
    }

    /// What an agent said was removed: nothing new is asked of the node, and of what was asked of it the agent may
    /// speak yet.
    pub fn remove(&self, name: &str) {
        let mut all = self.all();
        if let Some(known) = all.remove(name) {
            self.gone()
                .insert(name.to_owned(), RemovedNode::from(known));
        }
        self.pending_calls().forget(name);
    }

    /// The node that the scheduler chose, if its agent can make volumes of the driver.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self, node: &str, driver: &str) -> Result<String, NoNode> {
        let why = match self.all().get(node) {
            None => Some(format!("node {node} has no agent of flexvol-controller")),
            Some(known) => known.lacks_driver(node, driver),
        };
        why.map_or_else(|| Ok(node.to_owned()), |why| Err(NoNode(why)))
    }

    /// A volume of this name and size was ordered of a node.
    pub fn ordered(&self, node: &str, volume: &str, size: Bytes) {
        if let Some(known) = self.all().get_mut(node) {
            known.load.add(volume, size);
        }
    }

    /// A volume that was ordered of a node was made: its agent tells what room there is after that.
    pub fn made(&self, node: &str, volume: &str) {
        if let Some(known) = self.all().get_mut(node) {
            known.load.made(volume);
        }
    }

    /// A NodeVolume of a node is as seen.
    pub(crate) fn node_volume_seen(&self, node_volume: &NodeVolume) {
        self.pending_calls().seen(node_volume);
    }

    /// A class is as seen. What nodes could not make of one of its name that it has replaced says nothing of it.
    pub(crate) fn class_seen(&self, name: &str, uid: &str) {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = classes.insert(name.to_owned(), uid.to_owned());
        if before.is_some_and(|before| before != uid) {
            self.forget_class(name);
        }
    }

    /// A class was deleted, and one that is made anew by its name is another one.
    pub(crate) fn class_gone(&self, name: &str) {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes.remove(name);
        self.forget_class(name);
    }

    fn forget_class(&self, name: &str) {
        for known in self.all().values_mut() {
            known.full.remove(name);
            known.failing.remove(name);
        }
    }

    /// NodeVolumes of these names are there no more.
    pub(crate) fn node_volumes_gone<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.pending_calls().gone(names);
    }

    /// A node's driver had no room for a volume of this size.
    pub fn had_no_room(&self, node: &str, class: &str, size: Bytes) {
        let mut all = self.all();
        let Some(known) = all.get_mut(node) else {
            return;
        };
        let before = known.full.remove(class);
        known
            .full
            .insert(class.to_owned(), CapacityBackoff::now(size, before));
    }

    /// A node's driver could not make a volume of a class, again and again, and not for want of room.
    pub fn failed(
        &self,
        node: &str,
        class: &str,
        asker: VolumeRequest<'_>,
        error: ErrorClass,
        words: &str,
    ) {
        if let Some(known) = self.all().get_mut(node) {
            let failing = known.failing.entry(class.to_owned()).or_default();
            failing.add(asker, error, words);
        }
    }

    /// No volume could be bound to a node: the scheduler does not see that, so it is not offered that node for ever
    /// longer. What comes while it is not counts no more than once.
    pub fn unbindable(&self, node: &str) {
        if let Some(known) = self.all().get_mut(node)
            && !known.is_unbindable()
        {
            known.unbindable = Some(CapacityBackoff::now(Bytes(1), known.unbindable.take()));
        }
    }

    /// A node's driver has made a volume of this size, and that was bound to it.
    pub fn had_room(&self, node: &str, class: &str, size: Bytes) {
        if let Some(known) = self.all().get_mut(node) {
            known.unbindable = None;
            if let Some(failing) = known.failing.get_mut(class) {
                failing.made_one();
            }
            known
                .full
                .retain(|of, full| of != class || !full.forbids(size));
        }
    }

    fn pending_calls(&self) -> MutexGuard<'_, PendingCalls> {
        self.pending_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken after the others.
    fn gone(&self) -> MutexGuard<'_, BTreeMap<String, RemovedNode>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, NodeRecord>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeRecord {
    fn lacks_driver(&self, node: &str, driver: &str) -> Option<String> {
        let answers = self.status.drivers.contains_key(driver);
        (!answers).then(|| format!("driver {driver} does not answer on node {node}"))
    }

    /// What can be had of a class: as the driver says, and less than what it had no room for lately.
    fn room(&self, driver: &str, class: &str) -> Estimate {
        let told = self.status.capacities.get(class);
        let told = match told {
            Some(room) => Estimate::Largest(Bytes(*room)),
            None => match self.status.drivers.get(driver) {
                Some(report) if report.capacity_unsupported => Estimate::Any,
                _ => Estimate::Unknown(None),
            },
        };
        let largest = self.full.get(class).and_then(CapacityBackoff::largest);
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
        !self.missed && !self.is_silent(silence)
    }
}

/// Whether there is a driver, or room in a class, that there was not.
fn offers_more(before: &StorageNodeStatus, now: &StorageNodeStatus) -> bool {
    let mut drivers = now.drivers.keys();
    let mut rooms = now.capacities.iter();
    drivers.any(|driver| !before.drivers.contains_key(driver))
        || rooms.any(|(class, room)| before.capacities.get(class).is_none_or(|had| room > had))
}

impl fmt::Display for NoNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoNode {}

#[cfg(test)]
mod tests;
