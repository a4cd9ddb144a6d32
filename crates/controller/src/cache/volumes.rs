//! What watches have told of volumes and NodeVolumes, as little of it as decisions need: a hundred thousand
//! volumes have to fit into tens of mebibytes.
//!
//! It may be behind. So nothing is written because of it alone: growth reads the claim, and writes to
//! what the index has on the condition of the version that the index has.

#[cfg(test)]
mod tests;

use crate::{
    api::{v1alpha1::NodeVolume, well_known::checksum},
    claims::{self, Answer, Published, Reclaim, StorageState, Volume},
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

/// Something, and the resource version that it was seen with.
#[derive(Clone, Debug)]
pub(crate) struct Versioned<T> {
    pub what: T,
    pub version: String,
    uid: String,
}

/// What is known of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeEntry {
    pub volume: Option<Versioned<Volume>>,
    pub node_volume: Option<Versioned<claims::NodeVolume>>,
    /// Of its claim.
    namespace: Arc<str>,
}

/// How many namespaces are remembered before it is looked which of them are needed.
const MOST_NAMESPACES: usize = 1024;

/// All of it, by name.
#[derive(Debug, Default)]
pub(crate) struct Index {
    all: Mutex<HashMap<String, VolumeEntry>>,
    namespaces: Mutex<HashSet<Arc<str>>>,
}

impl Index {
    /// A persistent volume is as seen, or has gone.
    pub fn volume(&self, volume: &PersistentVolume, presence: Presence, ours: &ServedDrivers) {
        let name = volume.name_any();
        let seen = volume_of(volume, ours);
        // Others' are none of our business, and may be many.
        let is_there = presence == Presence::There;
        let seen = (is_there && seen.ours).then(|| self::seen(seen, &volume.metadata));
        let namespace = holder(volume).and_then(|claim| claim.namespace.as_deref());
        let namespace = seen.as_ref().and(namespace).map(|name| self.shared(name));
        self.put(name, |known| {
            known.volume = seen;
            known.belongs_to(namespace);
        });
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
            let what = |seen: &Option<Versioned<claims::NodeVolume>>| {
                let seen = seen.as_ref()?;
                Some((seen.uid.clone(), seen.what.clone()))
            };
            changed = what(&known.node_volume) != what(&seen);
            known.node_volume = seen;
            known.belongs_to(namespace);
        });
        changed
    }

    /// A persistent volume of this version was written, and is as the answer says. A watch may have been
    /// faster, and have told of what others wrote after that, and nothing tells of it again.
    pub fn volume_written(&self, from: &str, volume: &PersistentVolume, ours: &ServedDrivers) {
        let seen = seen(volume_of(volume, ours), &volume.metadata);
        self.put(volume.name_any(), |known| {
            replace(&mut known.volume, from, seen)
        });
    }

    /// The same of a NodeVolume.
    pub fn node_volume_written(&self, from: &str, node_volume: &NodeVolume, ours: &ServedDrivers) {
        let seen = seen(wordless(node_volume, ours), &node_volume.metadata);
        self.put(node_volume.name_any(), |known| {
            replace(&mut known.node_volume, from, seen)
        });
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

    /// Whether a persistent volume of ours is known.
    pub fn has_volume(&self, name: &str) -> bool {
        let all = self.all();
        all.get(name).is_some_and(|known| known.volume.is_some())
    }

    /// Whether a NodeVolume is known.
    pub fn has_node_volume(&self, name: &str) -> bool {
        let all = self.all();
        all.get(name)
            .is_some_and(|known| known.node_volume.is_some())
    }

    /// Whether volume and NodeVolume are known.
    pub fn has_both(&self, name: &str) -> bool {
        let all = self.all();
        let known = all.get(name);
        known.is_some_and(|known| known.volume.is_some() && known.node_volume.is_some())
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

fn replace<T>(known: &mut Option<Versioned<T>>, from: &str, with: Versioned<T>) {
    if known.as_ref().is_some_and(|known| known.version == from) {
        *known = Some(with);
    }
}

impl VolumeEntry {
    fn belongs_to(&mut self, namespace: Option<Arc<str>>) {
        if let Some(namespace) = namespace {
            self.namespace = namespace;
        }
    }

    fn is_settled(&self) -> bool {
        let (Some(volume), Some(node_volume)) = (&self.volume, &self.node_volume) else {
            return false;
        };
        let (volume, node_volume) = (&volume.what, &node_volume.what);
        let reached = match node_volume.answer {
            Answer::Present(Some(size)) => size >= node_volume.size,
            Answer::Present(None) => true,
            Answer::None | Answer::Absent => false,
        };
        let stays =
            node_volume.desired == StorageState::Present && !volume.released && !volume.deleting;
        let is_there = reached && !volume.is_elsewhere(node_volume);
        is_there
            && stays
            && node_volume.published == Published::Seen
            && node_volume.problem.is_none()
    }

    /// Nobody asks anything of it any more, and it says `Retain`.
    fn is_kept(&self) -> bool {
        let volume = self.volume.as_ref().map(|seen| &seen.what);
        volume.is_some_and(|volume| {
            volume.released && !volume.deleting && volume.reclaim == Reclaim::Retain
        })
    }
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
