//! Storage classes that were read lately.

use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Kubernetes has looked at the class when the claim was edited; so it need not be read each time.
const CLASS_KNOWN: Duration = Duration::from_secs(60);

/// Classes that were read lately, and that let their volumes grow: of others there may be news.
#[derive(Debug, Default)]
pub(crate) struct Classes(Mutex<HashMap<String, (Instant, StorageClass)>>);

impl Classes {
    /// It may have changed.
    pub fn forget(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(name);
    }

    /// Reads a class, unless that was done lately.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn get(&self, client: &Client, name: &str) -> Result<Option<StorageClass>> {
        let known = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(name).cloned()
        };
        if let Some((when, class)) = known
            && when.elapsed() < CLASS_KNOWN
        {
            return Ok(Some(class));
        }
        let classes: Api<StorageClass> = Api::all(client.clone());
        let class = classes
            .get_opt(name)
            .await
            .context("read the storage class")?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (when, _)| when.elapsed() < CLASS_KNOWN);
        if let Some(class) = &class
            && class.allow_volume_expansion == Some(true)
        {
            all.insert(name.to_owned(), (Instant::now(), class.clone()));
        }
        Ok(class)
    }
}
