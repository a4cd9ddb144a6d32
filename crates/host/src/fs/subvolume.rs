//! Btrfs subvolumes as directory entries: the directories that the driver limits, and those that pods create in them.

use crate::sys::btrfs;
use rustix::{
    fs::{fstat, fstatfs},
    io::Errno,
};
use std::{ffi::CStr, fs::File, io, os::fd::AsFd};

/// Magic number of Btrfs in `statfs` (linux/magic.h).
pub(crate) const BTRFS: i64 = 0x9123_683e;

/// Whether an open directory is the root of a subvolume.
pub(crate) fn is_one(directory: &File) -> io::Result<bool> {
    Ok(fstat(directory)?.st_ino == btrfs::ROOT_INODE && is_btrfs(directory)?)
}

pub(crate) fn is_btrfs(directory: &File) -> io::Result<bool> {
    Ok(fstatfs(directory)?.f_type == BTRFS)
}

/// Removes a subvolume with everything in it in one step, even a read-only one. Returns false where it contains other
/// subvolumes. The subvolume is then made writable, so that these can be removed first.
pub(crate) fn remove(parent: &File, name: &CStr, opened: &File) -> io::Result<bool> {
    match btrfs::destroy(parent.as_fd(), name.to_bytes()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY) => {
            btrfs::make_writable(opened.as_fd())?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}
