//! Mount namespaces.

use anyhow::{Context, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{panic::resume_unwind, path::Path, thread};

/// Gives the thread a private mount namespace. Its mounts go with it.
pub fn unshare_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("leave the mount namespace")?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("make the mounts private")
}

/// Runs the work in a thread with a mount namespace of its own.
pub fn in_own_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| unshare_mounts().map(|()| work()));
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Mounts a tmpfs, which goes with the namespace.
pub fn mount_memory(at: &Path, flags: MsFlags) -> Result<()> {
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("mode=0755"))
        .with_context(|| format!("mount a tmpfs on {}", at.display()))
}

/// Bind-mounts a directory.
pub fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("bind {} to {}", from.display(), to.display()))
}
