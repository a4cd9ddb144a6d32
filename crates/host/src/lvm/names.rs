//! Names that were promised to volumes before these were made.
//!
//! The name of a volume stands in its mark, and so in the metadata of its group. Between the moment
//! a name is bound and the one in which its volume is there, a symbolic link in /run holds it: it
//! only has to outlive the call.

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

/// Whoever makes or grows a volume holds the lock while LVM works.
const LOCK_DEADLINE: Duration = Duration::from_secs(60);

/// The directory of a pool's promised names, whose lock is the pool's.
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

    /// Promises a name; the answer is the volume that has it now.
    ///
    /// # Errors
    /// When it cannot be known.
    pub fn reserve(&self, name: &VolumeName, handle: &Handle) -> Result<Handle> {
        links::reserve(&self.directory, name, handle)
    }

    /// The volume that a name was promised to.
    ///
    /// # Errors
    /// When it cannot be known.
    pub fn lookup(&self, name: &VolumeName) -> Result<Option<Handle>> {
        links::read(&self.directory, name)
    }

    /// Takes a promise back, if it was made to this volume.
    ///
    /// # Errors
    /// When it may still be there.
    pub fn release(&self, name: &VolumeName, volume: &VolumeId) -> Result<()> {
        let _lock = self.lock()?;
        links::release(&self.directory, name, volume)
    }

    /// Promises older than `age`.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn older_than(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        let promised = links::older_than(&self.directory, age)?;
        let volume = |(name, handle)| (name, VolumeId::of(&handle));
        Ok(promised.into_iter().map(volume).collect())
    }

    /// Held while space is counted and taken, so that two volumes cannot be promised the same.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](flexvol_sdk::ErrorKind::Busy) where another one holds it too long.
    pub fn lock(&self) -> Result<PoolGuard> {
        let file =
            File::open(&self.path).map_err(|error| Error::system("open the pool's lock", error))?;
        lock::pool(file, &mut Deadline::after(LOCK_DEADLINE))
    }
}
