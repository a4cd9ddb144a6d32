//! Cache of storage classes.

use crate::{k8s::meta::uid, runtime::reflector::Presence};
use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

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

    /// Returns a class from the cache, or else reads it.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn get(&self, client: &Client, name: &str) -> Result<Option<StorageClass>> {
        let known = self.all().get(name).map(Arc::clone);
        if let Some(known) = known {
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
