//! The backend `dir`: a volume is a directory of a file system of the node, limited by its quotas.

mod doctor;
mod keys;

use super::{
    DEFAULT_DIRECTORY, Pools,
    keys::{of, read},
};
use flexvol_storage::{
    Asset, Backend, Catalog, Directory, DirectoryBackend, DirectoryDriver, ManagedDirectories,
    Mark, Pool, PoolAdmin, Space, VolumeId,
    host::pool::{self, Limited, Remains, Rules},
    mark::State,
    sdk::{Bytes, Capabilities, Error, ErrorKind, Options, Result, VolumeName},
};
use keys::DirKeys;
use std::{os::fd::OwnedFd, path::PathBuf, rc::Rc, time::Duration};

/// A pool of directories.
struct Directories {
    pool: pool::Pool,
    rules: Rules,
    /// The paths of the driver's other pools.
    others: Rc<[PathBuf]>,
}

pub const BACKEND: super::Backend = super::Backend {
    name: "dir",
    keys: read::<DirKeys>,
    formats: false,
    default_pools: Some(DEFAULT_DIRECTORY),
    capabilities,
    open: |pools, settings| DirectoryDriver::over(pools_of(pools), settings),
    maintenance: |pools, settings| {
        Box::new(PoolAdmin::<Directory<Directories>>::new(
            pools_of(pools),
            settings,
        ))
    },
    node_checks: |_| Vec::new(),
    pool_checks: doctor::of_pools,
};

/// Returns the capabilities of a driver on this backend.
fn capabilities(attach: bool) -> Capabilities {
    let mut capabilities = DirectoryDriver::<Directories>::capabilities();
    capabilities.attach = attach;
    // On xfs, ext4 and btrfs every file has its own label, and a new directory gets the pool's, with which no
    // container may write. Kubernetes relabels local volumes likewise (pkg/volume/local/local.go, GetAttributes).
    capabilities.selinux_relabel = true;
    capabilities
}

/// Returns the configured pools. Each is opened when a callout needs it.
fn pools_of(pools: &Pools) -> Vec<Pool<Directories>> {
    let found = of::<DirKeys>(pools).map(|(name, policy, keys)| {
        let others = of::<DirKeys>(pools).filter(|(other, ..)| *other != name);
        let others: Rc<[PathBuf]> = others.map(|(_, _, other)| other.path.clone()).collect();
        let (keys, path) = (keys.clone(), keys.path.clone());
        let open = move || Directories::open(&keys, others.clone());
        Pool::new(name, policy.clone(), open).at(path)
    });
    found.collect()
}

impl Directories {
    fn open(keys: &DirKeys, others: Rc<[PathBuf]>) -> Result<Directories> {
        Ok(Directories {
            pool: pool::Pool::open(&keys.path)?,
            rules: keys.rules(),
            others,
        })
    }

    /// Fails if another pool is on the same file system, because each pool counts only its own promises.
    fn expect_alone(&self) -> Result<()> {
        if self.rules.overcommit {
            return Ok(());
        }
        for other in self.others.iter() {
            let beside = self.pool.beside(other).map_err(|error| {
                error.context(
                    "cannot tell whether another pool of this driver promises the same space",
                )
            })?;
            if beside.is_some() {
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
        // Look for the directory first: a missing volume is reported even if quotas are off.
        let Some(directory) = self.pool.find_directory(volume)? else {
            return Ok(None);
        };
        let size = self.limited()?.size(&directory)?;
        let thin = self.rules.overcommit;
        Ok(Some(
            Asset::marked(size, directory.mark()?)?.with_thin(thin, thin),
        ))
    }

    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        self.expect_alone()?;
        self.limited()?.create(volume, size, mark)
    }

    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        let directory = self.pool.directory(volume)?;
        match directory.set_mark(mark) {
            // Without space for the mark, the volume is removed at once: removing it frees space.
            Err(full)
                if full.kind() == ErrorKind::Exhausted
                    && mark.state == State::Deleting
                    && directory.remove_root(volume)? =>
            {
                log::warn!("removed the volume unmarked: {}", full.report());
                self.destroy(volume)
            }
            marked => marked,
        }
    }

    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        self.expect_alone()?;
        self.limited()?.grow(volume, to)
    }

    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        self.pool.remove_directory(volume)
    }

    fn size(&self) -> Result<Option<Bytes>> {
        Ok(Some(self.pool.space()?.size))
    }

    fn capacity(&self, _: &Options) -> Result<Bytes> {
        self.expect_alone()?;
        self.limited()?.available()
    }

    fn space(&self, _: &Options) -> Result<Space> {
        self.expect_alone()?;
        let found = self.limited()?.promises()?;
        Ok(Space {
            largest: found.available,
            size: self.size()?,
            free: Some(found.available),
            promised: found.promised,
            shortfall: found.shortfall.map(|shortfall| shortfall.bytes),
        })
    }
}

impl DirectoryBackend for Directories {
    fn open(&self, volume: &VolumeId) -> Result<OwnedFd> {
        let directory = self.pool.directory(volume)?;
        directory.expect_root()?;
        Ok(directory.into())
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
        // While quotas are off no limit can be restored; `doctor` reports that.
        match self.limited() {
            Err(error) if error.kind() == ErrorKind::Configuration => Ok(Vec::new()),
            limited => limited?.lost(),
        }
    }

    fn lacks_limit(&self, volume: &VolumeId) -> Result<bool> {
        self.limited()?.is_lost(volume)
    }
}
