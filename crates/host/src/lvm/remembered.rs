//! The pool id that the node remembers for a group.
//!
//! Raw disks of pods and virtual machines can contain a group of the same name with a pool's tag; while the group's own
//! disks are late, that group is the only one. So the pool's id is stored where only root writes. The id is derived
//! from the pool's key, which only root can read: a tag can be forged, and the group's UUID is in sysfs, but not a key
//! with this id.

use super::{group_or_thin_pool::GroupOrThinPool, view::View};
use crate::{
    PoolId,
    remembered::{Record, Words, unreadable},
};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{fs, io};

/// Directories that survive reboots. Each contains a file `GROUP` for each group and `GROUP:POOL` for each thin pool. A
/// volume of the group may be mounted on `/var/lib/flexvol`, or above it; then the record there is missing together with
/// the group. So the one in `/etc` counts.
pub(super) const DIRECTORIES: [&str; 2] = ["/etc/flexvol/groups", "/var/lib/flexvol/groups"];

impl GroupOrThinPool {
    /// Stores the id of the pool in a view, which is the remembered one, in each directory that lacks it. Best effort: a
    /// failure is only logged.
    pub fn remember_first(&self, view: &View) {
        let remembered = view.id().and_then(|id| self.record().keep_first(id));
        if let Err(error) = remembered {
            log::warn!("the node does not remember its pool: {}", error.report());
        }
    }

    /// Stores this id, whatever was remembered.
    pub(super) fn remember(&self, id: PoolId) -> Result<()> {
        self.record().keep(id)
    }

    /// Checks that the pool in a view, if it is one, is the remembered one.
    pub(super) fn expect_remembered(&self, view: &View) -> Result<()> {
        let Ok(found) = view.id() else {
            return self.remembered().map(drop);
        };
        let words = Words {
            another: "the volume group is another one than the node's pool, and has its name: the pool has",
            disks: "are the disks of the pool attached",
            again: &format!("`flexvol pool init {} --replace`", self.options()),
        };
        self.record()
            .expect(found, &words)
            .map(drop)
            .inspect_err(|_| log::info!("the group that is there has the UUID {}", view.uuid))
    }

    /// Checks that making this a pool does not replace another remembered pool: the volumes of that one would be
    /// refused from then on, even when its disks are back.
    pub(super) fn expect_not_replacing(&self, view: &View) -> Result<()> {
        let again = format!("`flexvol pool init {} --replace`", self.options());
        let known = match self.remembered() {
            Ok(Some(known)) => known,
            Ok(None) => return Ok(()),
            Err(error) => {
                let what = format!("{error}; where the group is the node's pool, {again}");
                return Err(Error::new(error.kind(), what).because(error.report()));
            }
        };
        // A copied group keeps its key, and so the id; `tag` checks whether it may be the pool.
        let found = view.pool_tag()?.map(|tag| tag.key.id());
        let is = match found {
            Some(found) if found == known => return Ok(()),
            Some(found) => format!("is the pool with the id {found}"),
            // The group has lost its tag, which `tag` reports.
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

    /// Returns the remembered pools: of this thin pool, or if none is named, of the whole group.
    pub(super) fn remembered_of_group(&self) -> Result<Vec<PoolId>> {
        if self.thin_pool.is_some() {
            return Ok(self.remembered()?.into_iter().collect());
        }
        let mut known = Vec::new();
        for directory in DIRECTORIES {
            let entries = match fs::read_dir(directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(error)),
            };
            for entry in entries {
                let name = entry.map_err(unreadable)?.file_name();
                let name = name.to_string_lossy();
                if name.split(':').next() == Some(&self.group) {
                    known.extend(recorded_as(name.into_owned()).read(None)?);
                }
            }
        }
        Ok(known)
    }

    /// Returns what the node's records of this pool say, if they contradict each other.
    #[must_use]
    pub fn contradicting_records(&self) -> Option<String> {
        self.record().contradiction()
    }

    fn remembered(&self) -> Result<Option<PoolId>> {
        self.record().read(None)
    }

    fn record(&self) -> Record<'static> {
        recorded_as(match &self.thin_pool {
            Some(pool) => format!("{}:{pool}", self.group),
            None => self.group.clone(),
        })
    }

    /// Returns the options of `flexvol pool init` for this group or thin pool.
    #[must_use]
    pub fn options(&self) -> String {
        match &self.thin_pool {
            Some(pool) => format!("--group {} --thin-pool {pool}", self.group),
            None => format!("--group {}", self.group),
        }
    }
}

fn recorded_as(name: String) -> Record<'static> {
    Record::at(&DIRECTORIES, name, None)
}
