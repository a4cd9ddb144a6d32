//! The storage backends, by name. A backend is one file or one folder here and one line below.

mod directory;
mod loop_file;
mod lvm;

use crate::config::{Config, Fault, Keys, Storage};
use flexvol_storage::{
    Upkeep, VolumeDriver,
    sdk::{Capabilities, Error, ErrorKind, Result},
};

/// A backend of this executable.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Its name in a configuration.
    pub name: &'static str,
    /// Takes what a pool of it is told.
    pub storage: fn(&mut Keys) -> std::result::Result<Storage, Fault>,
    /// The directory of the pool of a driver that configures none.
    pub default_pool: Option<&'static str>,
    /// What `init` answers where `install` left no prepared line.
    pub capabilities: fn(attach: bool) -> Capabilities,
    /// Opens it. Called for callouts that need storage, never for `init`.
    pub open: fn(&Config) -> VolumeDriver,
    /// Opens it for people.
    pub upkeep: fn(&Config) -> Result<Box<dyn Upkeep>>,
}

/// Every backend of this executable.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "loop",
        storage: Storage::images,
        default_pool: Some("/var/lib/flexvol/pools/default"),
        capabilities: loop_file::capabilities,
        open: loop_file::open,
        upkeep: loop_file::upkeep,
    },
    Backend {
        name: "dir",
        storage: Storage::directories,
        default_pool: Some("/var/lib/flexvol/pools/default"),
        capabilities: directory::capabilities,
        open: directory::open,
        upkeep: directory::upkeep,
    },
    Backend {
        name: "lvm",
        storage: Storage::volume_group,
        default_pool: None,
        capabilities: lvm::capabilities,
        open: lvm::open,
        upkeep: lvm::upkeep,
    },
];

/// The configured driver, for callouts.
pub fn open(config: &Config) -> VolumeDriver {
    let others = BACKENDS.iter().filter(|it| it.name != config.backend.name);
    // A pool of one backend is none of another.
    let others = others.map(|backend| (backend.open)(config));
    (config.backend.open)(config).and_unmount(others)
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
