//! `flexvol gc`: removes what interrupted processes left behind.

use super::{configured::Configured, print};
use crate::installed::Installed;
use anyhow::{Result, bail};
use clap::Args;

/// Remove what killed processes left behind
///
/// Names that have led to no volume for an hour, idle devices of volumes that a cut attach left,
/// storage of volumes whose making was cut short, directories whose making or removal was, and locks
/// of volumes that are gone. Volumes that were deleted are removed, with their data, after the time
/// that their pool's keep_deleted said then, or says now if that is longer, and before where they have more of the pool than its keep_at_most. It counts while the node
/// runs, and from one start to the next as far as gc saw it. Directories that lost their limits, as when quotas were turned off and
/// on, have them again. Nothing is touched that does not carry this driver's mark, and nothing else
/// that anybody uses.
#[derive(Debug, Args)]
pub struct Gc {
    /// Only tell what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    configured: Configured,
}

impl Gc {
    pub fn run(self, here: &Installed) -> Result<()> {
        let chosen = self.configured.choose(here)?;
        if !chosen.is_known() {
            bail!(
                "no driver is installed here, so it is not known how long deleted volumes are kept; say --driver, or --config with a configuration"
            );
        }
        let leftovers = chosen.upkeep().tidy(self.dry_run);
        let mut failed = Vec::new();
        for leftover in &leftovers {
            match &leftover.removed {
                Ok(true) => print(format_args!("removed {}", leftover.what))?,
                Ok(false) => print(format_args!("would remove {}", leftover.what))?,
                Err(error) => failed.push(format!("{}: {}", leftover.what, error.report())),
            }
        }
        if leftovers.is_empty() {
            print(format_args!("nothing was left behind"))?;
        }
        if failed.is_empty() {
            Ok(())
        } else {
            bail!("cannot tidy everything: {}", failed.join("; "))
        }
    }
}
