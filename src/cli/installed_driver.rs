//! Selection of an installed driver for a verb.

use crate::{
    installed::Installed,
    plugin::{DriverName, PluginDir, drivers},
};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct InstalledDriver {
    /// An installed driver [default: this executable, or the only one]
    #[arg(long = "driver", alias = "name", value_name = "VENDOR/DRIVER")]
    name: Option<DriverName>,

    /// Kubelet's plugin directory [default: found as `flexvol install` finds it]
    #[arg(long, value_name = "DIR", requires = "name")]
    plugin_dir: Option<PathBuf>,
}

impl InstalledDriver {
    /// Returns the driver that was named.
    pub fn name(&self) -> Option<&DriverName> {
        self.name.as_ref()
    }

    /// Returns the named driver, which must be installed, or else the default one.
    pub fn installed(&self, here: &Installed) -> Result<Installed> {
        let Some(name) = &self.name else {
            return unnamed(here);
        };
        let plugin_dir = PluginDir::find(self.plugin_dir.as_deref())?;
        plugin_dir.driver(name)?.with_context(|| {
            format!(
                "{name} is not installed in {} ({})",
                plugin_dir.path.display(),
                plugin_dir.known_from
            )
        })
    }
}

/// Returns the default driver: this executable if it is installed, or else the only installed one. If none is
/// installed, this executable with the defaults.
pub fn unnamed(here: &Installed) -> Result<Installed> {
    if here.is_driver() || here.configuration().exists() {
        return Ok(here.clone());
    }
    // Without a plugin directory there are no installed drivers.
    let installed = PluginDir::find(None).map(|found| drivers(&found.path));
    let mut installed = installed.unwrap_or_else(|_| Ok(Vec::new()))?;
    match installed.len() {
        0 => Ok(here.clone()),
        1 => Ok(installed.remove(0).1),
        _ => {
            let names: Vec<_> = installed.iter().map(|(name, _)| name.to_string()).collect();
            bail!(
                "several drivers are installed here: {}; say which with --driver",
                names.join(", ")
            )
        }
    }
}
