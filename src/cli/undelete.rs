//! `flexvol undelete`: restores a deleted volume.

use super::{driver_options::DriverOptions, print};
use crate::installed::Installed;
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::sdk::Handle;

/// Restore a deleted volume (while keep_deleted lasts)
///
/// Volumes of pools whose configuration says keep_deleted are kept for that long, if keep_at_most allows, as `flexvol list`
/// shows. To remove one earlier, restore it, lower keep_deleted and delete it again. Kubernetes has forgotten them: `flexvol list HANDLE --output pv` prints the object.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol undelete 4b73f00d4b73f00d4b73f00d4b73f00d",
    "flexvol list -o pv 4b73f00d4b73f00d4b73f00d4b73f00d",
))]
pub struct Undelete {
    /// The volume's handle
    #[arg(value_parser = Handle::parse)]
    handle: Handle,
    #[command(flatten)]
    driver_options: DriverOptions,
}

impl Undelete {
    pub fn run(self, here: &Installed) -> Result<()> {
        let driver = self.driver_options.choose(here)?.maintenance();
        let changed = driver
            .undelete(self.handle)
            .with_context(|| format!("restore volume {}", self.handle))?;
        print(format_args!(
            "volume {} {}",
            self.handle,
            match changed {
                true => "is a volume again",
                false => "was not deleted; nothing was changed",
            }
        ))
    }
}
