//! Cache of the drivers' capabilities.

use super::exec::{Drivers, Failure};
use flexvol_sdk::Capabilities;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Capabilities of the drivers that have answered.
#[derive(Debug, Default)]
pub(super) struct KnownCapabilities(Mutex<BTreeMap<String, Capabilities>>);

impl KnownCapabilities {
    /// Returns a driver's capabilities, from the cache or by a call. Those in the cache may be of a version that was
    /// replaced up to a heartbeat ago.
    pub async fn of(&self, drivers: &Drivers, driver: &str) -> Result<Capabilities, Failure> {
        let known = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(driver).copied()
        };
        match known {
            Some(known) => Ok(known),
            None => self.ask(drivers, driver).await,
        }
    }

    /// Calls a driver for its capabilities, and caches them.
    pub async fn ask(&self, drivers: &Drivers, driver: &str) -> Result<Capabilities, Failure> {
        let reply = drivers.call(driver, &["init".to_owned()]).await?;
        // Kubelet's defaults apply to a driver that does not report them.
        let capabilities = reply.capabilities.unwrap_or_default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(driver.to_owned(), capabilities);
        Ok(capabilities)
    }
}
