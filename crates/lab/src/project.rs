//! Where the project is.

use std::path::{Path, PathBuf};

/// The project, whose tests are run.
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
