//! Mounts by system call.
//!
//! A new mount is [`Detached`] first: it is checked and grown where no process sees it, and then attached to a
//! directory ([`Target`]) in one step. If the process is killed before that, nothing remains.

mod attributes;
mod bind;
mod detached;
mod holding;
mod leading;
mod own_device;
mod remount;
mod target;

pub use bind::bind;
pub use detached::Detached;
pub use holding::holding;
pub(crate) use leading::resolves_into;
pub(crate) use target::table_entry as of;
pub use target::{Mounted, Target};

use flexvol_sdk::Result;
use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};
use target::Flush;

/// Unmounts the topmost mount at exactly this directory. Returns `false` if nothing was mounted there, or the directory
/// is missing. A dead file system (its server or device is gone) is unmounted too.
///
/// Never unmounts lazily: the file system would be invisible but still mounted, and could be mounted a second time.
/// Writes data back first, because unmounting does not report write errors.
///
/// # Errors
/// [`flexvol_sdk::ErrorKind::Busy`] while the mount is in use. [`flexvol_sdk::ErrorKind::Storage`] when data could not
/// be written; the volume is unmounted then, so a retry returns `false`.
pub fn unmount(path: &Path) -> Result<bool> {
    match Target::named(path)? {
        Some(target) => target.unmount(Flush::Filesystem),
        None => Ok(false),
    }
}

/// Unmounts a mount made by [`bind()`]. Like [`unmount`], but without writing data back: the file system stays mounted
/// elsewhere, and may have dirty data of other volumes.
///
/// # Errors
/// [`flexvol_sdk::ErrorKind::Busy`] while the mount is in use.
pub fn unbind(path: &Path) -> Result<bool> {
    match Target::named(path)? {
        Some(target) => target.unmount(Flush::Nothing),
        None => Ok(false),
    }
}

/// Returns a path for a file descriptor, for calls that take only paths.
fn descriptor_path(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}
