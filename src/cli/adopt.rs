//! `flexvol adopt`: takes an existing image or logical volume over as a volume.

use super::{
    create::Output,
    driver_options::DriverOptions,
    manifest::{self, Cluster, Described},
};
use crate::{installed::Installed, size::requested};
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::{
    Adoption,
    sdk::{Bytes, VolumeName},
};
use std::path::PathBuf;

/// Make an existing image or logical volume a volume and print the manifests that use it
///
/// FILE must lie on the pool's file system and is moved into the pool; of a pool that is a volume
/// group it is a logical volume of that group, GROUP/NAME or its device, and is renamed. Directories are not
/// taken over. What holds a whole xfs, ext4, ext3 or btrfs and nothing behind it is kept as it is, with all its
/// data, if it can be mounted, which is tried where nobody sees it; anything else that holds data is refused and
/// left alone. A second time changes nothing.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol adopt disk.img --name data",
    "flexvol adopt vg0/data --name data --size 20Gi",
))]
pub struct Adopt {
    /// The image or logical volume; nobody else may have it open
    file: PathBuf,
    /// The name of the persistent volume and its claim
    #[arg(long, value_parser = VolumeName::parse)]
    name: VolumeName,
    /// The size it shall have at least, such as 10Gi; the file system follows when it is mounted
    /// [default: the image's, in whole MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = requested)]
    size: Option<Bytes>,
    /// Accept an image that proves blank: every byte of it zero. The first mount formats it
    #[arg(long)]
    format: bool,
    /// The pool [default: the driver's only one, or "default"]
    #[arg(long)]
    pool: Option<String>,
    /// The namespace of the claim; only its pods can mount the volume
    #[arg(long, default_value = "default", value_parser = manifest::namespace)]
    namespace: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    driver_options: DriverOptions,
}

impl Adopt {
    pub fn run(self, here: &Installed) -> Result<()> {
        let chosen = self.driver_options.choose(here)?;
        let target = self.cluster.target(&chosen)?;
        let mut adoption = Adoption::of(&self.file, self.name.clone(), &self.namespace);
        adoption.size = self.size;
        adoption.format = self.format;
        adoption.pool = self.pool;
        let adopted = chosen
            .maintenance()
            .adopt(&adoption)
            .with_context(|| format!("take over {}", self.file.display()))?;
        let what = if adopted.changed {
            "was taken over"
        } else {
            "had been taken over; nothing was changed"
        };
        let volume = adopted.volume;
        self.output.print(
            &target,
            &format!("Volume {} of {} {what}.", self.name, volume.size),
            &Described {
                name: self.name.as_str(),
                namespace: Some(&self.namespace),
                size: volume.size,
                filesystem: volume.filesystem,
                options: volume.options,
            },
        )
    }
}
