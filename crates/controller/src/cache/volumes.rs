//! Cache of persistent volumes and NodeVolumes, reduced to what decisions need: a hundred thousand volumes have to fit
//! into tens of mebibytes.
//!
//! The cache may be stale. So no write depends on it alone: the reconciler reads the claim live, and conditions writes
//! of cached objects on their cached resource versions.

mod entry;
#[cfg(test)]
mod tests;
mod unread;

pub(crate) use entry::{Versioned, VolumeEntry, VolumeState, has_reached};

use crate::{
    api::{
        v1alpha1::NodeVolume,
        well_known::{checksum, claim_uid},
    },
    claims::{self, Published, StorageState},
    client::prune::checksum_of,
    drivers::ServedDrivers,
    k8s::{meta::uid, volume::holder},
    observe::{node_volume_of, volume_of},
    runtime::reflector::Presence,
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{ResourceExt, api::ObjectMeta};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use unread::Unread;

/// Number of interned namespaces above which unused ones are dropped.
const MOST_NAMESPACES: usize = 1024;

/// All entries, by name.
#[derive(Debug, Default)]
pub(crate) struct Index {
    all: Mutex<HashMap<String, VolumeEntry>>,
    /// Checksums of the names of foreign persistent volumes. A stale entry only costs a live read.
    others: Mutex<HashSet<u64>>,
    namespaces: Mutex<HashSet<Arc<str>>>,
    unread_volumes: Unread,
    unread_node_volumes: Unread,
}

impl Index {
    /// Applies a watch's report of a persistent volume. Returns whether it differs for decisions.
    pub fn volume(
        &self,
        volume: &PersistentVolume,
        presence: Presence,
        ours: &ServedDrivers,
    ) -> bool {
        let name = volume.name_any();
        self.unread_volumes.forget(&name);
        let seen = volume_of(volume, ours);
        // Foreign volumes are irrelevant, and may be many.
        let is_there = presence == Presence::There;
        self.put_others(&name, is_there && !seen.ours);
        let seen = (is_there && seen.ours).then(|| self::seen(seen, &volume.metadata));
        let namespace = holder(volume).and_then(|claim| claim.namespace.as_deref());
        let namespace = seen.as_ref().and(namespace).map(|name| self.shared(name));
        let own = holder(volume).filter(|claim| claim.uid.as_deref() == Some(claim_uid(&name)));
        let ends = seen
            .as_ref()
            .is_some_and(|seen| seen.what.released || seen.what.deleting);
        let claim = own.and_then(|claim| claim.name.as_deref());
        let claim = claim.map(|name| if ends { name } else { "" }.into());
        let mut changed = false;
        self.put(name, |known| {
            changed = seen.is_some() && known.claim != claim
                || !is_same(known.volume.as_ref(), seen.as_ref());
            if seen.is_some() {
                known.claim = claim;
            }
            known.volume = seen;
            known.belongs_to(namespace);
        });
        changed
    }

    /// Applies a watch's report of a NodeVolume. Returns whether it differs for decisions: a node that fails repeatedly
    /// reports the same each time.
    pub fn node_volume(
        &self,
        node_volume: &NodeVolume,
        presence: Presence,
        ours: &ServedDrivers,
    ) -> bool {
        let is_there = presence == Presence::There;
        let seen = is_there.then(|| self::seen(wordless(node_volume, ours), &node_volume.metadata));
        self.unread_node_volumes.forget(&node_volume.name_any());
        let mut changed = false;
        let namespace = is_there.then(|| self.shared(&node_volume.spec.claim.namespace));
        self.put(node_volume.name_any(), |known| {
            changed = match (&known.node_volume, &seen) {
                (Some(before), Some(seen)) => {
                    before.uid != seen.uid || differs(&before.what, &seen.what)
                }
                (before, seen) => before.is_some() != seen.is_some(),
            };
            if known.volume.is_none() {
                known.claim = Some(node_volume.spec.claim.name.as_str().into());
                known.belongs_to(namespace);
            }
            known.parameters_checksum =
                parameters_checksum(&node_volume.spec.driver, &node_volume.spec.parameters);
            known.node_volume = seen;
        });
        changed
    }

    /// Stores a persistent volume that this process wrote over the version `from`. A watch may already have reported
    /// a newer version, which is kept, because no event would report it again.
    pub fn volume_written(
        &self,
        from: &ObjectMeta,
        volume: &PersistentVolume,
        ours: &ServedDrivers,
    ) {
        let seen = seen(volume_of(volume, ours), &volume.metadata);
        self.put(volume.name_any(), |known| {
            replace(&mut known.volume, from, seen)
        });
    }

    /// Like [`volume_written`](Self::volume_written), for a NodeVolume.
    pub fn node_volume_written(
        &self,
        from: &ObjectMeta,
        node_volume: &NodeVolume,
        ours: &ServedDrivers,
    ) {
        let seen = seen(wordless(node_volume, ours), &node_volume.metadata);
        self.put(node_volume.name_any(), |known| {
            replace(&mut known.node_volume, from, seen)
        });
    }

    /// Stores a new NodeVolume, unless a watch was faster. If it is already gone, the entry stays until the next
    /// list, which is harmless: a NodeVolume without an answer is always read live.
    pub fn node_volume_created(&self, node_volume: &NodeVolume, ours: &ServedDrivers) {
        if !self.has_node_volume(&node_volume.name_any()) {
            self.node_volume(node_volume, Presence::There, ours);
        }
    }

    /// Removes the NodeVolume with this UID.
    pub fn node_volume_deleted(&self, name: &str, uid: &str) {
        self.put(name.to_owned(), |known| {
            known.node_volume.take_if(|known| known.uid == uid);
        });
    }

    fn put_others(&self, name: &str, is_others: bool) {
        let mut others = self.others();
        if is_others {
            others.insert(checksum(name));
        } else {
            others.remove(&checksum(name));
        }
    }

    /// Whether a persistent volume of that name may be foreign.
    pub fn may_be_others(&self, name: &str) -> bool {
        self.others().contains(&checksum(name))
    }

    fn others(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volumes whose NodeVolumes are of this node.
    pub fn of_node(&self, node: &str) -> Vec<String> {
        let all = self.all();
        let there = all.iter().filter(|(_, known)| {
            let node_volume = known.node_volume.as_ref();
            node_volume.is_some_and(|node_volume| node_volume.what.node == node)
        });
        there.map(|(name, _)| name.clone()).collect()
    }

    /// Retains only nodes without NodeVolumes.
    pub fn keep_free<T>(&self, nodes: &mut BTreeMap<String, T>) {
        // Of one that has to be read live the node is unknown.
        if !self.unread_node_volumes.is_empty() {
            nodes.clear();
        }
        let all = self.all();
        for node_volume in all.values().filter_map(|known| known.node_volume.as_ref()) {
            nodes.remove(&node_volume.what.node);
        }
    }

    /// The entry of a volume.
    pub fn get(&self, name: &str) -> VolumeEntry {
        self.all().get(name).cloned().unwrap_or_default()
    }

    /// The namespace of a volume's claim, or an empty one if it is unknown.
    pub fn namespace(&self, name: &str) -> Arc<str> {
        let all = self.all();
        let known = all.get(name);
        known.map_or_else(Arc::default, |known| Arc::clone(&known.namespace))
    }

    /// Interns a namespace. Namespaces are few, and each has many volumes.
    fn shared(&self, namespace: &str) -> Arc<str> {
        let mut all = self
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(namespace) {
            return Arc::clone(known);
        }
        // Drops namespaces without entries.
        if all.len() >= MOST_NAMESPACES {
            all.retain(|known| Arc::strong_count(known) > 1);
        }
        let new = Arc::<str>::from(namespace);
        all.insert(Arc::clone(&new));
        new
    }

    /// Whether there is an entry for the volume.
    pub fn knows(&self, name: &str) -> bool {
        self.all().contains_key(name) || self.is_unread(name)
    }

    /// Whether there is a persistent volume of ours.
    pub fn has_volume(&self, name: &str) -> bool {
        let all = self.all();
        all.get(name).is_some_and(|known| known.volume.is_some())
    }

    /// Whether there is a NodeVolume.
    pub fn has_node_volume(&self, name: &str) -> bool {
        self.is_known(name, |_| true)
    }

    /// Whether there is a persistent volume of ours whose finalizer was not removed for its deletion.
    pub fn is_held(&self, name: &str) -> bool {
        let all = self.all();
        let volume = all.get(name).and_then(|known| known.volume.as_ref());
        volume.is_some_and(|volume| volume.what.has_finalizer || !volume.what.deleting)
    }

    /// Whether the persistent volume exists or is about to be created.
    pub fn is_published(&self, name: &str) -> bool {
        self.is_known(name, |known| known.published > Published::No)
    }

    /// Whether there is a NodeVolume whose desired state is Present.
    pub fn wants_storage(&self, name: &str) -> bool {
        self.is_known(name, |known| known.desired == StorageState::Present)
    }

    /// Whether an answer of the node is pending. A node does not answer again if the storage is already as requested.
    pub fn awaits_node(&self, name: &str) -> bool {
        self.is_known(name, |known| !known.answered && !has_reached(known))
    }

    fn is_known(&self, name: &str, what: impl FnOnce(&claims::NodeVolume) -> bool) -> bool {
        let all = self.all();
        let node_volume = all.get(name).and_then(|known| known.node_volume.as_ref());
        node_volume.is_some_and(|node_volume| what(&node_volume.what))
    }

    /// Whether the volume needs no work, except what its claim may request.
    pub fn is_settled(&self, name: &str) -> bool {
        self.all().get(name).is_some_and(VolumeEntry::is_settled)
    }

    /// The volumes that need work.
    pub fn unsettled(&self) -> Vec<String> {
        let all = self.all();
        let unsettled = all.iter().filter(|(_, known)| known.needs_work());
        unsettled.map(|(name, _)| name.clone()).collect()
    }

    /// Number of volumes in each state, and of volumes whose last call failed.
    pub fn count(&self) -> (BTreeMap<VolumeState, usize>, usize) {
        let mut states = BTreeMap::from(VolumeState::ALL.map(|state| (state, 0)));
        let mut failing = 0;
        for known in self.all().values() {
            if let Some(node_volume) = &known.node_volume {
                *states.entry(known.state(&node_volume.what)).or_default() += 1;
                failing += usize::from(node_volume.what.problem.is_some());
            }
        }
        (states, failing)
    }

    /// Removes all persistent volumes except those with these UIDs. Returns the names of the removed ones.
    pub fn keep_volumes(&self, uids: &HashSet<String>) -> Vec<String> {
        self.unread_volumes.keep(uids);
        self.keep(|known| forget(&mut known.volume, uids))
    }

    /// Removes all NodeVolumes except those with these UIDs. Returns the names of the removed ones.
    pub fn keep_node_volumes(&self, uids: &HashSet<String>) -> Vec<String> {
        self.unread_node_volumes.keep(uids);
        self.keep(|known| forget(&mut known.node_volume, uids))
    }

    fn keep(&self, mut forget: impl FnMut(&mut VolumeEntry) -> bool) -> Vec<String> {
        let mut gone = Vec::new();
        self.all().retain(|name, known| {
            if forget(known) {
                gone.push(name.clone());
            }
            known.volume.is_some() || known.node_volume.is_some()
        });
        gone
    }

    fn put(&self, name: String, change: impl FnOnce(&mut VolumeEntry)) {
        let mut all = self.all();
        let known = all.entry(name.clone()).or_default();
        change(known);
        if known.volume.is_none() && known.node_volume.is_none() {
            all.remove(&name);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, VolumeEntry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a NodeVolume has changed in a way that is new to the leader. Only a leader writes `published`, and after
/// each of its writes the node's answer is pending.
fn differs(before: &claims::NodeVolume, after: &claims::NodeVolume) -> bool {
    let after = claims::NodeVolume {
        published: before.published,
        answered: before.answered || after.answered,
        ..after.clone()
    };
    *before != after
}

/// Whether two entries are equal for decisions.
fn is_same<T: PartialEq>(one: Option<&Versioned<T>>, other: Option<&Versioned<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.uid == other.uid && one.what == other.what,
        (None, None) => true,
        _ => false,
    }
}

fn replace<T>(known: &mut Option<Versioned<T>>, from: &ObjectMeta, with: Versioned<T>) {
    let version = from.resource_version.as_deref();
    if known
        .as_ref()
        .is_some_and(|known| Some(&*known.version) == version)
    {
        *known = Some(with);
    }
}

/// Checksum of a driver and its parameters, of which a watch tells a checksum.
pub(crate) fn parameters_checksum(driver: &str, parameters: &BTreeMap<String, String>) -> u64 {
    checksum(&format!("{driver} {:016x}", checksum_of(parameters)))
}

/// Removes an entry whose UID is not among these. Returns whether it did.
fn forget<T>(seen: &mut Option<Versioned<T>>, uids: &HashSet<String>) -> bool {
    let gone = seen.take_if(|seen| !uids.contains(&seen.uid));
    gone.is_some()
}

/// Reduces a NodeVolume, with checksums in place of messages: a node may write any number of long ones, which must not
/// take memory. Reported messages are read live.
fn wordless(node_volume: &NodeVolume, ours: &ServedDrivers) -> claims::NodeVolume {
    let mut node_volume = node_volume_of(node_volume, ours);
    if let Some(problem) = &mut node_volume.problem {
        problem.message = format!("{:016x}", checksum(&problem.message));
    }
    if let Some(why) = &mut node_volume.rejected {
        *why = format!("{:016x}", checksum(why));
    }
    node_volume
}

fn seen<T>(what: T, meta: &ObjectMeta) -> Versioned<T> {
    Versioned {
        what,
        version: meta.resource_version.clone().unwrap_or_default(),
        uid: uid(meta).to_owned(),
    }
}
