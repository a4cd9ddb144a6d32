//! The storage backends, by name. A backend is one file or one folder here, an entry below, and its keys in
//! [`Storage`].

mod directory;
mod keys;
mod loop_file;
mod lvm;

pub use directory::DirKeys;
pub use keys::quoted;
pub use loop_file::LoopKeys;
pub use lvm::{LvmKeys, is_name_for_lvm};

use flexvol_storage::{
    Policy, Settings, Upkeep, VolumeDriver,
    sdk::{Capabilities, Error, ErrorKind, Result},
};
use keys::Keys;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::de::{self, Deserializer};

/// The places volumes are carved from, by name.
pub type Pools = BTreeMap<String, PoolConfig>;

/// One place volumes are carved from.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// What every backend heeds.
    pub policy: Policy,
    /// What only its own heeds.
    pub storage: Storage,
}

/// The keys of one backend.
#[derive(Clone, Debug)]
pub enum Storage {
    /// Those of the backend `loop`.
    Loop(LoopKeys),
    /// Those of the backend `dir`.
    Dir(DirKeys),
    /// Those of the backend `lvm`.
    Lvm(LvmKeys),
}

impl Storage {
    pub fn keys(&self) -> &dyn Keys {
        match self {
            Storage::Loop(keys) => keys,
            Storage::Dir(keys) => keys,
            Storage::Lvm(keys) => keys,
        }
    }
}

/// A backend of this executable.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Its name in a configuration.
    pub name: &'static str,
    /// Reads those keys of a pool that are its own.
    pub keys: fn(Deserializer<'_>) -> std::result::Result<Storage, de::Error>,
    /// Each volume has a file system of its own.
    pub formats: bool,
    /// The pools of a driver that configures none, in TOML.
    pub default_pools: Option<&'static str>,
    /// What `init` answers where `install` left no prepared line.
    pub capabilities: fn(attach: bool) -> Capabilities,
    /// Opens it. Called for callouts that need storage, never for `init`.
    pub open: fn(&Pools, Settings) -> VolumeDriver,
    /// Opens it for people.
    pub upkeep: fn(&Pools, Settings) -> Result<Box<dyn Upkeep>>,
}

const DEFAULT_POOLS: Option<&str> = Some("default.path = \"/var/lib/flexvol/pools/default\"");

/// Every backend of this executable.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "loop",
        keys: |input| LoopKeys::deserialize(input).map(Storage::Loop),
        formats: true,
        default_pools: DEFAULT_POOLS,
        capabilities: loop_file::capabilities,
        open: loop_file::open,
        upkeep: loop_file::upkeep,
    },
    Backend {
        name: "dir",
        keys: |input| DirKeys::deserialize(input).map(Storage::Dir),
        formats: false,
        default_pools: DEFAULT_POOLS,
        capabilities: directory::capabilities,
        open: directory::open,
        upkeep: directory::upkeep,
    },
    Backend {
        name: "lvm",
        keys: |input| LvmKeys::deserialize(input).map(Storage::Lvm),
        formats: true,
        default_pools: None,
        capabilities: lvm::capabilities,
        open: lvm::open,
        upkeep: lvm::upkeep,
    },
];

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
