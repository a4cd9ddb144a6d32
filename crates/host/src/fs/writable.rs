//! Whether a file system takes writes.

use flexvol_sdk::{Error, ErrorKind, Result};
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
    let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(directory, c".", unnamed, Mode::RUSR | Mode::WUSR) {
        Err(error @ (Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::SHUTDOWN)) => {
            Err(takes_no_writes().because(error))
        }
        _ => Ok(()),
    }
}

/// That a pool's file system takes no writes.
pub(crate) fn takes_no_writes() -> Error {
    Error::new(
        ErrorKind::Storage,
        "the pool's file system takes no writes; look into the kernel's log on the node, and at how it is mounted",
    )
}
