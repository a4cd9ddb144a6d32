//! Selection of the driver for a verb.

use super::installed_driver::unnamed;
use crate::{
    config::Config,
    installed::Installed,
    plugin::{DriverName, PluginDir},
};
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::{Maintenance, VolumeDriver};
use std::path::{Path, PathBuf};

/// The options that name a driver.
#[derive(Debug, Args)]
pub struct DriverOptions {
    /// An installed driver [default: this executable, or the only one]
    #[arg(long, value_name = "VENDOR/DRIVER", help_heading = "Driver")]
    driver: Option<DriverName>,
    /// Kubelet's plugin directory [default: found as `flexvol install` finds it]
    #[arg(long, value_name = "DIR", requires = "driver", help_heading = "Driver")]
    plugin_dir: Option<PathBuf>,
    /// Another configuration than that of the driver
    #[arg(long, value_name = "FILE", help_heading = "Driver")]
    config: Option<PathBuf>,
}

/// A driver and its configuration.
#[derive(Debug)]
pub struct Chosen {
    name: Option<DriverName>,
    config: Config,
    is_known: bool,
}

impl DriverOptions {
    /// Returns the driver that was named, or the default one.
    pub fn choose(&self, here: &Installed) -> Result<Chosen> {
        let (installed, config) = match (&self.config, &self.driver) {
            (Some(path), _) => {
                let installed = configured_by(path).unwrap_or_else(|| here.clone());
                let config = Config::read(path, installed.name());
                (installed, config)
            }
            (None, Some(name)) => {
                let installed = self.find(name)?;
                let config = Config::load(&installed);
                (installed, config)
            }
            (None, None) => {
                let installed = unnamed(here)?;
                let config = Config::load(&installed);
                (installed, config)
            }
        };
        let is_known =
            self.config.is_some() || installed.is_driver() || installed.configuration().exists();
        Ok(Chosen {
            config: config.context("read the driver's configuration")?,
            name: self.driver.clone().or_else(|| name_of(&installed)),
            is_known,
        })
    }

    fn find(&self, name: &DriverName) -> Result<Installed> {
        let plugins = PluginDir::find(self.plugin_dir.as_deref())?;
        plugins.driver(name)?.with_context(|| {
            format!(
                "{name} is not installed in {}; say --config to use a configuration all the same",
                plugins.path.display()
            )
        })
    }
}

/// Returns the driver's name in Kubernetes, if it lies in a directory of that name.
fn name_of(installed: &Installed) -> Option<DriverName> {
    let executable = installed.executable();
    let directory = executable.parent()?.file_name()?.to_str()?;
    let name: DriverName = directory.replace('~', "/").parse().ok()?;
    (name.driver() == installed.name()).then_some(name)
}

/// Returns the driver beside whose executable a configuration named `.<driver>.toml` lies.
fn configured_by(path: &Path) -> Option<Installed> {
    let name = path.file_name()?.to_str()?;
    let driver = name.strip_prefix('.')?.strip_suffix(".toml")?;
    Some(Installed::at(&path.with_file_name(driver)))
}

impl Chosen {
    /// Returns the driver's name in Kubernetes, if it was given or follows from its path.
    pub fn name(&self) -> Option<&DriverName> {
        self.name.as_ref()
    }

    /// Whether the driver or its configuration was named or found, so that these are not mere defaults.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Iterates over the names of its pools.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        self.config.pools.keys().map(String::as_str)
    }

    /// Returns the driver, to provision with.
    pub fn driver(&self) -> VolumeDriver {
        let config = &self.config;
        config.backend.driver(&config.pools, &config.settings())
    }

    /// Returns the driver for commands.
    pub fn maintenance(&self) -> Box<dyn Maintenance> {
        let config = &self.config;
        (config.backend.maintenance)(&config.pools, config.settings())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_configuration_tells_the_driver() {
        let path = Path::new("/plugins/example.com~disk/.disk.toml");
        let installed = configured_by(path).unwrap();
        assert_eq!(name_of(&installed).unwrap().to_string(), "example.com/disk");
        assert!(configured_by(Path::new("/etc/flexvol.toml")).is_none());
        let elsewhere = Installed::at(Path::new("/usr/local/bin/disk"));
        assert!(name_of(&elsewhere).is_none());
    }
}
