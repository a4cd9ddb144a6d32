//! Administration of a driver's pools beyond callouts: adoption and cleaning up.

mod adopt;
mod tidy;

use crate::{
    backend::{BlockBackend, DirectoryBackend},
    block::Block,
    directory::Directory,
    inventory::{Explanation, Inventory, PoolReport, Subject},
    kind::Kind,
    mark::Mark,
    pool::Pool,
    settings::Settings,
    volume_driver::VolumeDriver,
    volume_report::VolumeReport,
};
use flexvol_host::{Device, VolumeId, pool::Remains};
use flexvol_sdk::{Bytes, Error, ErrorKind, Handle, Provisioned, Result, VolumeName};
use std::{
    fmt,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

/// Leftovers younger than this may belong to a running callout.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// A backend whose pools an administrator can maintain.
pub trait ManagedBackend: BlockBackend {
    /// Storage that is not yet a volume of the pool.
    type Unmanaged;

    /// Opens storage that is to be adopted, exclusively; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot become a volume of this pool as it is.
    fn open_unmanaged(&self, path: &Path) -> Result<Option<Self::Unmanaged>>;

    /// Returns its block device, to inspect its content.
    ///
    /// # Errors
    /// When there is none.
    fn device_of(&self, unmanaged: &Self::Unmanaged, volume: &VolumeId) -> Result<Device>;

    /// Makes it a volume with this mark, atomically.
    ///
    /// # Errors
    /// When it is no volume afterwards.
    fn adopt(&self, unmanaged: Self::Unmanaged, volume: &VolumeId, mark: &Mark) -> Result<()>;

    /// Completes an interrupted [`ManagedBackend::adopt`] for the volume that it made.
    ///
    /// # Errors
    /// When something may remain to be done.
    fn complete(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// Lists names without a volume that are older than `age`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>>;

    /// Whether an interrupted callout left a device that would stay after its last user; false for a device
    /// that an administrator made.
    ///
    /// # Errors
    /// When the device does not answer.
    fn is_leftover(&self, device: &Device) -> Result<bool>;

    /// Lists volumes whose creation was interrupted, for [`Catalog::discard`](crate::Catalog::discard).
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn unfinished(&self) -> Result<Vec<VolumeId>> {
        Ok(Vec::new())
    }

    /// Returns how much space an interrupted growth took behind the end of the volume.
    ///
    /// # Errors
    /// When it is not certain.
    fn excess(&self, _volume: &VolumeId) -> Result<Bytes> {
        Ok(Bytes(0))
    }

    /// Frees that space. Called under the volume's lock.
    ///
    /// # Errors
    /// When some of it may still be taken.
    fn drop_excess(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }
}

/// A backend of directory volumes whose pools an administrator can maintain.
pub trait ManagedDirectories: DirectoryBackend {
    /// Lists names without a volume that are older than `age`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>>;

    /// Lists what killed processes left of volumes that were being created or removed.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn remains(&self) -> Result<Vec<Remains>>;

    /// Removes such remains; false if a process is working on them.
    ///
    /// # Errors
    /// When they may still be there.
    fn clear(&self, remains: &Remains) -> Result<bool>;

    /// Lists volumes whose limits are not in force, as after quotas were turned off and on;
    /// [`DirectoryBackend::restore`] repairs them.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn lost_limits(&self) -> Result<Vec<VolumeId>>;

    /// Whether this volume, whose lock is held, lacks its limit.
    ///
    /// # Errors
    /// When it is not certain.
    fn lacks_limit(&self, volume: &VolumeId) -> Result<bool>;
}

/// Storage to adopt, with the properties of its volume.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Adoption {
    /// The path of the storage.
    pub path: PathBuf,
    /// The name of the volume.
    pub name: VolumeName,
    /// The namespace of the claim.
    pub namespace: String,
    /// The smallest acceptable size; the storage is grown, never shrunk.
    pub size: Option<Bytes>,
    /// Whether blank storage is allowed: the first mount formats it.
    pub format: bool,
    /// The pool, by its name in the configuration.
    pub pool: Option<String>,
}

impl Adoption {
    /// Adopts `path` with its present size, into the only pool, and only if it has a file system.
    #[must_use]
    pub fn of(path: impl Into<PathBuf>, name: VolumeName, namespace: impl Into<String>) -> Self {
        Adoption {
            path: path.into(),
            name,
            namespace: namespace.into(),
            size: None,
            format: false,
            pool: None,
        }
    }
}

/// An adopted volume.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Adopted {
    /// The volume, in the form of an answer to `provision`.
    pub volume: Provisioned,
    /// False if it had been adopted before.
    pub changed: bool,
}

/// Something that an interrupted process left behind.
#[derive(Debug)]
#[non_exhaustive]
pub struct Leftover {
    /// A description for users.
    pub what: String,
    /// Whether it is gone now: never in a dry run, otherwise unless an error says why.
    pub removed: Result<bool>,
}

/// Administration of the pools of a driver.
pub trait Maintenance: Inventory {
    /// Makes existing storage a volume, after inspecting its content. A whole file system of a known kind that
    /// the kernel mounts and that has nothing behind it is kept. Storage that is proven blank is formatted by
    /// the first mount, if requested. Everything else is refused and left unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::NotBlank`] if it holds something else, [`ErrorKind::Conflict`] if it cannot be a volume of
    /// the pool or the name is taken.
    fn adopt(&self, adoption: &Adoption) -> Result<Adopted>;

    /// Removes what interrupted processes left behind, or with `dry_run` only lists it: names that lead to no
    /// volume, space that interrupted growths took, idle devices of interrupted callouts, directories of
    /// unfinished creations and removals, locks of volumes that are gone, and deleted volumes whose retention
    /// time is over. Each is told when it is dealt with.
    fn tidy(&self, dry_run: bool, tell: &mut dyn FnMut(Leftover));

    /// Restores a deleted volume while it is kept; false if it was not deleted.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the volume does not exist any more, [`ErrorKind::Conflict`] if its removal
    /// was begun or another volume has its name.
    fn undelete(&self, handle: Handle) -> Result<bool>;
}

/// A driver for administrators, who may also maintain its pools.
pub struct PoolAdmin<K: Kind> {
    pools: Rc<[Pool<K::Backend>]>,
    driver: VolumeDriver,
}

impl<K: Kind> fmt::Debug for PoolAdmin<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.driver.fmt(f)
    }
}

impl<K: Kind> PoolAdmin<K> {
    /// Administers these pools. A second process first checks that a pool answers, so that a dead pool is
    /// an error and does not block the caller.
    #[must_use]
    pub fn new(pools: Vec<Pool<K::Backend>>, settings: Settings) -> Self
    where
        K::Backend: 'static,
    {
        let pools: Vec<_> = pools.into_iter().map(Pool::unless_silent).collect();
        let pools: Rc<[_]> = pools.into();
        let driver = VolumeDriver::over::<K>(&pools, settings);
        PoolAdmin { pools, driver }
    }
}

impl<K: Kind> Inventory for PoolAdmin<K> {
    fn pools(&self) -> Vec<PoolReport> {
        self.driver.pools()
    }

    fn volumes(&self, pool: &str) -> Result<Vec<Result<VolumeReport, (VolumeId, Error)>>> {
        self.driver.volumes(pool)
    }

    fn find(&self, subject: &Subject) -> Result<VolumeReport> {
        self.driver.find(subject)
    }

    fn explain(&self, subject: &Subject, size: Option<Bytes>) -> Result<Explanation> {
        self.driver.explain(subject, size)
    }
}

impl<B: ManagedBackend> Maintenance for PoolAdmin<Block<B>> {
    fn adopt(&self, adoption: &Adoption) -> Result<Adopted> {
        self.adopt_storage(adoption)
    }

    fn tidy(&self, dry_run: bool, tell: &mut dyn FnMut(Leftover)) {
        tidy::pools(&self.driver, &self.pools, dry_run, tell, |backend, tell| {
            tidy::names(backend, backend.dangling_names(LEFT_OVER)?, dry_run, tell);
            tidy::unfinished(backend, dry_run, tell)?;
            tidy::excess(backend, dry_run, tell)?;
            tidy::devices(backend, dry_run, tell)
        })
    }

    fn undelete(&self, handle: Handle) -> Result<bool> {
        self.driver.undelete(handle)
    }
}

impl<B: ManagedDirectories> Maintenance for PoolAdmin<Directory<B>> {
    fn adopt(&self, _: &Adoption) -> Result<Adopted> {
        Err(Error::new(
            ErrorKind::Invalid,
            "directories are not taken over; make a volume with `flexvol create`, and copy the data into it from a pod",
        ))
    }

    fn tidy(&self, dry_run: bool, tell: &mut dyn FnMut(Leftover)) {
        tidy::pools(&self.driver, &self.pools, dry_run, tell, |backend, tell| {
            tidy::remains(backend, dry_run, tell)?;
            tidy::limits(backend, dry_run, tell)?;
            tidy::names(backend, backend.dangling_names(LEFT_OVER)?, dry_run, tell);
            Ok(())
        })
    }

    fn undelete(&self, handle: Handle) -> Result<bool> {
        self.driver.undelete(handle)
    }
}
