//! What people do to a driver's pools beyond callouts: taking volumes over, and tidying up.

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

/// Leftovers younger than this may belong to a callout that is still running.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// A backend whose pools people can keep in order.
pub trait ManagedBackend: BlockBackend {
    /// Storage that is not a volume of the pool yet.
    type Stray;

    /// Opens storage that is to be taken over; `None` where there is none. Nobody else uses it.
    ///
    /// # Errors
    /// When it cannot become a volume of this pool as it is.
    fn stray(&self, path: &Path) -> Result<Option<Self::Stray>>;

    /// Its block device, to look at what it holds.
    ///
    /// # Errors
    /// When there is none.
    fn look(&self, stray: &Self::Stray, volume: &VolumeId) -> Result<Device>;

    /// Makes it a volume with this mark: both or nothing.
    ///
    /// # Errors
    /// When it is not one afterwards.
    fn take(&self, stray: Self::Stray, volume: &VolumeId, mark: &Mark) -> Result<()>;

    /// Does what a [`ManagedBackend::take`] that was cut had still to do for the volume it made.
    ///
    /// # Errors
    /// When something may be left to do.
    fn complete(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// Names without a volume that are older than `age`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>>;

    /// Whether a cut callout left a device that would stay after its last user; not one that a person made.
    ///
    /// # Errors
    /// When the device cannot be asked.
    fn was_left(&self, device: &Device) -> Result<bool>;

    /// Volumes whose making was begun and not ended, for [`Catalog::discard`](crate::Catalog::discard).
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn unfinished(&self) -> Result<Vec<VolumeId>> {
        Ok(Vec::new())
    }

    /// How much a growth that was cut took behind the end of the volume.
    ///
    /// # Errors
    /// When that cannot be known.
    fn excess(&self, _volume: &VolumeId) -> Result<Bytes> {
        Ok(Bytes(0))
    }

    /// Gives that back. Called under the volume's lock.
    ///
    /// # Errors
    /// When some of it may still be there.
    fn drop_excess(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }
}

/// The same for volumes that are directories.
pub trait ManagedDirectories: DirectoryBackend {
    /// Names without a volume that are older than `age`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>>;

    /// What killed processes left of volumes that were being made or removed.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn remains(&self) -> Result<Vec<Remains>>;

    /// Removes such remains; false where a process works on them.
    ///
    /// # Errors
    /// When they may still be there.
    fn clear(&self, remains: &Remains) -> Result<bool>;

    /// Volumes whose limits are not in force, as after quotas were turned off and on;
    /// [`DirectoryBackend::restore`] mends them.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn lost_limits(&self) -> Result<Vec<VolumeId>>;

    /// Whether this volume, whose lock is held, is one of those.
    ///
    /// # Errors
    /// When it cannot be known.
    fn lacks_limit(&self, volume: &VolumeId) -> Result<bool>;
}

/// What is to be taken over, and as what.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Adoption {
    /// Where it is.
    pub path: PathBuf,
    /// What the volume is called.
    pub name: VolumeName,
    /// The namespace of its claim.
    pub namespace: String,
    /// The size it shall have at least; it is grown, never shrunk.
    pub size: Option<Bytes>,
    /// Blank storage is welcome: it is formatted when it is first mounted.
    pub format: bool,
    /// The pool, by its name in the configuration.
    pub pool: Option<String>,
}

impl Adoption {
    /// As large as it is, into the only pool, and only with a file system.
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

/// A volume that was taken over.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Adopted {
    /// The volume, as `provision` would have answered it.
    pub volume: Provisioned,
    /// False where it had been taken over before.
    pub changed: bool,
}

/// Something that was left behind.
#[derive(Debug)]
#[non_exhaustive]
pub struct Leftover {
    /// What it is, for people.
    pub what: String,
    /// Whether it is gone now: with a dry run never, otherwise unless an error says why.
    pub removed: Result<bool>,
}

/// What can be done to the pools of a driver.
pub trait Upkeep: Inventory {
    /// Makes existing storage a volume. What it holds is looked at first: a whole file system of
    /// a known kind with nothing behind it, which the kernel mounts, is kept as it is, proven
    /// blankness is formatted by the first mount if that is asked for, and everything else is refused
    /// and left alone.
    ///
    /// # Errors
    /// [`ErrorKind::NotBlank`] where it holds something else, [`ErrorKind::Conflict`] where it
    /// cannot be a volume of the pool or the name is taken.
    fn adopt(&self, adoption: &Adoption) -> Result<Adopted>;

    /// Removes what killed processes left behind, or with `dry_run` only names it: names that
    /// lead to no volume, what cut growths took behind the end of volumes, idle devices that cut callouts left, directories that are not volumes
    /// yet or any more, locks of volumes that are gone, and volumes that were deleted and kept for
    /// as long as their pool says.
    fn tidy(&self, dry_run: bool) -> Vec<Leftover>;

    /// Takes back that a volume was deleted, while it is kept; false where it was not deleted.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such volume any more, [`ErrorKind::Conflict`]
    /// where its removal was begun or another volume has its name.
    fn undelete(&self, handle: Handle) -> Result<bool>;
}

/// A driver as people see it, who may also keep its pools in order.
pub struct Keeper<K: Kind> {
    pools: Rc<[Pool<K::Backend>]>,
    driver: VolumeDriver,
}

impl<K: Kind> fmt::Debug for Keeper<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.driver.fmt(f)
    }
}

impl<K: Kind> Keeper<K> {
    /// Of these pools. Each is looked at by a second process before anything is asked of it, so that one
    /// that does not answer is an error and keeps nobody.
    #[must_use]
    pub fn new(pools: Vec<Pool<K::Backend>>, settings: Settings) -> Self
    where
        K::Backend: 'static,
    {
        let pools: Vec<_> = pools.into_iter().map(Pool::unless_silent).collect();
        let pools: Rc<[_]> = pools.into();
        let driver = VolumeDriver::over::<K>(&pools, settings);
        Keeper { pools, driver }
    }
}

impl<K: Kind> Inventory for Keeper<K> {
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

impl<B: ManagedBackend> Upkeep for Keeper<Block<B>> {
    fn adopt(&self, adoption: &Adoption) -> Result<Adopted> {
        self.take(adoption)
    }

    fn tidy(&self, dry_run: bool) -> Vec<Leftover> {
        tidy::pools(&self.driver, &self.pools, dry_run, |backend, leftovers| {
            tidy::names(
                backend,
                backend.dangling_names(LEFT_OVER)?,
                dry_run,
                leftovers,
            );
            tidy::unfinished(backend, dry_run, leftovers)?;
            tidy::excess(backend, dry_run, leftovers)?;
            tidy::devices(backend, dry_run, leftovers)
        })
    }

    fn undelete(&self, handle: Handle) -> Result<bool> {
        self.driver.undelete(handle)
    }
}

impl<B: ManagedDirectories> Upkeep for Keeper<Directory<B>> {
    fn adopt(&self, _: &Adoption) -> Result<Adopted> {
        Err(Error::new(
            ErrorKind::Invalid,
            "directories are not taken over; make a volume with `flexvol create`, and copy the data into it from a pod",
        ))
    }

    fn tidy(&self, dry_run: bool) -> Vec<Leftover> {
        tidy::pools(&self.driver, &self.pools, dry_run, |backend, leftovers| {
            tidy::remains(backend, dry_run, leftovers)?;
            tidy::limits(backend, dry_run, leftovers)?;
            tidy::names(
                backend,
                backend.dangling_names(LEFT_OVER)?,
                dry_run,
                leftovers,
            );
            Ok(())
        })
    }

    fn undelete(&self, handle: Handle) -> Result<bool> {
        self.driver.undelete(handle)
    }
}
