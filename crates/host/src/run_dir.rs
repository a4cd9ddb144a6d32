//! Directories below /run/flexvol: gone after a reboot, entered by root only.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt, path::Path};

/// Makes `path` and what is missing above it.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
