//! Growth of mounted volumes' file systems. Kubelet would grow them when it next syncs the pod, after a minute or more.
//! A failure here is left to kubelet, which also reports it.

use super::{
    arguments::of_file_system,
    exec::{Drivers, Failure, LONGEST_DEADLINE},
    node_context::NodeContext,
    pod_mounts,
};
use crate::support::log;
use flexvol_sdk::{Bytes, Capabilities, ErrorClass};
use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};

/// Time for which the report of grown storage waits for the growth of its file system.
const PATIENCE: Duration = Duration::from_secs(5);

/// Grows file systems of a node's volumes.
pub(super) struct FileSystems {
    pub context: Arc<NodeContext>,
    /// Volumes whose file systems are growing.
    pub busy: Mutex<HashSet<String>>,
}

impl FileSystems {
    /// Whether a driver with these capabilities permits others than kubelet to grow its file systems.
    pub fn may_grow(capabilities: &Capabilities) -> bool {
        capabilities.requires_fs_resize && capabilities.concurrent_fs_resize
    }

    /// Grows the file system of a volume, whose storage has this size since the call with these arguments, if a pod
    /// on this node has mounted it for writing. Returns the size if the driver measured it soon. A slower call goes
    /// on: kubelet never ends one either.
    pub async fn grow(
        self: &Arc<Self>,
        driver: &str,
        name: &str,
        of_storage: &[String],
        size: Bytes,
    ) -> Option<Bytes> {
        if !self.busy().insert(name.to_owned()) {
            return None;
        }
        let this = Arc::clone(self);
        let (driver, name) = (driver.to_owned(), name.to_owned());
        let of_storage = of_storage.to_vec();
        let work = tokio::spawn(async move {
            let grown = this.call(&driver, &name, &of_storage, size).await;
            this.busy().remove(&name);
            grown.unwrap_or_else(|failure| {
                let why = failure.message.as_str();
                log::warn(
                    "a file system is left to kubelet",
                    &[("volume", &name), ("error", why)],
                );
                None
            })
        });
        timeout(PATIENCE, work).await.ok()?.ok()?
    }

    async fn call(
        &self,
        driver: &str,
        name: &str,
        of_storage: &[String],
        size: Bytes,
    ) -> Result<Option<Bytes>, Failure> {
        let Some(dir) = self.mounted(driver, name).await? else {
            return Ok(None);
        };
        // Another version of the driver may have been installed since.
        let context = &self.context;
        let capabilities = context.capabilities.ask(&context.drivers, driver).await?;
        let Some(arguments) =
            of_file_system(of_storage, &dir, size).filter(|_| FileSystems::may_grow(&capabilities))
        else {
            return Ok(None);
        };
        let drivers = Drivers {
            deadline: Duration::from_secs(LONGEST_DEADLINE),
            ..context.drivers.clone()
        };
        let started = Instant::now();
        let result = drivers.call(driver, &arguments).await;
        let called = &arguments[0];
        context.metrics.called(driver, called, started.elapsed());
        let word = if result.is_ok() { "done" } else { "failed" };
        context.metrics.operated(called, word);
        let measured = result?.volume_new_size;
        let retry = |why: String| Err(Failure::new(ErrorClass::Retryable, why));
        match measured {
            // The claim's capacity must be a measured size.
            None => return retry(format!("driver {driver} does not say what size it reached")),
            Some(measured) if measured < size => {
                return retry(format!(
                    "driver {driver} reached {measured}, and not {size}"
                ));
            }
            Some(_) => {}
        }
        // If the volume was unmounted meanwhile, the driver may have grown nothing.
        if self.mounted(driver, name).await?.as_ref() != Some(&dir) {
            return retry("the volume was unmounted meanwhile".to_owned());
        }
        log::info("called", &[("volume", name), ("step", called)]);
        Ok(Some(size))
    }

    /// The directory where a pod has mounted the volume for writing.
    async fn mounted(&self, driver: &str, name: &str) -> Result<Option<PathBuf>, Failure> {
        let table = self.context.drivers.mount_table();
        let (driver, name) = (driver.to_owned(), name.to_owned());
        let retry = |why: String| Failure::new(ErrorClass::Retryable, why);
        // The mount table may be long, and reading it may block.
        let found = spawn_blocking(move || {
            pod_mounts::writable(&table, &driver, &name)
                .map_err(|error| retry(format!("cannot read {}: {error}", table.display())))
        });
        found.await.map_err(|error| retry(error.to_string()))?
    }

    fn busy(&self) -> MutexGuard<'_, HashSet<String>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
