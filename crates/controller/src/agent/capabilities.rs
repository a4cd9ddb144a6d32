//! What the node's drivers can do, as they said once.

use super::exec::{Drivers, Failure};
use flexvol_sdk::Capabilities;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Of the drivers that have answered, what they can do.
#[derive(Debug, Default)]
pub(super) struct KnownCapabilities(Mutex<BTreeMap<String, Capabilities>>);

impl KnownCapabilities {
    /// What a driver can do; it is asked, unless it has answered before.
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

    /// Asks a driver, also one that has answered before.
    pub async fn ask(&self, drivers: &Drivers, driver: &str) -> Result<Capabilities, Failure> {
        let reply = drivers.call(driver, &["init".to_owned()]).await?;
        // What kubelet assumes of a driver that does not say.
        let capabilities = reply.capabilities.unwrap_or_default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(driver.to_owned(), capabilities);
        Ok(capabilities)
    }
}
