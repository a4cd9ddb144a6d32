//! Notes of volumes whose changes may not be on the disks of their group yet.
//!
//! LVM commits a change without flushing. If a callout dies between the commit and the flush, the volume looks changed,
//! and the next callout finds nothing to do: without a note, a power cut could revert what that callout reported. The
//! notes are in /run, because after a power cut everything that can be read is on the disks. A note names the group too:
//! a volume may be looked for in several. The volume's lock must be held to write or remove a note.

use crate::{VolumeId, run_dir};
use flexvol_sdk::{Error, Result};
use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

const DIRECTORY: &str = "/run/flexvol/unsynced";

/// Writes a note that a volume is about to change.
///
/// # Errors
/// When the note cannot be written; then nothing may be changed.
pub fn note(group: &str, volume: &VolumeId) -> Result<()> {
    let failed = |error| Error::system("note that the volume changes", error);
    run_dir::make(Path::new(DIRECTORY)).map_err(failed)?;
    File::create(path(group, volume)).map(drop).map_err(failed)
}

/// Whether changes of a volume may not be on the disks yet.
///
/// # Errors
/// When /run cannot be read.
pub fn is_noted(group: &str, volume: &VolumeId) -> Result<bool> {
    let there = path(group, volume).try_exists();
    there.map_err(|error| Error::system("read what is noted of the volume", error))
}

/// Removes the note of a volume, because its changes are on the disks.
///
/// # Errors
/// When the note may still be there; it only costs the next callout a flush.
pub fn clear_note(group: &str, volume: &VolumeId) -> Result<()> {
    match fs::remove_file(path(group, volume)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::system("remove what is noted of the volume", error))
        }
        _ => Ok(()),
    }
}

fn path(group: &str, volume: &VolumeId) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{volume}.{group}"))
}
