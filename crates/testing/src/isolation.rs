//! Isolation of a test executable: its mounts are invisible to other processes and end with it.

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

/// Directories with records of the directory pools that a node remembers.
pub(crate) const MEMORY: [&str; 2] = ["/etc/flexvol/directories", "/var/lib/flexvol/directories"];

static ARENA: OnceLock<PathBuf> = OnceLock::new();

/// Returns the directory for the tests' directories: a file system in memory that ends with the executable, or the
/// system's temporary directory if nothing is isolated.
#[must_use]
pub fn arena() -> PathBuf {
    ARENA.get().cloned().unwrap_or_else(env::temp_dir)
}

/// Whether this process has a mount namespace of its own.
pub(crate) fn is_isolated() -> bool {
    ARENA.get().is_some()
}

/// Whether to keep what tests leave behind, for inspection (`FLEXVOL_KEEP=1`).
pub(crate) fn keep() -> bool {
    env::var_os("FLEXVOL_KEEP").is_some_and(|keep| keep == "1")
}

/// Isolates the process: it gets a mount namespace of its own with an empty `/run`, a file system in memory for
/// sandboxes, and no remembered pools. So even a killed run leaves no mount, loop device or file behind, and an
/// installed driver does not interfere. With `FLEXVOL_KEEP=1` nothing is isolated.
///
/// With `FLEXVOL_KERNEL=older` the kernel also appears as an old one to this process from now on.
///
/// The process must have a single thread. Without root this does nothing.
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
        // Each sandbox adds a record there.
        for memory in MEMORY {
            fs::create_dir_all(memory)?;
            in_memory(Path::new(memory), MsFlags::MS_NOEXEC, "mode=0700")?;
        }
    }
    if older_kernel() {
        kernel::become_older()?;
    }
    Ok(())
}

/// Enters a new mount namespace. Later mounts of this thread and of its children are invisible to other processes and
/// end with the last of these threads.
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

/// Whether the kernel appears as an old one in this run.
#[must_use]
pub fn older_kernel() -> bool {
    env::var_os("FLEXVOL_KERNEL").is_some_and(|kernel| kernel == "older")
}

/// Mounts a tmpfs with the flags that systemd uses for `/run`.
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
