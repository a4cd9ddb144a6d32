//! What the node's drivers can do, as they said once.

use super::exec::{Drivers, Failure};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Of the drivers that have answered: whether kubelet has to grow their file systems.
#[derive(Debug, Default)]
pub(super) struct Capabilities(Mutex<BTreeMap<String, bool>>);

impl Capabilities {
    /// Whether kubelet has to grow a driver's file systems; it is asked, unless it has answered before.
    pub async fn node_expansion_required(
        &self,
        drivers: &Drivers,
        driver: &str,
    ) -> Result<bool, Failure> {
        let known = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(driver).copied()
        };
        match known {
            Some(known) => Ok(known),
            None => self.ask(drivers, driver).await,
        }
    }

    /// Asks a driver, also one that has answered before.
    pub async fn ask(&self, drivers: &Drivers, driver: &str) -> Result<bool, Failure> {
        let reply = drivers.call(driver, &["init".to_owned()]).await?;
        // What kubelet assumes of a driver that does not say.
        let node_expansion_required = reply.capabilities.unwrap_or_default().requires_fs_resize;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(driver.to_owned(), node_expansion_required);
        Ok(node_expansion_required)
    }
}
