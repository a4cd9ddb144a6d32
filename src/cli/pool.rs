//! `flexvol pool`: makes pools.

use super::print;
use crate::backends::is_name_for_lvm;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use flexvol_storage::host::{
    lvm::GroupOrThinPool,
    pool::{Pool, Rules},
};
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a directory, or a volume group, a pool by giving it an id
    ///
    /// Without its id a pool counts as not mounted, so that a missing data disk is never taken
    /// for an empty pool. Doing it again changes nothing. A node remembers which pool is at a path,
    /// and which group is one; another one in its place is refused.
    #[command(after_long_help = examples!("flexvol pool init /srv/flexvol", "flexvol pool init --group vg0"))]
    Init {
        /// An absolute path; the directory is made if it is missing
        #[arg(required_unless_present = "group")]
        path: Option<PathBuf>,
        /// A volume group of LVM, for the backend lvm
        #[arg(long, value_name = "NAME", conflicts_with = "path", value_parser = name_for_lvm)]
        group: Option<String>,
        /// Only a thin pool in that group
        #[arg(long, value_name = "NAME", requires = "group", value_parser = name_for_lvm)]
        thin_pool: Option<String>,
        /// Make the directory, or the group, the node's pool in the place of the one that the node
        /// remembers, which is gone for good
        #[arg(long)]
        replace: bool,
    },
}

fn name_for_lvm(text: &str) -> Result<String, &'static str> {
    match is_name_for_lvm(text) {
        true => Ok(text.to_owned()),
        false => Err("that is no name that LVM allows"),
    }
}

impl Verb {
    pub fn run(self) -> Result<()> {
        let Verb::Init {
            path,
            group,
            thin_pool,
            replace,
        } = self;
        match (path, group) {
            (_, Some(group)) => init_group(&GroupOrThinPool { group, thin_pool }, replace),
            (Some(path), None) => init_directory(&path, replace),
            (None, None) => bail!("name a directory, or a group with --group"),
        }
    }
}

fn init_group(place: &GroupOrThinPool, replace: bool) -> Result<()> {
    let (id, made) = place
        .init(replace)
        .with_context(|| format!("make {place} a pool"))?;
    print(format_args!("{place} {}, with id {id}", what(made)))
}

fn what(made: bool) -> &'static str {
    if made {
        "is a pool now"
    } else {
        "was a pool already"
    }
}

fn init_directory(path: &Path, replace: bool) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("make {}", path.display()))?;
    let made = match replace {
        true => Pool::replace(path),
        false => Pool::init(path),
    };
    let (id, made) = made.with_context(|| format!("make {} a pool", path.display()))?;
    print(format_args!(
        "{} {}, with id {id}",
        path.display(),
        what(made)
    ))?;
    match Pool::open(path)?.limited(&Rules::default()) {
        Ok(_) => print(format_args!(
            "its file system limits directories: it will do for the backends loop and dir"
        )),
        Err(why) => print(format_args!(
            "it will do for the backend loop, and not for dir: {why}"
        )),
    }
}
