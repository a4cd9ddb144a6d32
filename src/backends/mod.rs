//! The storage backends, by name. A backend is one folder here and an entry in [`BACKENDS`].

mod directory;
mod doctor_directory;
mod keys;
mod loop_file;
mod lvm;

pub use keys::{PoolConfig, Pools, quoted, reserve, written_reserve};
pub use lvm::is_name_for_lvm;

use crate::check::Check;
use flexvol_storage::{
    Settings, Upkeep, VolumeDriver,
    sdk::{Capabilities, Error, ErrorKind, Result},
};
use keys::Keys;
use std::rc::Rc;
use toml::de::{self, Deserializer};

/// A backend of this executable.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Its name in a configuration.
    pub name: &'static str,
    /// Reads those keys of a pool that are its own.
    pub keys: fn(Deserializer<'_>) -> std::result::Result<Rc<dyn Keys>, de::Error>,
    /// Each volume has a file system of its own.
    pub formats: bool,
    /// The pools of a driver that configures none, in TOML.
    pub default_pools: Option<&'static str>,
    /// What `init` answers where `install` left no prepared line.
    pub capabilities: fn(attach: bool) -> Capabilities,
    /// Opens it. Called for callouts that need storage, never for `init`.
    pub open: fn(&Pools, Settings) -> VolumeDriver,
    /// Opens it for people.
    pub upkeep: fn(&Pools, Settings) -> Box<dyn Upkeep>,
    /// What `doctor` says of the node that has pools of it.
    pub node_checks: fn(&[&Pools]) -> Vec<Check>,
    /// What `doctor` says of each of its pools, about its name.
    pub pool_checks: fn(&Pools) -> Vec<Check>,
}

/// Every backend of this executable.
pub const BACKENDS: &[Backend] = &[loop_file::BACKEND, directory::BACKEND, lvm::BACKEND];

/// The pools of a backend whose pools are directories.
const DEFAULT_DIRECTORY: &str = "default.path = \"/var/lib/flexvol/pools/default\"";

impl Backend {
    /// The configured driver, for callouts.
    pub fn driver(&self, pools: &Pools, settings: &Settings) -> VolumeDriver {
        let others = BACKENDS.iter().filter(|it| it.name != self.name);
        // A pool of one backend is none of another.
        let others = others.map(|backend| (backend.open)(pools, settings.clone()));
        (self.open)(pools, settings.clone()).and_unmount(others)
    }
}

/// The backend of that name.
///
/// # Errors
/// [`ErrorKind::Configuration`] naming the ones there are.
pub fn find(name: &str) -> Result<&'static Backend> {
    BACKENDS.iter().find(|backend| backend.name == name).ok_or_else(|| {
        let names: Vec<_> = BACKENDS.iter().map(|backend| backend.name).collect();
        Error::new(
            ErrorKind::Configuration,
            format!(
                "there is no backend {name:?} (there is: {}); set `backend` in the driver's configuration",
                names.join(", ")
            ),
        )
    })
}
