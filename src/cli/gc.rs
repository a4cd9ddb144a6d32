//! `flexvol gc`: removes what interrupted processes left behind.

use super::{driver_options::DriverOptions, print};
use crate::installed::Installed;
use anyhow::{Result, bail};
use clap::Args;

/// Remove leftovers of interrupted operations and expired deleted volumes
///
/// Names that have led to no volume for an hour, idle devices of volumes that a cut attach left,
/// storage of volumes whose making was cut short, directories whose making or removal was, and locks
/// of volumes that are gone. Volumes that were deleted are removed, with their data, after the time
/// that their pool's keep_deleted said then, or says now if that is longer, and before where they have more of the pool than its keep_at_most. It counts while the node
/// runs, and from one start to the next as far as gc saw it. Directories that lost their limits, as when quotas were turned off and
/// on, have them again. Nothing is touched that does not carry this driver's mark, and nothing else
/// that anybody uses.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol gc --dry-run",
    "flexvol gc --driver example.com/disk",
))]
pub struct Gc {
    /// Only tell what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    driver_options: DriverOptions,
}

impl Gc {
    pub fn run(self, here: &Installed) -> Result<()> {
        let chosen = self.driver_options.choose(here)?;
        if !chosen.is_known() {
            bail!(
                "no driver is installed here, so it is not known how long deleted volumes are kept; say --driver, or --config with a configuration"
            );
        }
        let (mut told, mut would, mut failed) = (Ok(()), Vec::new(), Vec::new());
        let mut is_clean = true;
        chosen.maintenance().tidy(self.dry_run, &mut |leftover| {
            is_clean = false;
            match &leftover.removed {
                // At once: a process that goes on without a pool that became silent does not find it again.
                Ok(true) => {
                    let line = print(format_args!("removed {}", leftover.what));
                    if told.is_ok() {
                        told = line;
                    }
                }
                Ok(false) => would.push(leftover.what),
                Err(error) => failed.push(format!("{}: {}", leftover.what, error.report())),
            }
        });
        told?;
        for what in would {
            print(format_args!("would remove {what}"))?;
        }
        if is_clean {
            print(format_args!("nothing was left behind"))?;
        }
        if failed.is_empty() {
            Ok(())
        } else {
            bail!("cannot tidy everything: {}", failed.join("; "))
        }
    }
}
