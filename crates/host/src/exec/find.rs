//! Finds programs, and decides which of them may be run.

use super::{PLACES, Tool};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

impl Tool {
    /// Finds a program by its name, which is no path, in fixed directories. Only root may have write access to it.
    ///
    /// # Errors
    /// [`ErrorKind::ToolMissing`], which names the program's Debian package.
    pub fn find(name: &str) -> Result<Self> {
        which::WhichConfig::new_with_sys(FixedPlaces)
            .binary_name(name.into())
            .custom_path_list(PLACES.into())
            .first_result()
            .and_then(|path| match name.contains('/') {
                true => Err(which::Error::CannotFindBinaryPath),
                false => Ok(path),
            })
            .map(Tool::new)
            .map_err(|error| {
                let package = match package_of(name) {
                    Some(package) => format!(" (Debian package {package})"),
                    None => String::new(),
                };
                Error::new(
                    ErrorKind::ToolMissing,
                    format!("{name} is not installed on the node{package}"),
                )
                .because(error)
            })
    }

    /// Takes the program that an administrator configured by its absolute path. Only root and this process's own user
    /// may have write access to it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such file, [`ErrorKind::Denied`] where it cannot be trusted or
    /// executed.
    pub fn at(path: &Path) -> Result<Self> {
        let metadata =
            fs::metadata(path).map_err(|error| Error::system("find the program", error))?;
        let mode = metadata.permissions().mode();
        let owned = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
        if !path.is_absolute() || !metadata.is_file() || mode & 0o111 == 0 {
            return Err(Error::new(
                ErrorKind::Denied,
                "that is no program: an absolute path of an executable file is needed",
            ));
        }
        if !owned || mode & 0o022 != 0 {
            return Err(Error::new(
                ErrorKind::Denied,
                "others than root could have written the program; it is not run",
            ));
        }
        Ok(Tool::new(path.into()))
    }
}

fn package_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "mkfs.xfs" => "xfsprogs",
        "mkfs.ext3" | "mkfs.ext4" | "mke2fs" | "e2fsck" | "resize2fs" | "debugfs" => "e2fsprogs",
        "mkfs.btrfs" => "btrfs-progs",
        "lvm" => "lvm2",
        _ => return None,
    })
}

/// View of the system for the `which` crate: no environment, no home directory, no current directory.
#[derive(Clone)]
struct FixedPlaces;

impl which::sys::Sys for FixedPlaces {
    type ReadDirEntry = fs::DirEntry;
    type Metadata = fs::Metadata;

    fn is_windows(&self) -> bool {
        false
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn home_dir(&self) -> Option<PathBuf> {
        None
    }

    fn env_split_paths(&self, paths: &OsStr) -> Vec<PathBuf> {
        std::env::split_paths(paths).collect()
    }

    fn env_path(&self) -> Option<OsString> {
        None
    }

    fn env_path_ext(&self) -> Option<OsString> {
        None
    }

    fn metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        fs::metadata(path)
    }

    fn symlink_metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        fs::symlink_metadata(path)
    }

    fn read_dir(
        &self,
        path: &Path,
    ) -> io::Result<Box<dyn Iterator<Item = io::Result<fs::DirEntry>>>> {
        Ok(Box::new(fs::read_dir(path)?))
    }

    fn is_valid_executable(&self, path: &Path) -> io::Result<bool> {
        let metadata = fs::metadata(path)?;
        let mode = metadata.permissions().mode();
        Ok(metadata.is_file() && mode & 0o111 != 0 && mode & 0o022 == 0 && metadata.uid() == 0)
    }
}
