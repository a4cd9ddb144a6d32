//! What watches have told of volumes and NodeVolumes, as little of it as decisions need: a hundred thousand
//! volumes have to fit into tens of mebibytes.
//!
//! It may be behind. So nothing is written because of it alone: whoever decides by it reads the claim, and writes to
//! what the index has on the condition of the version that the index has.

mod entry;
#[cfg(test)]
mod tests;

pub(crate) use entry::{Versioned, VolumeEntry, has_reached};

use crate::{
    api::{
        v1alpha1::NodeVolume,
        well_known::{checksum, claim_uid},
    },
    claims::{self, Published, StorageState},
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

/// How many namespaces are remembered before it is looked which of them are needed.
const MOST_NAMESPACES: usize = 1024;

/// All of it, by name.
#[derive(Debug, Default)]
pub(crate) struct Index {
    all: Mutex<HashMap<String, VolumeEntry>>,
    /// Checksums of the names of others' persistent volumes. Those that have gone unseen cost a look.
    others: Mutex<HashSet<u64>>,
    namespaces: Mutex<HashSet<Arc<str>>>,
}

impl Index {
    /// A persistent volume is as seen, or has gone. Says whether that is something else for decisions.
    pub fn volume(
        &self,
        volume: &PersistentVolume,
        presence: Presence,
        ours: &ServedDrivers,
    ) -> bool {
        let name = volume.name_any();
        let seen = volume_of(volume, ours);
        // Others' are none of our business, and may be many.
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

    /// A NodeVolume is as seen, or has gone. Says whether that is something else for decisions: a node that
    /// fails again and again says the same each time.
    pub fn node_volume(
        &self,
        node_volume: &NodeVolume,
        presence: Presence,
        ours: &ServedDrivers,
    ) -> bool {
        let is_there = presence == Presence::There;
        let seen = is_there.then(|| self::seen(wordless(node_volume, ours), &node_volume.metadata));
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
            known.ordered = ordered(&node_volume.spec.driver, &node_volume.spec.parameters);
            known.node_volume = seen;
        });
        changed
    }

    /// A persistent volume that was as `from` was written, and is as the answer says. A watch may have been
    /// faster, and have told of what others wrote after that, and nothing tells of it again.
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

    /// The same of a NodeVolume.
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

    /// A NodeVolume was made. If a watch was faster and it is gone again, it is known until all are listed; one that
    /// has not answered is read whenever something is to be done.
    pub fn node_volume_created(&self, node_volume: &NodeVolume, ours: &ServedDrivers) {
        if !self.has_node_volume(&node_volume.name_any()) {
            self.node_volume(node_volume, Presence::There, ours);
        }
    }

    /// The NodeVolume of this UID is not there any more.
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

    /// Whether a persistent volume of that name may be somebody else's.
    pub fn may_be_others(&self, name: &str) -> bool {
        self.others().contains(&checksum(name))
    }

    fn others(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volumes whose storage a node has, or shall have.
    pub fn of_node(&self, node: &str) -> Vec<String> {
        let all = self.all();
        let there = all.iter().filter(|(_, known)| {
            let node_volume = known.node_volume.as_ref();
            node_volume.is_some_and(|node_volume| node_volume.what.node == node)
        });
        there.map(|(name, _)| name.clone()).collect()
    }

    /// Keeps those nodes of which no storage is ordered.
    pub fn keep_free<T>(&self, nodes: &mut BTreeMap<String, T>) {
        let all = self.all();
        for node_volume in all.values().filter_map(|known| known.node_volume.as_ref()) {
            nodes.remove(&node_volume.what.node);
        }
    }

    /// What is known of a volume.
    pub fn get(&self, name: &str) -> VolumeEntry {
        self.all().get(name).cloned().unwrap_or_default()
    }

    /// The namespace of the claim of a volume; empty, if that is not known.
    pub fn namespace(&self, name: &str) -> Arc<str> {
        let all = self.all();
        let known = all.get(name);
        known.map_or_else(Arc::default, |known| Arc::clone(&known.namespace))
    }

    /// There are few, and each is the namespace of many.
    fn shared(&self, namespace: &str) -> Arc<str> {
        let mut all = self
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(namespace) {
            return Arc::clone(known);
        }
        // Those that nobody has any more make room.
        if all.len() >= MOST_NAMESPACES {
            all.retain(|known| Arc::strong_count(known) > 1);
        }
        let new = Arc::<str>::from(namespace);
        all.insert(Arc::clone(&new));
        new
    }

    /// Whether anything of a volume is known.
    pub fn knows(&self, name: &str) -> bool {
        self.all().contains_key(name)
    }

    /// Whether a persistent volume of ours is known.
    pub fn has_volume(&self, name: &str) -> bool {
        let all = self.all();
        all.get(name).is_some_and(|known| known.volume.is_some())
    }

    /// Whether a NodeVolume is known.
    pub fn has_node_volume(&self, name: &str) -> bool {
        self.is_known(name, |_| true)
    }

    /// Whether a persistent volume of ours is known that has not been let go of.
    pub fn is_held(&self, name: &str) -> bool {
        let all = self.all();
        let volume = all.get(name).and_then(|known| known.volume.as_ref());
        volume.is_some_and(|volume| volume.what.has_finalizer || !volume.what.deleting)
    }

    /// Whether the persistent volume is made, or about to be.
    pub fn is_published(&self, name: &str) -> bool {
        self.is_known(name, |known| known.published > Published::No)
    }

    /// Whether a NodeVolume is known that wants storage.
    pub fn wants_storage(&self, name: &str) -> bool {
        self.is_known(name, |known| known.desired == StorageState::Present)
    }

    /// Whether its node has not answered yet what is ordered, and will: what is there already it does not say again.
    pub fn awaits_node(&self, name: &str) -> bool {
        self.is_known(name, |known| !known.answered && !has_reached(known))
    }

    fn is_known(&self, name: &str, what: impl FnOnce(&claims::NodeVolume) -> bool) -> bool {
        let all = self.all();
        let node_volume = all.get(name).and_then(|known| known.node_volume.as_ref());
        node_volume.is_some_and(|node_volume| what(&node_volume.what))
    }

    /// Whether nothing is to be done for a volume but what its claim asks for.
    pub fn is_settled(&self, name: &str) -> bool {
        self.all().get(name).is_some_and(VolumeEntry::is_settled)
    }

    /// The volumes for which something is to be done.
    pub fn unsettled(&self) -> Vec<String> {
        let all = self.all();
        let unsettled = all
            .iter()
            .filter(|(_, known)| known.node_volume.is_some() && !known.is_settled());
        unsettled.map(|(name, _)| name.clone()).collect()
    }

    /// For how many volumes something is to be done, and how many of them failed when it was tried.
    pub fn count(&self) -> (usize, usize) {
        let all = self.all();
        let node_volumes = || all.values().filter(|known| known.node_volume.is_some());
        let fails = |known: &VolumeEntry| {
            let node_volume = known.node_volume.as_ref();
            node_volume.is_some_and(|node_volume| node_volume.what.problem.is_some())
        };
        (
            node_volumes()
                .filter(|known| !known.is_settled() && !known.is_kept())
                .count(),
            node_volumes().filter(|known| fails(known)).count(),
        )
    }

    /// Forgets all volumes but those with these UIDs, and says which.
    pub fn keep_volumes(&self, uids: &HashSet<String>) -> Vec<String> {
        self.keep(|known| forget(&mut known.volume, uids))
    }

    /// Forgets all NodeVolumes but those with these UIDs, and says which.
    pub fn keep_node_volumes(&self, uids: &HashSet<String>) -> Vec<String> {
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

/// Whether something has changed of a NodeVolume that whoever leads does not know already: how far the persistent
/// volume is only a leader writes, and after each write its node has not answered.
fn differs(before: &claims::NodeVolume, after: &claims::NodeVolume) -> bool {
    let after = claims::NodeVolume {
        published: before.published,
        answered: before.answered || after.answered,
        ..after.clone()
    };
    *before != after
}

/// Whether both are the same for decisions.
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

/// A checksum of what is ordered of a driver.
pub(crate) fn ordered(driver: &str, parameters: &BTreeMap<String, String>) -> u64 {
    checksum(&format!("{driver} {parameters:?}"))
}

/// Whether it was known and is not among these.
fn forget<T>(seen: &mut Option<Versioned<T>>, uids: &HashSet<String>) -> bool {
    let gone = seen.take_if(|seen| !uids.contains(&seen.uid));
    gone.is_some()
}

/// A NodeVolume with a checksum in place of what hinders: a node's words, of as many NodeVolumes as it likes, take no
/// memory, and whoever is told is told what is read live.
fn wordless(node_volume: &NodeVolume, ours: &ServedDrivers) -> claims::NodeVolume {
    let mut node_volume = node_volume_of(node_volume, ours);
    if let Some(problem) = &mut node_volume.problem {
        problem.message = format!("{:016x}", checksum(&problem.message));
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
