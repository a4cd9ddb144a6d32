//! What this process wrote lately: watches tell of it too, and that is no reason to look again.

use crate::k8s::meta::uid;
use kube::api::ObjectMeta;
use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, PoisonError},
};

/// How many writes are remembered.
const REMEMBERED: usize = 4096;

/// The resource versions of recent writes, and the UIDs of what was deleted.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites(Mutex<Versions>);

#[derive(Debug, Default)]
struct Versions {
    oldest_first: VecDeque<String>,
    all: HashSet<String>,
}

impl OwnWrites {
    /// The API server has answered with this object.
    pub fn add(&self, meta: &ObjectMeta) {
        self.remember(meta.resource_version.clone().unwrap_or_default());
    }

    fn remember(&self, version: String) {
        let mut versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if versions.all.insert(version.clone()) {
            versions.oldest_first.push_back(version);
        }
        if versions.oldest_first.len() > REMEMBERED
            && let Some(oldest) = versions.oldest_first.pop_front()
        {
            versions.all.remove(&oldest);
        }
    }

    /// An object was deleted.
    pub fn add_deletion(&self, meta: &ObjectMeta) {
        self.remember(uid(meta).to_owned());
    }

    /// Whether this process has deleted an object.
    pub fn has_deleted(&self, meta: &ObjectMeta) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.all.contains(uid(meta))
    }

    /// Whether this process wrote an object as it is.
    pub fn has(&self, meta: &ObjectMeta) -> bool {
        let versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let version = meta.resource_version.as_deref().unwrap_or_default();
        versions.all.contains(version)
    }
}
