//! The location of this executable, by which alone kubelet tells a driver its name.
//!
//! Kubelet execs `<plugin directory>/<vendor>~<driver>/<driver>`. The configuration and the prepared answer to
//! `init` lie beside it. Their names begin with a dot, so that kubelet's watcher ignores them
//! (`pkg/volume/flexvolume/probe.go`).

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The directory and the name under which this executable was called.
#[derive(Clone, Debug)]
pub struct Installed {
    directory: PathBuf,
    name: String,
}

impl Installed {
    /// Takes both from the first argument, so that a link with another name is another driver. If a shell found the
    /// executable through PATH, the kernel is asked.
    pub fn here(argument: Option<&OsStr>) -> Installed {
        let called = argument
            .map(Path::new)
            .filter(|path| path.components().count() > 1);
        let path = match called {
            Some(path) => path.to_owned(),
            None => env::current_exe().unwrap_or_else(|_| PathBuf::from("/flexvol")),
        };
        Installed::at(&path)
    }

    /// Returns the driver whose executable is `path`.
    pub fn at(path: &Path) -> Installed {
        let name = path.file_name().unwrap_or(OsStr::new("flexvol"));
        Installed {
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
            name: name.to_string_lossy().into_owned(),
        }
    }

    /// Whether the executable is where kubelet looks for drivers: in a directory `vendor~driver`.
    pub fn is_driver(&self) -> bool {
        let directory = self.directory.file_name().unwrap_or_default();
        directory.as_encoded_bytes().contains(&b'~')
    }

    /// The name of the driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the executable.
    pub fn executable(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// The path of the configuration.
    pub fn configuration(&self) -> PathBuf {
        self.directory.join(format!(".{}.toml", self.name))
    }

    /// The path of the line that `init` prints, left by `install`.
    pub fn init_line(&self) -> PathBuf {
        self.directory.join(format!(".{}.init", self.name))
    }
}
