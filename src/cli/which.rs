//! Which driver of the node a verb is about.

use crate::{
    installed::Installed,
    plugin::{DriverName, PluginDir},
};
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Which {
    /// An installed driver [default: this executable]
    #[arg(long, value_name = "VENDOR/DRIVER")]
    name: Option<DriverName>,

    /// Kubelet's plugin directory [default: found as `flexvol install` finds it]
    #[arg(long, value_name = "DIR", requires = "name")]
    plugin_dir: Option<PathBuf>,
}

impl Which {
    /// The driver that was named, which must be installed, or this executable.
    pub fn installed(&self, here: &Installed) -> Result<Installed> {
        let Some(name) = &self.name else {
            return Ok(here.clone());
        };
        let plugin_dir = PluginDir::find(self.plugin_dir.as_deref())?;
        plugin_dir.driver(name).with_context(|| {
            format!(
                "{name} is not installed in {} ({})",
                plugin_dir.path.display(),
                plugin_dir.known_from
            )
        })
    }
}
