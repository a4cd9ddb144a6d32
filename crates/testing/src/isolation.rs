//! A place of its own for a test executable: nothing it mounts is seen elsewhere or survives it.

use crate::kernel;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Where a node remembers which pools it has in directories.
pub(crate) const MEMORY: &str = "/var/lib/flexvol/directories";

static ARENA: OnceLock<PathBuf> = OnceLock::new();

/// Where tests make their directories: a file system in memory that goes with the executable, or
/// the system's temporary directory when nothing is separated.
#[must_use]
pub fn arena() -> PathBuf {
    ARENA.get().cloned().unwrap_or_else(env::temp_dir)
}

/// Whether this process has a mount namespace of its own.
pub(crate) fn is_isolated() -> bool {
    ARENA.get().is_some()
}

/// Whether the debris of tests is to be kept for a look (`FLEXVOL_KEEP=1`).
pub(crate) fn keep() -> bool {
    env::var_os("FLEXVOL_KEEP").is_some_and(|keep| keep == "1")
}

/// Gives the process a mount namespace of its own, with an empty `/run`, a file system in
/// memory for the sandboxes and an empty memory of pools, so that even a killed run leaves no mount, no loop device and no
/// file behind, and no installed driver is met. With `FLEXVOL_KEEP=1` nothing is separated.
///
/// With `FLEXVOL_KERNEL=older` the process also answers like an old kernel from here on.
///
/// Must be called while the process has one thread; without root it does nothing.
///
/// # Errors
/// When the kernel refuses the namespace, a mount or the filter.
pub fn isolate() -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    if !keep() {
        leave_mounts()?;
        in_memory(Path::new("/run"), MsFlags::MS_NOEXEC, "mode=0755")?;
        let arena = PathBuf::from("/run/flexvol-tests");
        fs::create_dir(&arena)?;
        in_memory(&arena, MsFlags::empty(), "mode=0755")?;
        ARENA.get_or_init(|| arena);
        // It would grow by every sandbox.
        fs::create_dir_all(MEMORY)?;
        in_memory(Path::new(MEMORY), MsFlags::MS_NOEXEC, "mode=0700")?;
    }
    if older_kernel() {
        kernel::become_older()?;
    }
    Ok(())
}

/// Leaves the mount namespace of everybody else: what this thread and those it starts mount from
/// here on is seen by nobody else, and is gone with the last of them.
///
/// # Errors
/// When the kernel refuses.
pub fn leave_mounts() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(mount(
        None::<&str>,
        "/",
        None::<&str>,
        private,
        None::<&str>,
    )?)
}

/// Whether this run answers like an old kernel.
#[must_use]
pub fn older_kernel() -> bool {
    env::var_os("FLEXVOL_KERNEL").is_some_and(|kernel| kernel == "older")
}

/// As systemd mounts `/run`: without devices and without set-user-id.
fn in_memory(at: &Path, more: MsFlags, options: &str) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | more;
    Ok(mount(
        Some("tmpfs"),
        at,
        Some("tmpfs"),
        flags,
        Some(options),
    )?)
}
