//! `flexvol uninstall`: removes a driver from kubelet.

use super::print;
use crate::plugin::{DriverName, PluginDir, Removed, remove};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Take a driver away from kubelet
///
/// Refused while volumes of the driver are mounted: kubelet could not unmount them any more. Its
/// pools and volumes stay, its configuration goes. Doing it again changes nothing.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol uninstall --driver example.com/disk",
    "flexvol uninstall --driver example.com/disk --plugin-dir DIR",
))]
pub struct Uninstall {
    /// The driver's name, as persistent volumes say it
    #[arg(long = "driver", alias = "name", value_name = "VENDOR/DRIVER")]
    name: DriverName,

    /// Kubelet's plugin directory [default: found as `flexvol install` finds it]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
}

impl Uninstall {
    pub fn run(self) -> Result<()> {
        super::need_root("uninstall a driver")?;
        let plugin_dir = PluginDir::find(self.plugin_dir.as_deref())?;
        let (name, path) = (&self.name, plugin_dir.path.display());
        match remove(&plugin_dir.path, name)? {
            Removed::Driver => print(format_args!(
                "uninstalled {name} from {path}; its volumes are as they were"
            )),
            Removed::Nothing => print(format_args!("{name} is not installed in {path}")),
        }
    }
}
