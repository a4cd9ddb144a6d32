//! Removes a directory and its limit.

use super::{ProjectQuotas, Record};
use crate::{
    VolumeId,
    fs::{confine, immutable, subvolume, tree},
    sys,
};
use flexvol_sdk::{Error, Result};
use rustix::{fs::OFlags, io::Errno};
use std::{ffi::CString, fs::File, io, os::fd::AsFd, time::Duration};

/// Removes the directory around a volume's root, if it exists, with everything in it and its limit. The limit is lifted
/// first: removing the tree moves directories, which in a full one XFS and Btrfs refuse even to root. By then nobody
/// can open the root, and the project is not reused while the directory around the root exists. An interrupted removal
/// can be repeated.
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
        // A mount point, or no directory: the removal below reports that.
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
    // An immutable directory can neither leave its project nor be removed.
    immutable::clear_flags(&directory).map_err(failed)?;
    // A directory with a damaged record is removed too; its quota stays and limits nothing.
    let record = Record::of(around).unwrap_or_else(|error| {
        log::warn!("the quota of the volume stays: {}", error.report());
        None
    });
    if let Some(project) = record.and_then(|record| record.project) {
        match ProjectQuotas::of(around, false)?.forget(project.get()) {
            // Quotas that are off limit nothing.
            Ok(()) | Err(Errno::NOSYS | Errno::SRCH | Errno::NOTBLK) => {}
            Err(error) => return Err(Error::system("lift the volume's quota", error)),
        }
        // Directories of any project can be moved into a directory that passes none on.
        sys::quota::set_project(directory.as_fd(), project.get(), false)
            .map_err(|error| failed(error.into()))?;
    }
    tree::remove(around, name, time)
}

fn remove_subvolume(parent: &File, name: &str, directory: &File, time: Duration) -> Result<()> {
    let failed = |error: io::Error| Error::system("remove the volume's subvolume", error);
    let id = sys::btrfs::subvolume(directory.as_fd()).map_err(|error| failed(error.into()))?;
    // Flags cannot be cleared in a read-only subvolume.
    if !immutable::flags(directory).map_err(failed)?.is_empty() {
        sys::btrfs::make_writable(directory.as_fd()).map_err(|error| failed(error.into()))?;
        immutable::clear_flags(directory).map_err(failed)?;
    }
    let text = CString::new(name).map_err(|error| failed(error.into()))?;
    // Pods can create nested subvolumes, which must be removed first.
    if !subvolume::remove(parent, &text, directory).map_err(failed)? {
        if let Err(error) = sys::btrfs::limit(parent.as_fd(), id, None) {
            // While quotas are off, no limit is enforced.
            log::debug!("quota group 0/{id} keeps its limit: {error}");
        }
        tree::remove(parent, name, time)?;
    }
    // Btrfs frees the blocks in the background, and the quota group cannot be removed before that; Linux 6.12 then
    // removes it by itself. A leftover group limits nothing: ids are never reused.
    match sys::btrfs::forget(parent.as_fd(), id) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => log::debug!("quota group 0/{id} stays: {error}"),
    }
    Ok(())
}
