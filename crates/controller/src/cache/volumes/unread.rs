//! Objects of volumes that a watch could not tell whole. Nothing of them is believed: such a volume is read live.

use super::Index;
use crate::{k8s::meta::uid, runtime::reflector::Presence};
use kube::api::ObjectMeta;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The UIDs of such objects of one kind, by name.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<HashMap<String, String>>);

impl Unread {
    fn put(&self, meta: &ObjectMeta, presence: Presence) {
        let name = meta.name.clone().unwrap_or_default();
        match presence {
            Presence::There => self.all().insert(name, uid(meta).to_owned()),
            Presence::Gone => self.all().remove(&name),
        };
    }

    /// Removes an object that was told whole, or has gone.
    pub fn forget(&self, name: &str) {
        self.all().remove(name);
    }

    /// Removes all objects except those with these UIDs.
    pub fn keep(&self, uids: &HashSet<String>) {
        self.all().retain(|_, uid| uids.contains(uid));
    }

    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn has(&self, name: &str) -> bool {
        self.all().contains_key(name)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    /// Applies a watch's report of a persistent volume of which not all is known.
    pub fn volume_in_part(&self, meta: &ObjectMeta, presence: Presence) {
        self.unread_volumes.put(meta, presence);
        if presence == Presence::Gone {
            let name = meta.name.clone().unwrap_or_default();
            self.put(name, |known| {
                known.volume.take_if(|known| known.uid == uid(meta));
            });
        }
    }

    /// Like [`volume_in_part`](Self::volume_in_part), for a NodeVolume.
    pub fn node_volume_in_part(&self, meta: &ObjectMeta, presence: Presence) {
        self.unread_node_volumes.put(meta, presence);
        if presence == Presence::Gone {
            let name = meta.name.as_deref().unwrap_or_default();
            self.node_volume_deleted(name, uid(meta));
        }
    }

    /// Whether an object of the volume has to be read live.
    pub fn is_unread(&self, name: &str) -> bool {
        self.unread_volumes.has(name) || self.unread_node_volumes.has(name)
    }
}
