//! The backend `dir`: a volume is a directory of a file system of the node, limited by its quotas.

use super::{
    Pools, Storage,
    keys::{Keys, absolute, quoted, reserve, reserve_of_a_directory, written_reserve},
};
use flexvol_storage::{
    Asset, Backend, Catalog, Directory, DirectoryBackend, DirectoryDriver, Keeper,
    ManagedDirectories, Mark, Pool, Settings, Upkeep, VolumeDriver, VolumeId,
    host::{
        Reserve,
        fs::quota::Projects,
        pool::{self, Limited, Remains, Rules},
    },
    sdk::{Bytes, Capabilities, Error, ErrorKind, Options, Result, VolumeName},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{os::fd::OwnedFd, path::PathBuf, rc::Rc, time::Duration};

/// What a pool of directories is told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirKeys {
    /// The directory, made a pool by `flexvol pool init`.
    #[serde(deserialize_with = "absolute")]
    pub path: PathBuf,
    #[serde(default = "reserve_of_a_directory", deserialize_with = "reserve")]
    reserve: Reserve,
    #[serde(default)]
    overcommit: bool,
    #[serde(default, deserialize_with = "projects")]
    projects: Projects,
}

fn projects<'de, D: Deserializer<'de>>(input: D) -> std::result::Result<Projects, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map_err(D::Error::custom)
}

impl DirKeys {
    /// What is left free, what may be promised, and which projects volumes get.
    pub fn rules(&self) -> Rules {
        Rules {
            reserve: self.reserve,
            overcommit: self.overcommit,
            projects: self.projects,
        }
    }
}

impl Keys for DirKeys {
    fn place(&self) -> (&'static str, PathBuf) {
        ("path", self.path.clone())
    }

    fn written(&self) -> Vec<(&'static str, String)> {
        vec![
            ("path", quoted(&self.path)),
            ("reserve", written_reserve(self.reserve)),
            ("overcommit", self.overcommit.to_string()),
            ("projects", quoted(self.projects.to_string())),
        ]
    }
}

/// A pool of directories.
struct Directories {
    pool: pool::Pool,
    rules: Rules,
    /// Where the driver's other pools are.
    others: Rc<[PathBuf]>,
}

/// What a driver on this backend can do.
pub fn capabilities(attach: bool) -> Capabilities {
    Capabilities {
        attach,
        // Files of xfs, ext4 and btrfs have labels of their own, and a new directory has the
        // pool's, with which no container may write; as for local volumes of Kubernetes
        // (pkg/volume/local/local.go, GetAttributes).
        selinux_relabel: true,
        ..DirectoryDriver::<Directories>::capabilities()
    }
}

/// Opens the driver.
pub fn open(pools: &Pools, settings: Settings) -> VolumeDriver {
    DirectoryDriver::over(own(pools), settings)
}

/// The same driver as people see it.
pub fn upkeep(pools: &Pools, settings: Settings) -> Result<Box<dyn Upkeep>> {
    Ok(Box::new(Keeper::<Directory<Directories>>::new(
        own(pools),
        settings,
    )))
}

/// Each pool is opened when a volume of it is asked for.
fn own(pools: &Pools) -> Vec<Pool<Directories>> {
    let path = |storage: &Storage| match storage {
        Storage::Dir(keys) => Some(keys.path.clone()),
        _ => None,
    };
    let own = pools.iter().filter_map(|(name, pool)| {
        let Storage::Dir(keys) = pool.storage.clone() else {
            return None;
        };
        let others = pools.iter().filter(|(other, _)| *other != name);
        let others: Rc<[PathBuf]> = others.filter_map(|(_, it)| path(&it.storage)).collect();
        Some(Pool::new(name, pool.policy.clone(), move || {
            Directories::open(&keys, others.clone())
        }))
    });
    own.collect()
}

impl Directories {
    fn open(keys: &DirKeys, others: Rc<[PathBuf]>) -> Result<Directories> {
        Ok(Directories {
            pool: pool::Pool::open(&keys.path)?,
            rules: keys.rules(),
            others,
        })
    }

    /// Each pool counts what it promised, and none what another one did.
    fn expect_alone(&self) -> Result<()> {
        if self.rules.overcommit {
            return Ok(());
        }
        for other in self.others.iter() {
            let shares = self.pool.shares_with(other).map_err(|error| {
                error.context(
                    "cannot tell whether another pool of this driver promises the same space",
                )
            })?;
            if shares {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    "another pool of this driver is on the same file system, and both would promise its space; give each a file system of its own, or say `overcommit`",
                ));
            }
        }
        Ok(())
    }

    fn limited(&self) -> Result<Limited<'_>> {
        self.pool.limited(&self.rules)
    }
}

impl Backend for Directories {
    fn catalog(&self) -> &dyn Catalog {
        &self.pool
    }

    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
        // That there is none is known also where nothing is limited.
        let Some(directory) = self.pool.find_directory(volume)? else {
            return Ok(None);
        };
        let size = self.limited()?.size(&directory)?;
        Ok(Some(Asset {
            thin: self.rules.overcommit,
            promised: self.rules.overcommit,
            ..Asset::marked(size, directory.mark()?)?
        }))
    }

    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        self.expect_alone()?;
        self.limited()?.create(volume, size, mark)
    }

    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        self.pool.directory(volume)?.set_mark(mark)
    }

    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        self.expect_alone()?;
        self.limited()?.grow(volume, to)
    }

    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        self.pool.remove_directory(volume)
    }

    fn capacity(&self, _: &Options) -> Result<Bytes> {
        self.expect_alone()?;
        self.limited()?.available()
    }
}

impl DirectoryBackend for Directories {
    fn open(&self, volume: &VolumeId) -> Result<OwnedFd> {
        Ok(self.pool.directory(volume)?.into())
    }

    fn outermost(&self, volume: &VolumeId) -> Result<OwnedFd> {
        Ok(self.pool.directory(volume)?.outermost())
    }

    fn restore(&self, volume: &VolumeId) -> Result<()> {
        self.limited()?.restore(volume)
    }
}

impl ManagedDirectories for Directories {
    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        self.pool.dangling_names(age)
    }

    fn remains(&self) -> Result<Vec<Remains>> {
        self.pool.remains()
    }

    fn clear(&self, remains: &Remains) -> Result<bool> {
        self.pool.clear(remains)
    }

    fn lost_limits(&self) -> Result<Vec<VolumeId>> {
        // Where nothing is limited now, nothing can be restored; doctor says so.
        match self.limited() {
            Err(error) if error.kind() == ErrorKind::Configuration => Ok(Vec::new()),
            limited => limited?.lost(),
        }
    }
}
