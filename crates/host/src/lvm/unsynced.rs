//! Which volumes have changes that may not be on the disks of their group yet.
//!
//! LVM commits a change and flushes nothing. A call that dies between the commit and the flush leaves a
//! volume that looks changed, and the next call finds nothing to do: without a note a power cut could
//! take back what that one answered. The notes are in /run, because after a power cut what can be read
//! is on the disks. Whoever writes or removes one holds the lock of its volume.

use crate::{VolumeId, run_dir};
use flexvol_sdk::{Error, Result};
use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

const DIRECTORY: &str = "/run/flexvol/unsynced";

/// Notes that a volume is about to change.
///
/// # Errors
/// When the note cannot be written; then nothing may be changed.
pub fn note(volume: &VolumeId) -> Result<()> {
    let failed = |error| Error::system("note that the volume changes", error);
    run_dir::make(Path::new(DIRECTORY)).map_err(failed)?;
    File::create(path(volume)).map(drop).map_err(failed)
}

/// Whether changes of a volume may not be on the disks.
///
/// # Errors
/// When it cannot be known.
pub fn is_noted(volume: &VolumeId) -> Result<bool> {
    let there = path(volume).try_exists();
    there.map_err(|error| Error::system("read what is noted of the volume", error))
}

/// The changes of a volume are on the disks.
///
/// # Errors
/// When the note may still be there; it costs the next call a flush.
pub fn strike(volume: &VolumeId) -> Result<()> {
    match fs::remove_file(path(volume)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::system("remove what is noted of the volume", error))
        }
        _ => Ok(()),
    }
}

fn path(volume: &VolumeId) -> PathBuf {
    Path::new(DIRECTORY).join(volume.to_string())
}
