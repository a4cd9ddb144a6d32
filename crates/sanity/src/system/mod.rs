//! The machine below a driver: the kernel's state, child processes, and cleanup.

pub mod block_devices;
pub mod cleanup;
pub mod command;
pub mod mount_namespace;
pub mod mounts;
pub mod processes;

use nix::unistd::geteuid;
use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt, path::Path};

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Makes a directory and its parents, as kubelet does for a volume.
pub fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(path)
}
