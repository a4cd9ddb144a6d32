//! `flexvol demo`: a volume's whole life on this machine, as kubelet leads it.

mod content;
mod node;
mod story;

use super::print;
use anyhow::Result;
use clap::{Args, ValueEnum};
use flexvol_storage::sdk::Filesystem;
use node::Node;

/// Show a volume that grows while a pod uses it
///
/// Installs the driver in a private place and calls it exactly as kubelet does, on real loop
/// devices and file systems: provision, mount, fill, expandfs while mounted, unmount, mount again,
/// delete. Prints every callout with its reply and its time. Everything lies in memory and in a
/// mount namespace of its own (some 200 MiB for a while), so nothing is left behind, also when it
/// is interrupted. Needs root.
#[derive(Debug, Args)]
pub struct Demo {
    /// xfs, ext4, or all
    #[arg(long, value_enum, default_value = "all", hide_possible_values = true)]
    filesystem: Choice,
    /// Print the JSON arguments of callouts, too
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    Xfs,
    Ext4,
    All,
}

impl Demo {
    pub fn run(self) -> Result<()> {
        super::need_root("run the demo, which mounts")?;
        let node = Node::new(self.verbose)?;
        node.introduce()?;
        let filesystems: &[Filesystem] = match self.filesystem {
            Choice::Xfs => &[Filesystem::Xfs],
            Choice::Ext4 => &[Filesystem::Ext4],
            Choice::All => &[Filesystem::Xfs, Filesystem::Ext4],
        };
        for filesystem in filesystems {
            story::tell(&node, *filesystem)?;
        }
        print(format_args!(
            "\nEverything the demo made was in memory and is gone now."
        ))
    }
}
