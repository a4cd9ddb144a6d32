//! Removing a directory and what limits it.

use super::{ProjectQuotas, Record};
use crate::{
    VolumeId,
    fs::{confine, immutable, subvolume, tree},
    sys,
};
use flexvol_sdk::{Error, Result};
use rustix::{fs::OFlags, io::Errno};
use std::{ffi::CString, fs::File, io, os::fd::AsFd, time::Duration};

/// Removes the directory around a volume's root, if it is there, with everything in it and what
/// limited it. The limit goes first: removing moves directories, and in a full one XFS and Btrfs let not
/// even root do that. By then nobody can open the root, and as long as the directory around it is there
/// its project is not used again. Cut anywhere, a repetition goes on.
///
/// # Errors
/// As for [`tree::remove`].
pub(crate) fn remove(
    volumes: &File,
    prefix: &str,
    volume: &VolumeId,
    time: Duration,
) -> Result<()> {
    let name = format!("{prefix}{volume}");
    match confine::open(volumes, &name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(around) => remove_root(&around, &volume.to_string(), time)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // A mount, or no directory: told by those who look closer.
        Err(_) => {}
    }
    tree::remove(volumes, &name, time)
}

fn remove_root(around: &File, name: &str, time: Duration) -> Result<()> {
    let failed = |error: io::Error| Error::system("remove the volume's directory", error);
    let directory = match confine::open(around, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => return tree::remove(around, name, time),
        Ok(directory) => directory,
    };
    if subvolume::is_one(&directory).map_err(failed)? {
        return remove_subvolume(around, name, &directory, time);
    }
    // What nobody may change can neither leave its project nor go.
    immutable::open_up(&directory).map_err(failed)?;
    // One whose record is damaged goes too; what limits it then stays and limits nothing.
    let record = Record::of(around).unwrap_or_else(|error| {
        log::warn!("the quota of the volume stays: {}", error.report());
        None
    });
    if let Some(project) = record.and_then(|record| record.project) {
        match ProjectQuotas::of(around, false)?.forget(project.get()) {
            // Nothing is limited where quotas are off.
            Ok(()) | Err(Errno::NOSYS | Errno::SRCH | Errno::NOTBLK) => {}
            Err(error) => return Err(Error::system("lift the volume's quota", error)),
        }
        // Directories of any project can be moved up into one that hands none on.
        sys::quota::set_project(directory.as_fd(), project.get(), false)
            .map_err(|error| failed(error.into()))?;
    }
    tree::remove(around, name, time)
}

fn remove_subvolume(parent: &File, name: &str, directory: &File, time: Duration) -> Result<()> {
    let failed = |error: io::Error| Error::system("remove the volume's subvolume", error);
    let id = sys::btrfs::subvolume(directory.as_fd()).map_err(|error| failed(error.into()))?;
    // Flags of what is read-only cannot be taken away.
    if !immutable::flags(directory).map_err(failed)?.is_empty() {
        sys::btrfs::make_writable(directory.as_fd()).map_err(|error| failed(error.into()))?;
        immutable::open_up(directory).map_err(failed)?;
    }
    let text = CString::new(name).map_err(|error| failed(error.into()))?;
    // Pods can make subvolumes too, and it goes only after these.
    if !subvolume::remove(parent, &text, directory).map_err(failed)? {
        if let Err(error) = sys::btrfs::limit(parent.as_fd(), id, None) {
            // None is in force where quotas are off.
            log::debug!("quota group 0/{id} keeps its limit: {error}");
        }
        tree::remove(parent, name, time)?;
    }
    // Its blocks come back by and by, and its quota group may not go before them; Linux 6.12
    // removes it by itself then. What stays limits nothing: ids are never used again.
    match sys::btrfs::forget(parent.as_fd(), id) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => log::debug!("quota group 0/{id} stays: {error}"),
    }
    Ok(())
}
