//! A place of its own for a process: mounts that nobody else sees and that end with it.

use flexvol_sdk::{Error, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::path::Path;

/// Leaves the mount namespace of everybody else. What this process and its children mount from
/// here on is seen by no other process and is gone when the last of them is, however it ends.
///
/// # Errors
/// [`ErrorKind::CapabilityMissing`](flexvol_sdk::ErrorKind::CapabilityMissing) without
/// CAP_SYS_ADMIN.
pub fn leave() -> Result<()> {
    let failed = |error: nix::Error| Error::system("make a mount namespace", error);
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).map_err(failed)
}

/// Covers a directory with an empty file system in memory, which root alone can write to.
///
/// # Errors
/// What the system call says.
pub fn cover(directory: &Path) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // As much as is asked for: what is not written takes no memory.
    let options = Some("mode=0755,size=100%");
    mount(Some("tmpfs"), directory, Some("tmpfs"), flags, options)
        .map_err(|error| Error::system("mount a file system in memory", error))
}
