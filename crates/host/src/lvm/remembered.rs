//! Which pool the node's volumes of a group are in, as the node remembers it.
//!
//! Raw disks of pods and of virtual machines can have a group of the same name, with the tag of a pool, and
//! while the group's own disks are late they have the only one. So the pool's id is kept where nobody
//! else writes. It is derived from the pool's key, which only root reads: a tag can be made up, and the
//! group's UUID be read in sysfs, but not a key that has this id.

use super::{group_or_thin_pool::GroupOrThinPool, view::View};
use crate::{PoolId, random};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Outlives a boot. A file for each group, `GROUP`, and each thin pool, `GROUP:POOL`.
pub(super) const DIRECTORY: &str = "/var/lib/flexvol/groups";

impl GroupOrThinPool {
    /// Keeps the id of the pool that a view shows, unless one is remembered. A node that cannot write it
    /// does without.
    pub fn remember_first(&self, view: &View) {
        let remember = || match self.remembered()? {
            Some(_) => Ok(()),
            None => self.write(view.id()?, |new, record| fs::hard_link(new, record)),
        };
        if let Err(error) = remember() {
            log::warn!("the node does not remember its pool: {}", error.report());
        }
    }

    /// Keeps this id from now on, whatever was remembered.
    pub(super) fn remember(&self, id: PoolId) -> Result<()> {
        let known = self.remembered();
        if matches!(known, Ok(Some(known)) if known == id) {
            return Ok(());
        }
        match self.write(id, |new, record| fs::rename(new, record)) {
            Err(error) if matches!(known, Ok(None)) => {
                log::warn!("the node does not remember its pool: {}", error.report());
                Ok(())
            }
            written => written,
        }
    }

    /// Checks that the pool that a view shows, if it is one, is the one that is remembered.
    pub(super) fn expect_remembered(&self, view: &View) -> Result<()> {
        let (Some(known), Ok(found)) = (self.remembered()?, view.id()) else {
            return Ok(());
        };
        if found == known {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "the volume group is another one than the node's pool, and has its name: the pool has the id {known}, and this one {found}; are the disks of the pool attached? if this is to be the pool from now on, `flexvol pool init {} --replace` accepts it",
                self.options()
            ),
        )
        .because(format!("the group that is there has the UUID {}", view.uuid)))
    }

    /// Checks that nobody forgets another pool by making this one the pool: its volumes would be refused
    /// from then on, also when its disks are there again.
    pub(super) fn expect_unknown_or_same(&self, view: &View) -> Result<()> {
        let again = format!("`flexvol pool init {} --replace`", self.options());
        let known = match self.remembered() {
            Ok(Some(known)) => known,
            Ok(None) => return Ok(()),
            Err(error) => {
                let what = format!("{error}; where the group is the node's pool, {again}");
                return Err(Error::new(error.kind(), what).because(error.report()));
            }
        };
        // A copy keeps its key, and so the id; whether it may be the pool is asked next.
        let found = view.pool_tag()?.map(|tag| tag.key.id());
        let is = match found {
            Some(found) if found == known => return Ok(()),
            Some(found) => format!("is the pool with the id {found}"),
            // It has lost its tag, which is said next.
            None if view.has_our_volumes() => return Ok(()),
            None => "is no pool".to_owned(),
        };
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "the node's pool of this name has the id {known}, and the group that is there, with the UUID {}, {is}; attach the disks of the pool and detach the others, or where it is gone for good: {again} forgets it, and its volumes",
                view.uuid
            ),
        ))
    }

    /// The pools that are remembered of this place, or where no thin pool is named of all of the group.
    pub(super) fn remembered_of_group(&self) -> Result<Vec<PoolId>> {
        if self.thin_pool.is_some() {
            return Ok(self.remembered()?.into_iter().collect());
        }
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(error)),
        };
        let mut known = Vec::new();
        for entry in entries {
            let name = entry.map_err(unreadable)?.file_name();
            let name = name.to_string_lossy();
            if name.split(':').next() == Some(&self.group) {
                known.extend(read(&Path::new(DIRECTORY).join(&*name))?);
            }
        }
        Ok(known)
    }

    fn remembered(&self) -> Result<Option<PoolId>> {
        read(&self.record())
    }

    fn record(&self) -> PathBuf {
        let name = match &self.thin_pool {
            Some(pool) => format!("{}:{pool}", self.group),
            None => self.group.clone(),
        };
        Path::new(DIRECTORY).join(name)
    }

    /// What `flexvol pool init` takes to mean this place.
    fn options(&self) -> String {
        match &self.thin_pool {
            Some(pool) => format!("--group {} --thin-pool {pool}", self.group),
            None => format!("--group {}", self.group),
        }
    }

    /// Writes a record beside its place, and has `put` give it its name.
    fn write(&self, id: PoolId, put: impl Fn(&Path, &Path) -> io::Result<()>) -> Result<()> {
        // No group is called so.
        let new = Path::new(DIRECTORY).join(format!(":{}", random::handle()?));
        let write = || {
            let mut directory = DirBuilder::new();
            directory.recursive(true).mode(0o700).create(DIRECTORY)?;
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            writeln!(file, "{id}")?;
            file.sync_all()?;
            put(&new, &self.record())?;
            File::open(DIRECTORY)?.sync_all()
        };
        let written = write();
        // Where it was renamed it is not there any more.
        let _ = fs::remove_file(&new);
        written.map_err(|error| Error::system("remember which pool the volume group is", error))
    }
}

fn read(record: &Path) -> Result<Option<PoolId>> {
    match fs::read_to_string(record) {
        Ok(text) => PoolId::parse(text.trim_end()).map(Some).map_err(|_| {
            Error::new(
                ErrorKind::Configuration,
                "what the node remembers of its pool is damaged; `flexvol pool init` with --replace writes it anew",
            )
            .because(record.display().to_string())
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::system("read which pool the node has", error)
}
