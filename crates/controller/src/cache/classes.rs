//! Cache of storage classes.

use crate::{k8s::meta::uid, runtime::reflector::Presence, support::watch_health::Watches};
use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, Resource, ResourceExt};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A watch that was silent for so long may have lost its connection: the API server sends a bookmark each minute
/// (`defaultBookmarkFrequency` in `staging/src/k8s.io/apiserver/pkg/storage/cacher`).
const SILENT: Duration = Duration::from_secs(90);

/// All classes. Only administrators may write them, so there are few.
#[derive(Debug, Default)]
pub(crate) struct Classes(Mutex<HashMap<String, Arc<StorageClass>>>);

impl Classes {
    /// Applies a watch's report of a class.
    pub fn put(&self, class: &StorageClass, presence: Presence) {
        let name = class.name_any();
        match presence {
            Presence::There => self.all().insert(name, Arc::new(class.clone())),
            Presence::Gone => self.all().remove(&name),
        };
    }

    /// Removes all classes except those with these UIDs.
    pub fn keep(&self, uids: &HashSet<String>) {
        self.all()
            .retain(|_, class| uids.contains(uid(&class.metadata)));
    }

    /// Returns a class from the cache, or else reads it, also if the watch of classes was not heard for some time. No
    /// write that follows from a class is refused because the class has changed.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn get(
        &self,
        client: &Client,
        watches: &Watches,
        name: &str,
    ) -> Result<Option<StorageClass>> {
        let known = self.all().get(name).map(Arc::clone);
        let is_told = watches.is_heard(&StorageClass::url_path(&(), None), SILENT);
        if let Some(known) = known.filter(|_| is_told) {
            return Ok(Some(StorageClass::clone(&known)));
        }
        let classes: Api<StorageClass> = Api::all(client.clone());
        classes
            .get_opt(name)
            .await
            .context("read the storage class")
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<StorageClass>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
