//! `flexvol create`: makes a volume manually, and prints the manifests that use it.

use super::{
    driver_options::DriverOptions,
    manifest::{self, Cluster, Described, Format},
    terminal,
};
use crate::{installed::Installed, size};
use anyhow::{Context, Result, bail};
use clap::Args;
use flexvol_storage::{
    Mark, Subject,
    sdk::{Bytes, Driver, ErrorKind, Filesystem, Options, Volume, VolumeName},
};
use std::io::{self, Write};

/// Make a volume and print the PersistentVolume and PersistentVolumeClaim that use it
///
/// The claim gets the volume's name. Doing it again with the same name changes nothing and prints
/// the same.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol create data --size 10Gi | kubectl apply -f -",
    "flexvol create data --size 1Gi --fs ext4 -n shop --pool default",
))]
pub struct Create {
    /// The name of the persistent volume and its claim
    #[arg(value_parser = VolumeName::parse)]
    name: VolumeName,
    /// The size as a Kubernetes quantity, such as 10Gi; rounded up to whole MiB (of a volume group, to
    /// whole extents on each disk), and with a file system to at least 300Mi for xfs, 128Mi for btrfs,
    /// 16Mi for ext4 and ext3
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::requested)]
    size: Bytes,
    /// The pool [default: the one that has it already, or the driver's only one, or "default"]
    #[arg(long)]
    pool: Option<String>,
    /// xfs, ext4, ext3 or btrfs [default: the pool's]
    #[arg(long, value_name = "FILESYSTEM")]
    fs: Option<Filesystem>,
    /// The namespace of the claim; only its pods can mount the volume
    #[arg(long, short, default_value = "default", value_parser = manifest::namespace)]
    namespace: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    driver_options: DriverOptions,
}

/// How the manifests are printed.
#[derive(Debug, Args)]
pub struct Output {
    /// yaml, or json: one List
    #[arg(
        long,
        short,
        value_enum,
        default_value = "yaml",
        hide_possible_values = true
    )]
    output: Format,
    /// Also print the storage class, without which claims do not grow
    #[arg(long)]
    with_storage_class: bool,
}

impl Create {
    pub fn run(self, here: &Installed) -> Result<()> {
        let chosen = self.driver_options.choose(here)?;
        // Check this first: a volume without manifests is of no use.
        let target = self.cluster.target(&chosen)?;
        let inventory = chosen.maintenance();
        let subject = Subject::Name(self.name.clone());
        let mut unknown = None;
        let existing = match inventory.find(&subject) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            // `provision` asks the named pool itself. A pool that cannot be asked keeps nobody from the others.
            Err(error) if self.pool.is_some() => {
                unknown = Some(error);
                None
            }
            found => Some(found.context(
                "look for a volume of that name (with --pool it is made there all the same)",
            )?),
        };
        // Unless told otherwise use the volume's pool, because `provision` in the default pool would make another
        // volume.
        let there = existing.as_ref().map(|existing| &existing.pool);
        let pool = self.pool.as_ref().or(there);
        let parameters = Options::from_iter(pool.map(|pool| ("pool", pool.as_str())));
        let mut request = Volume::default();
        request.name = Some(self.name.clone());
        request.filesystem = self.fs.map(Into::into);
        request.claim_namespace = Some(self.namespace.clone());
        request.options = parameters;
        if let Some(existing) = &existing {
            let mark = existing.mark();
            if let Some(namespace) = mark.and_then(|mark| mark.namespace.as_deref())
                && namespace != self.namespace
            {
                bail!(
                    "volume {} is there and belongs to namespace {namespace}; choose another name",
                    self.name
                );
            }
            if let Some(pool) = &self.pool
                && *pool != existing.pool
            {
                bail!(
                    "volume {} is there, in pool {}; choose another name",
                    self.name,
                    existing.pool
                );
            }
            if let (Some(asked), Some(has)) = (self.fs, mark.and_then(Mark::filesystem))
                && asked != has
            {
                bail!(
                    "volume {} is there and holds {has}, or was made for it; choose another name",
                    self.name
                );
            }
            if existing.asset.size < self.size {
                bail!(
                    "volume {} is there with {:#}, which is less than the requested {:#}; grow its claim or choose another name",
                    self.name,
                    existing.asset.size,
                    self.size
                );
            }
            // The smallest size depends on the file system: that of the volume, whatever the pool's default is.
            request.filesystem = request
                .filesystem
                .or(mark.and_then(Mark::filesystem).map(Into::into));
        }
        let made = chosen
            .driver()
            .provision(&request, self.size)
            .map_err(flexvol_storage::sdk::Error::from)
            .with_context(|| format!("make volume {}", self.name))?;
        if let Some(error) = unknown {
            let why = terminal::lines(&error.report());
            // If standard error is closed, nobody can be told.
            let _ = writeln!(
                io::stderr(),
                "flexvol: it is not known whether another pool has a volume called {}: {why}",
                self.name
            );
        }
        if existing.is_none() && made.size != self.size {
            // If standard error is closed, nobody can be told.
            let _ = writeln!(
                io::stderr(),
                "flexvol: the size was rounded up from {} to {}",
                self.size,
                made.size
            );
        }
        let what = match existing {
            Some(_) => "was there already; nothing was changed",
            None => "was made",
        };
        self.output.print(
            &target,
            &format!("Volume {} of {} {what}.", self.name, made.size),
            &Described {
                name: self.name.as_str(),
                namespace: Some(&self.namespace),
                size: made.size,
                filesystem: made.filesystem,
                options: made.options,
            },
        )
    }
}

impl Output {
    /// Prints the objects that Kubernetes needs to use a volume.
    pub fn print(
        &self,
        target: &manifest::ClusterTarget,
        remark: &str,
        volume: &Described<'_>,
    ) -> Result<()> {
        let mut remarks = vec![remark.to_owned()];
        let mut objects = Vec::new();
        if self.with_storage_class {
            objects.push(target.storage_class());
        } else {
            remarks.push(
                "The claim grows only if its storage class exists and allows it; print one with\n--with-storage-class."
                    .to_owned(),
            );
        }
        objects.extend([target.persistent_volume(volume), target.claim(volume)]);
        manifest::print_all(self.output, &remarks, &objects)
    }
}
