//! Mounts by system call.
//!
//! A mount is made where nobody sees it ([`Detached`]), looked at, grown, and then shown at a
//! directory ([`Target`]) in one step. A process that is killed on the way leaves nothing.

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
pub(crate) use leading::leads_to;
pub(crate) use target::table_entry as of;
pub use target::{Mounted, Target};

use flexvol_sdk::Result;
use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};
use target::Flush;

/// Unmounts the topmost mount at exactly this directory; `false` when nothing was mounted there,
/// also when the directory is missing. What is dead (a file system whose server or device is
/// gone) is unmounted too.
///
/// Never lazily: a file system that is out of sight but not gone would be mounted twice. Data is
/// written first, because unmounting itself does not report what it could not write.
///
/// # Errors
/// [`flexvol_sdk::ErrorKind::Busy`] while something uses the mount.
/// [`flexvol_sdk::ErrorKind::Storage`] when data could not be written; the volume is unmounted
/// then, so a repetition returns `false`.
pub fn unmount(path: &Path) -> Result<bool> {
    match Target::named(path)? {
        Some(target) => target.unmount(Flush::Filesystem),
        None => Ok(false),
    }
}

/// Ends a mount from [`bind`], like [`unmount`] but without writing anything: the file system
/// stays mounted elsewhere, and what others have to write to it is not this volume's.
///
/// # Errors
/// [`flexvol_sdk::ErrorKind::Busy`] while something uses the mount.
pub fn unbind(path: &Path) -> Result<bool> {
    match Target::named(path)? {
        Some(target) => target.unmount(Flush::Nothing),
        None => Ok(false),
    }
}

/// A name for what a descriptor is open on, for calls that take paths only.
fn descriptor_path(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}
