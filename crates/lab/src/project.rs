//! Location of the project.

use std::path::{Path, PathBuf};

/// Returns the project's directory.
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
