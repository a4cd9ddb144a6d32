//! Names promised to volumes that do not exist yet.
//!
//! The name of a volume is in its mark, and so in its group's metadata. From the moment a name is promised until the
//! volume exists, a symbolic link in /run holds it: the link only has to outlive the callout.

use crate::{
    VolumeId,
    deadline::Deadline,
    lock::{self, PoolGuard},
    pool::{PoolId, links},
    run_dir,
};
use flexvol_sdk::{Error, Handle, Result, VolumeName};
use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

const DIRECTORY: &str = "/run/flexvol/names";

/// Timeout for the pool's lock, which is held while LVM creates or extends a volume.
const LOCK_DEADLINE: Duration = Duration::from_secs(60);

/// The directory of a pool's promised names. Its lock is the pool's lock.
#[derive(Debug)]
pub struct Names {
    directory: File,
    path: PathBuf,
}

impl Names {
    pub(super) fn open(id: PoolId) -> Result<Names> {
        let failed = |error| Error::system("open the pool's names", error);
        let path = Path::new(DIRECTORY).join(id.to_string());
        run_dir::make(&path).map_err(failed)?;
        let directory = File::open(&path).map_err(failed)?;
        Ok(Names { directory, path })
    }

    /// Promises a name. Returns the handle of the volume that has the name now.
    ///
    /// # Errors
    /// When the name cannot be written or read.
    pub fn reserve(&self, name: &VolumeName, handle: &Handle) -> Result<Handle> {
        links::reserve(&self.directory, name, handle)
    }

    /// Returns the handle of the volume that a name was promised to.
    ///
    /// # Errors
    /// When the name cannot be read.
    pub fn lookup(&self, name: &VolumeName) -> Result<Option<Handle>> {
        links::read(&self.directory, name)
    }

    /// Revokes a promise, if it was made to this volume.
    ///
    /// # Errors
    /// When the promise may still be there.
    pub fn release(&self, name: &VolumeName, volume: &VolumeId) -> Result<()> {
        let _lock = self.lock()?;
        links::release(&self.directory, name, volume)
    }

    /// Returns the promises older than `age`.
    ///
    /// # Errors
    /// When the promises cannot be listed.
    pub fn older_than(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        let promised = links::older_than(&self.directory, age)?;
        let volume = |(name, handle)| (name, VolumeId::of(&handle));
        Ok(promised.into_iter().map(volume).collect())
    }

    /// Locks the pool. Held while space is counted and allocated, so that no space is promised to two volumes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](flexvol_sdk::ErrorKind::Busy) when another process holds the lock too long.
    pub fn lock(&self) -> Result<PoolGuard> {
        let file =
            File::open(&self.path).map_err(|error| Error::system("open the pool's lock", error))?;
        lock::pool(file, &mut Deadline::after(LOCK_DEADLINE))
    }
}
