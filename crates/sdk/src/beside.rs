//! Files that an administrator puts next to the driver's executable.

use crate::{Error, Result};
use std::{env, path::PathBuf};

/// Returns the path of a file or link in the directory of this executable.
///
/// Kubelet passes no configuration to a driver, so it lies there. Its name should begin with a dot: kubelet's watch
/// on that directory ignores such names.
///
/// # Errors
/// When the kernel does not say where the executable is.
pub fn path_beside_executable(name: &str) -> Result<PathBuf> {
    env::current_exe()
        .map(|executable| executable.with_file_name(name))
        .map_err(|error| Error::system("find the driver's executable", error))
}
