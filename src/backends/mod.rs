//! The storage backends, by name. Each is a folder here and an entry in [`BACKENDS`].

mod directory;
mod doctor_directory;
mod keys;
mod loop_file;
mod lvm;

pub use keys::{PoolConfig, Pools, quoted, reserve, written_reserve};
pub use lvm::is_name_for_lvm;

use crate::check::Check;
use flexvol_storage::{
    Maintenance, Settings, VolumeDriver,
    sdk::{Capabilities, Error, ErrorKind, Result},
};
use keys::Keys;
use std::rc::Rc;
use toml::de::{self, Deserializer};

/// A backend of this executable.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// The name in a configuration.
    pub name: &'static str,
    /// Deserializes the backend's own keys of a pool.
    pub keys: fn(Deserializer<'_>) -> std::result::Result<Rc<dyn Keys>, de::Error>,
    /// Whether each volume has a file system of its own.
    pub formats: bool,
    /// The default pools of a driver that configures none, in TOML.
    pub default_pools: Option<&'static str>,
    /// The answer to `init` if `install` left no prepared line.
    pub capabilities: fn(attach: bool) -> Capabilities,
    /// Opens the backend for callouts that need storage; never called for `init`.
    pub open: fn(&Pools, Settings) -> VolumeDriver,
    /// Opens the backend for commands.
    pub maintenance: fn(&Pools, Settings) -> Box<dyn Maintenance>,
    /// Checks of `doctor` for a node with pools of this backend.
    pub node_checks: fn(&[&Pools]) -> Vec<Check>,
    /// Checks of `doctor` for each pool, titled with its name.
    pub pool_checks: fn(&Pools) -> Vec<Check>,
}

/// Every backend of this executable.
pub const BACKENDS: &[Backend] = &[loop_file::BACKEND, directory::BACKEND, lvm::BACKEND];

/// The default pool of backends whose pools are directories.
const DEFAULT_DIRECTORY: &str = "default.path = \"/var/lib/flexvol/pools/default\"";

impl Backend {
    /// Returns the configured driver, for callouts.
    pub fn driver(&self, pools: &Pools, settings: &Settings) -> VolumeDriver {
        let others = BACKENDS.iter().filter(|it| it.name != self.name);
        // Other backends are opened too, to unmount volumes from a previous configuration; they ignore these pools.
        let others = others.map(|backend| (backend.open)(pools, settings.clone()));
        (self.open)(pools, settings.clone()).and_unmount(others)
    }
}

/// Finds a backend by name.
///
/// # Errors
/// [`ErrorKind::Configuration`], with the names of all backends.
pub fn find(name: &str) -> Result<&'static Backend> {
    BACKENDS.iter().find(|backend| backend.name == name).ok_or_else(|| {
        let names: Vec<_> = BACKENDS.iter().map(|backend| backend.name).collect();
        Error::new(
            ErrorKind::Configuration,
            format!(
                "there is no backend {name:?}; expected one of: {}; set `backend` in the driver's configuration",
                names.join(", ")
            ),
        )
    })
}
