//! Which driver a verb for people works with.

use crate::{
    backends::{self, Backend},
    config::Config,
    installed::Installed,
};
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::{
    Upkeep,
    sdk::{self, Driver},
};
use std::path::{Path, PathBuf};

/// The option that names a driver by its configuration.
#[derive(Debug, Args)]
pub struct Configured {
    /// The driver's configuration [default: the one beside this executable]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A driver and its configuration.
#[derive(Debug)]
pub struct Chosen {
    installed: Installed,
    config: Config,
}

impl Configured {
    /// The driver that was named, or the one this executable is.
    pub fn choose(&self, here: &Installed) -> Result<Chosen> {
        let (installed, config) = match &self.config {
            None => (here.clone(), Config::load(here)),
            Some(path) => (
                configured_by(path).unwrap_or_else(|| here.clone()),
                Config::read(path),
            ),
        };
        Ok(Chosen {
            config: config.context("read the driver's configuration")?,
            installed,
        })
    }
}

/// The driver beside whose executable a configuration lies, by its name `.<driver>.toml`.
fn configured_by(path: &Path) -> Option<Installed> {
    let name = path.file_name()?.to_str()?;
    let driver = name.strip_prefix('.')?.strip_suffix(".toml")?;
    Some(Installed::at(&path.with_file_name(driver)))
}

impl Chosen {
    /// `vendor/driver`, where the driver lies in a directory that kubelet would call by that name.
    pub fn qualified_name(&self) -> Option<String> {
        let configuration = self.installed.configuration();
        let directory = configuration.parent()?.file_name()?.to_str()?;
        let (vendor, driver) = directory.split_once('~')?;
        (driver == self.installed.name()).then(|| format!("{vendor}/{driver}"))
    }

    /// The names of its pools.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        self.config.pools.keys().map(String::as_str)
    }

    /// The driver, to provision with.
    pub fn driver(&self) -> sdk::Result<Box<dyn Driver>> {
        (self.backend()?.open)(&self.config)
    }

    /// The driver as people see it.
    pub fn upkeep(&self) -> sdk::Result<Box<dyn Upkeep>> {
        (self.backend()?.upkeep)(&self.config)
    }

    fn backend(&self) -> sdk::Result<&'static Backend> {
        backends::find(self.config.backend(self.installed.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_configuration_tells_the_driver() {
        let path = Path::new("/plugins/example.com~disk/.disk.toml");
        let chosen = Chosen {
            installed: configured_by(path).unwrap(),
            config: Config::default(),
        };
        assert_eq!(chosen.qualified_name().unwrap(), "example.com/disk");
        assert!(configured_by(Path::new("/etc/flexvol.toml")).is_none());
    }
}
