//! Names of volumes: symbolic links whose text is the handle, in a directory that only root may enter.

use super::{list, sync};
use crate::VolumeId;
use flexvol_sdk::{Error, ErrorKind, Handle, Result, VolumeName};
use rustix::{fs::AtFlags, io::Errno};
use std::{
    fs::File,
    time::{Duration, SystemTime},
};

/// Reserves a name for a volume. Returns the handle of the volume that has the name now: this one, or an earlier one.
pub(crate) fn reserve(names: &File, name: &VolumeName, handle: &Handle) -> Result<Handle> {
    loop {
        match rustix::fs::symlinkat(handle.to_string(), names, name.as_str()) {
            Ok(()) => {
                sync(names)?;
                return Ok(*handle);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::system("reserve the volume's name", error)),
        }
        if let Some(found) = read(names, name)? {
            // Its creator may have been killed before the sync.
            sync(names)?;
            return Ok(found);
        }
    }
}

/// Returns the handle of the volume that has a name.
pub(crate) fn read(names: &File, name: &VolumeName) -> Result<Option<Handle>> {
    let no_volume = |found: String| {
        Error::new(
            ErrorKind::Conflict,
            "the volume's name leads to something that is no volume",
        )
        .because(found)
    };
    match rustix::fs::readlinkat(names, name.as_str(), Vec::new()) {
        Ok(text) => match handle_in(text.as_bytes()) {
            Some(handle) => Ok(Some(handle)),
            None => Err(no_volume(format!("{text:?}"))),
        },
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::INVAL) => Err(no_volume("it is no symbolic link".to_owned())),
        Err(error) => Err(Error::system("look up the volume's name", error)),
    }
}

/// Releases the name of a volume, if the volume has it. The caller holds the pool's lock: between the check and the
/// removal, another process could release and reserve the name.
pub(crate) fn release(names: &File, name: &VolumeName, volume: &VolumeId) -> Result<()> {
    if read(names, name)?.as_ref().map(VolumeId::of) != Some(*volume) {
        return Ok(());
    }
    match rustix::fs::unlinkat(names, name.as_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => sync(names),
        Err(error) => Err(Error::system("release the volume's name", error)),
    }
}

/// Returns the names that are older than `age`. Skips entries that are not names of volumes.
pub(crate) fn older_than(names: &File, age: Duration) -> Result<Vec<(VolumeName, Handle)>> {
    let failed = |error: Errno| Error::system("look through the pool's names", error);
    let mut found = Vec::new();
    for entry in list(names)? {
        let Some(name) = str::from_utf8(&entry)
            .ok()
            .and_then(|name| VolumeName::parse(name).ok())
        else {
            continue;
        };
        let text = match rustix::fs::readlinkat(names, name.as_str(), Vec::new()) {
            // Removed meanwhile, or not a link and so not made by the driver.
            Err(Errno::NOENT | Errno::INVAL) => continue,
            result => result.map_err(failed)?,
        };
        let Some(handle) = handle_in(text.as_bytes()) else {
            continue;
        };
        let made = match rustix::fs::statat(names, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            result => u64::try_from(result.map_err(failed)?.st_mtime).unwrap_or(0),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        if now.is_ok_and(|now| now.saturating_sub(Duration::from_secs(made)) >= age) {
            found.push((name, handle));
        }
    }
    Ok(found)
}

fn handle_in(text: &[u8]) -> Option<Handle> {
    Handle::parse(str::from_utf8(text).ok()?).ok()
}
