//! Cache of storage classes.

use crate::{k8s::meta::uid, runtime::reflector::Presence, support::watch_health::Watches};
use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, Resource, ResourceExt};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A watch that was silent for so long may have lost its connection: the API server sends a bookmark each minute
/// (`defaultBookmarkFrequency` in `staging/src/k8s.io/apiserver/pkg/storage/cacher`). It sends none while nothing has
/// changed since the watch began, so an idle watch is not told from a lost one, and classes are read.
const SILENT: Duration = Duration::from_secs(90);

/// How long a class that was read counts, so that an idle watch does not cost a request for each claim.
const READ_AGAIN: Duration = Duration::from_secs(60);

/// All classes. Only administrators may write them, so there are few.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    told: Mutex<HashMap<String, Arc<StorageClass>>>,
    /// Classes that were read, and when. They are kept apart, because a watch may have told of a later state.
    read: Mutex<HashMap<String, (Instant, Arc<StorageClass>)>>,
}

impl Classes {
    /// Applies a watch's report of a class.
    pub fn put(&self, class: &StorageClass, presence: Presence) {
        let name = class.name_any();
        self.read().remove(&name);
        match presence {
            Presence::There => self.told().insert(name, Arc::new(class.clone())),
            Presence::Gone => self.told().remove(&name),
        };
    }

    /// Removes all classes except those with these UIDs.
    pub fn keep(&self, uids: &HashSet<String>) {
        self.told()
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
        self.told_within(SILENT, client, watches, name).await
    }

    async fn told_within(
        &self,
        silent: Duration,
        client: &Client,
        watches: &Watches,
        name: &str,
    ) -> Result<Option<StorageClass>> {
        let known = self.told().get(name).map(Arc::clone);
        let watch = StorageClass::url_path(&(), None);
        if let Some(known) = known.filter(|_| watches.is_heard(&watch, silent)) {
            return Ok(Some(StorageClass::clone(&known)));
        }
        self.read()
            .retain(|_, (when, _)| when.elapsed() < READ_AGAIN);
        let recent = self.read().get(name).map(|(_, class)| Arc::clone(class));
        // An idle watch that is open still tells of a change at once.
        let is_open = watches.is_heard(&watch, Duration::MAX);
        if let Some(recent) = recent.filter(|_| is_open) {
            return Ok(Some(StorageClass::clone(&recent)));
        }
        let classes: Api<StorageClass> = Api::all(client.clone());
        let (when, found) = (Instant::now(), classes.get_opt(name).await);
        let found = found.context("read the storage class")?;
        if let Some(class) = &found {
            let read = (when, Arc::new(class.clone()));
            self.read().insert(name.to_owned(), read);
        }
        Ok(found)
    }

    fn read(&self) -> MutexGuard<'_, HashMap<String, (Instant, Arc<StorageClass>)>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, HashMap<String, Arc<StorageClass>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{Budget, Fence, connect},
        support::metrics::Metrics,
    };
    use flexvol_apiserver::{Key, Server};
    use serde_json::{from_value, json};

    #[test]
    fn beside_an_idle_watch_a_class_is_read_once_a_minute_until_the_watch_tells_of_it() {
        let server = Server::start().unwrap();
        let class = |pool: &str| json!({"metadata": {"name": "a"}, "provisioner": "a/b", "parameters": {"pool": pool}});
        let key = Key::new("StorageClass", "", "a");
        server.store().create(&key, class("old")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), server.kubeconfig()).unwrap();
        let (classes, watches) = (Classes::default(), Watches::default());
        let watch = StorageClass::url_path(&(), None);
        let looks = async {
            let budget = Budget::of(Some(100.0));
            let client = connect(
                Some(file.path()),
                budget,
                Fence::default(),
                Metrics::default(),
            );
            let client = client.await.unwrap();
            let pool = async || {
                let found = classes.told_within(Duration::ZERO, &client, &watches, "a");
                found.await.unwrap().unwrap().parameters.unwrap()["pool"].clone()
            };
            watches.asked(&watch);
            watches.began(&watch);
            assert_eq!([pool().await, pool().await], ["old", "old"]);
            assert_eq!(server.requests().len(), 1);
            server.store().merge(&key, &class("new")).unwrap();
            classes.put(&from_value(class("new")).unwrap(), Presence::There);
            assert_eq!(pool().await, "new");
            watches.ended(&watch);
            assert_eq!([pool().await, pool().await], ["new", "new"]);
            assert_eq!(server.requests().len(), 4, "a lost watch tells nothing");
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(looks);
    }
}
