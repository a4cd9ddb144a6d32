//! Recent writes of this process. Watches report them too, and they are no reason to reconcile.

use crate::k8s::meta::uid;
use kube::api::ObjectMeta;
use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, PoisonError},
};

/// Number of remembered writes.
const REMEMBERED: usize = 4096;

/// Resource versions of recent writes, and UIDs of deleted objects.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites(Mutex<Versions>);

#[derive(Debug, Default)]
struct Versions {
    oldest_first: VecDeque<String>,
    all: HashSet<String>,
}

impl OwnWrites {
    /// Remembers a written object, as the API server has returned it.
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

    /// Remembers a deleted object.
    pub fn add_deletion(&self, meta: &ObjectMeta) {
        self.remember(uid(meta).to_owned());
    }

    /// Whether this process has deleted the object.
    pub fn has_deleted(&self, meta: &ObjectMeta) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.all.contains(uid(meta))
    }

    /// Whether this process wrote this version of the object.
    pub fn has(&self, meta: &ObjectMeta) -> bool {
        let versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let version = meta.resource_version.as_deref().unwrap_or_default();
        versions.all.contains(version)
    }
}
