//! `flexvol pool`: the places volumes are carved from.

use super::print;
use anyhow::{Context, Result};
use clap::Subcommand;
use flexvol_storage::host::pool::Pool;
use std::{fs, os::unix::fs::DirBuilderExt, path::PathBuf};

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a directory a pool by giving it an id
    ///
    /// Without its id a pool counts as not mounted, so that a missing data disk is never taken
    /// for an empty pool. Doing it again changes nothing.
    Init {
        /// An absolute path; the directory is made if it is missing
        path: PathBuf,
    },
}

impl Verb {
    pub fn run(self) -> Result<()> {
        match self {
            Verb::Init { path } => {
                fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(&path)
                    .with_context(|| format!("make {}", path.display()))?;
                let (id, made) =
                    Pool::init(&path).with_context(|| format!("make {} a pool", path.display()))?;
                let what = if made {
                    "is a pool now"
                } else {
                    "was a pool already"
                };
                print(format_args!("{} {what}, with id {id}", path.display()))
            }
        }
    }
}
