//! Where an administrator puts what a driver needs to know.

use crate::{Error, Result};
use std::{env, path::PathBuf};

/// The path of a file, or link, that lies beside this executable. Kubelet passes a driver no
/// configuration, and a name that begins with a dot does not wake its watcher of the directory.
///
/// # Errors
/// When the kernel does not tell where the executable is.
pub fn beside_executable(name: &str) -> Result<PathBuf> {
    env::current_exe()
        .map(|executable| executable.with_file_name(name))
        .map_err(|error| Error::system("find the driver's executable", error))
}
