//! Determines whether a file system accepts writes.

use super::grow;
use crate::block::device::Device;
use flexvol_sdk::{Error, ErrorKind, Filesystem, Result};
use rustix::{
    fs::{Mode, OFlags, openat},
    io::Errno,
};
use std::os::fd::BorrowedFd;

/// Refuses a directory of a pool whose file system accepts no writes, because it was mounted read-only or met an error.
///
/// Bind mounts do not show either, nor does the flag of an ext4 that met an error (since 6.12, `ext4_handle_error` in
/// fs/ext4/super.c). Therefore an unnamed temporary file is created, which disappears when it is closed. A full file
/// system is not refused.
///
/// # Errors
/// [`ErrorKind::Storage`].
pub fn expect_writable(directory: BorrowedFd<'_>) -> Result<()> {
    match refusal(directory) {
        Some(error) => Err(takes_no_writes().because(error)),
        None => Ok(()),
    }
}

/// Whether the file system of a device, mounted writable with this root, met an error and accepts no writes any more.
///
/// Only ext4 does not show this by itself ([`expect_writable`]). Its superblock records each error that it ever met,
/// and only then is a write tried, because that blocks while the file system is frozen.
///
/// # Errors
/// [`ErrorKind::Storage`] where the superblock cannot be read.
pub fn has_failed(root: BorrowedFd<'_>, device: &Device, filesystem: Filesystem) -> Result<bool> {
    let is_ext = matches!(filesystem, Filesystem::Ext3 | Filesystem::Ext4);
    Ok(is_ext && grow::met_errors(device)? && refusal(root).is_some())
}

/// Returns the error if nothing can be written.
fn refusal(directory: BorrowedFd<'_>) -> Option<Errno> {
    let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(directory, c".", unnamed, Mode::RUSR | Mode::WUSR) {
        Err(error @ (Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::SHUTDOWN)) => Some(error),
        _ => None,
    }
}

/// Error for a pool whose file system accepts no writes.
pub(crate) fn takes_no_writes() -> Error {
    Error::new(
        ErrorKind::Storage,
        "the pool's file system takes no writes; look into the kernel's log on the node, and at how it is mounted",
    )
}
