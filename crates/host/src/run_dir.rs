//! Directories in /run/flexvol. They vanish at a reboot, and only root may enter them.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt, path::Path};

/// Creates `path` and its missing parents.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
