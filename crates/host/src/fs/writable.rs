//! Whether a file system takes writes.

use super::grow;
use crate::block::device::Device;
use flexvol_sdk::{Error, ErrorKind, Filesystem, Result};
use rustix::{
    fs::{Mode, OFlags, openat},
    io::Errno,
};
use std::os::fd::BorrowedFd;

/// Refuses a directory of a pool whose file system takes no writes, because it was mounted so or met
/// an error: mounts of a part of it do not show that, and neither does the flag of an ext4 that met an
/// error (since 6.12, `ext4_handle_error` in fs/ext4/super.c). So a file without a name is made, which
/// is gone when it is closed. That a file system is full is no reason.
///
/// # Errors
/// [`ErrorKind::Storage`].
pub fn expect_writable(directory: BorrowedFd<'_>) -> Result<()> {
    match refusal(directory) {
        Some(error) => Err(takes_no_writes().because(error)),
        None => Ok(()),
    }
}

/// Whether the file system of a device, mounted writable with this root, met an error and takes no writes any
/// more. One that does not say so by itself is an ext4 ([`expect_writable`]), whose superblock has each error
/// that it ever met; only then a write is tried, which waits where the file system is frozen.
///
/// # Errors
/// [`ErrorKind::Storage`] where its superblock cannot be read.
pub fn has_failed(root: BorrowedFd<'_>, device: &Device, filesystem: Filesystem) -> Result<bool> {
    let is_ext = matches!(filesystem, Filesystem::Ext3 | Filesystem::Ext4);
    Ok(is_ext && grow::met_errors(device)? && refusal(root).is_some())
}

/// Why nothing can be written, where that is so.
fn refusal(directory: BorrowedFd<'_>) -> Option<Errno> {
    let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(directory, c".", unnamed, Mode::RUSR | Mode::WUSR) {
        Err(error @ (Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::SHUTDOWN)) => Some(error),
        _ => None,
    }
}

/// That a pool's file system takes no writes.
pub(crate) fn takes_no_writes() -> Error {
    Error::new(
        ErrorKind::Storage,
        "the pool's file system takes no writes; look into the kernel's log on the node, and at how it is mounted",
    )
}
