//! Volumes that are directories with a limit of their own.

use super::{
    Directory, FIRST_BLOCKS, Pool, Reserve,
    directory::{self, GONE, NEW},
    lacking::Owed,
    list, sync,
};
use crate::{
    VolumeId,
    fs::{
        attribute,
        quota::{Limiter, Projects, RECORD, Record, Usage},
    },
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::{collections::HashSet, fmt::Display, num::NonZeroU32};

/// What an administrator decides for the directories of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What the pool leaves free.
    pub reserve: Reserve,
    /// Volumes may be promised more together than there is.
    pub overcommit: bool,
    /// The projects that volumes on XFS and ext4 get.
    pub projects: Projects,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            reserve: Reserve::Percent(15),
            overcommit: false,
            projects: Projects::default(),
        }
    }
}

/// A pool on a file system that limits directories.
#[derive(Debug)]
pub struct Limited<'a> {
    pub(super) pool: &'a Pool,
    rules: &'a Rules,
    pub(super) limiter: Limiter,
}

/// What the volumes of a pool may still write, and their projects.
#[derive(Debug, Default)]
struct Promised {
    /// The limits of all.
    limits: Bytes,
    /// What can still be written: overwriting what a snapshot has too is that again.
    owed: Bytes,
    projects: HashSet<NonZeroU32>,
}

impl Promised {
    fn add(&mut self, promise: Bytes, own: Bytes) {
        let rest = promise.saturating_sub(own);
        self.limits = Bytes(self.limits.0.saturating_add(promise.0));
        self.owed = Bytes(self.owed.0.saturating_add(rest.0));
    }
}

impl Pool {
    /// The pool, for volumes with limits.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] where its file system limits no directories, with what to do.
    pub fn limited<'a>(&'a self, rules: &'a Rules) -> Result<Limited<'a>> {
        Ok(Limited {
            pool: self,
            rules,
            limiter: Limiter::of(&self.volumes)?,
        })
    }
}

impl Limited<'_> {
    /// How much a volume may take: what is in force, or what is to be where the limit was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for a directory that was made without a limit.
    pub fn size(&self, directory: &Directory) -> Result<Bytes> {
        let record = record(directory)?;
        match self.limiter.usage(&directory.root, &record) {
            Ok(Usage { limit, .. }) if limit != Bytes(0) => Ok(limit),
            Ok(_) => Ok(record.size),
            // A copy can be looked at and deleted, and nothing else.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(record.size),
            Err(error) => Err(error),
        }
    }

    /// Sees that a volume is limited as it should be: a pod that may change files can have moved
    /// it out of its project, and quotas can have been off meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none; otherwise what the system calls say.
    pub fn restore(&self, volume: &VolumeId) -> Result<()> {
        let directory = self.pool.directory(volume)?;
        let record = record(&directory)?;
        self.rejoin(&directory, &record)?;
        let Usage { limit, .. } = self.limiter.usage(&directory.root, &record)?;
        if limit < record.size {
            log::warn!(
                "the volume had a limit of {limit} (0: none); it gets {}",
                record.size
            );
            self.limiter.set(&directory.root, &record, record.size)?;
        }
        Ok(())
    }

    /// Undoes what the owner of a root can do, whatever flags he gave it.
    fn rejoin(&self, directory: &Directory, record: &Record) -> Result<()> {
        if directory.despite_flags(&|| self.limiter.join(&directory.root, record))? {
            log::warn!(
                "the volume was moved out of its limit, or made read-only; what was written meanwhile is not counted"
            );
        }
        Ok(())
    }

    /// The volumes whose limits were lost or lowered, or that were moved out of them, in no order: pods
    /// that have them mounted are held by none until [`Limited::restore`].
    ///
    /// # Errors
    /// What the system calls say. A volume that cannot be read is passed over.
    pub fn lost(&self) -> Result<Vec<VolumeId>> {
        let mut volumes = self.pool.volume_ids()?;
        volumes.retain(|volume| {
            self.is_lost(volume).unwrap_or_else(|error| {
                log::warn!("{volume}: {}", error.report());
                false
            })
        });
        Ok(volumes)
    }

    /// Whether this volume is one of [`Limited::lost`].
    ///
    /// # Errors
    /// What the system calls say.
    pub fn is_lost(&self, volume: &VolumeId) -> Result<bool> {
        let Some(directory) = self.pool.open_volume("", volume)? else {
            return Ok(false);
        };
        let Some(record) = Record::of(&directory.around)? else {
            return Ok(false);
        };
        let limit = self.limiter.usage(&directory.root, &record)?.limit;
        Ok(limit < record.size || !self.limiter.holds(&directory.root, &record)?)
    }

    /// Makes a volume's directory, empty, limited, marked and on disk; it appears complete or not
    /// at all. The caller holds the volume's lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where more was promised than there is, and
    /// [`ErrorKind::Conflict`] where the volume is already there.
    pub fn create(
        &self,
        volume: &VolumeId,
        size: Bytes,
        mark: &(impl Display + ?Sized),
    ) -> Result<()> {
        let _lock = self.pool.lock()?;
        // Of a process that was killed.
        self.pool.discard(NEW, volume)?;
        let promised = self.promised()?;
        self.expect_room(size, &promised)?;
        let make = |around: &_, name: &_| self.limiter.make(around, name);
        let made = self.pool.begin(volume, &make);
        let made = made.and_then(|directory| {
            self.limit(&directory, volume, size, &promised.projects)?;
            self.pool.publish(&directory, volume, mark)
        });
        if made.is_err() {
            self.pool.give_up(volume);
        }
        made
    }

    fn limit(
        &self,
        directory: &Directory,
        volume: &VolumeId,
        size: Bytes,
        taken: &HashSet<NonZeroU32>,
    ) -> Result<()> {
        let [a, b, c, d, ..] = volume.as_bytes();
        let wish = u32::from_le_bytes([*a, *b, *c, *d]);
        let is_taken =
            |project| NonZeroU32::new(project).is_none_or(|project| taken.contains(&project));
        let project = self
            .limiter
            .free_project(&self.rules.projects, &is_taken, wish)?;
        let record = Record { project, size };
        // First of all: by it a removal knows whose limit to lift.
        attribute::write(&directory.around, RECORD, &record)?;
        self.limiter.join(&directory.root, &record)?;
        self.raise(directory, &record, size)
    }

    /// Raises a volume's limit; a larger one stays. The caller holds the volume's lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where more was promised than there is; the limit is as it was.
    pub fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        let _lock = self.pool.lock()?;
        let directory = self.pool.directory(volume)?;
        let record = record(&directory)?;
        let has = promise(&record, self.limiter.usage(&directory.root, &record)?);
        if has < to {
            self.expect_room(to.saturating_sub(has), &self.promised()?)?;
        }
        self.rejoin(&directory, &record)?;
        self.raise(&directory, &record, to.max(has))
    }

    /// The largest volume that can be made now.
    ///
    /// # Errors
    /// What the system calls say, and where the file system takes no writes.
    pub fn available(&self) -> Result<Bytes> {
        self.pool.expect_not_read_only()?;
        self.limiter.expect_counted()?;
        self.left(&match self.rules.overcommit {
            true => Promised::default(),
            false => self.promised()?,
        })
    }

    /// How much more volumes may write than is free: others took it, or snapshots keep it.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn shortage(&self) -> Result<Bytes> {
        if self.rules.overcommit {
            return Ok(Bytes(0));
        }
        let owed = self.promised()?.owed;
        Ok(owed.saturating_sub(self.pool.space()?.free))
    }

    /// In whole MiB, as volumes are. Two counts, of which the smaller holds: what others write is
    /// in the first, and blocks that files of a volume share are once on the disk and several
    /// times in its quota.
    fn left(&self, promised: &Promised) -> Result<Bytes> {
        let space = self.pool.space()?;
        let reserve = self.rules.reserve.of(space.size);
        let unwritten = space.free.saturating_sub(reserve);
        let unwritten = unwritten.saturating_sub(promised.owed);
        let unpromised = space.size.saturating_sub(reserve);
        let unpromised = unpromised.saturating_sub(promised.limits);
        let Bytes(left) = unwritten.min(unpromised);
        Ok(Bytes(left - left % Bytes::MIB.0))
    }

    fn expect_room(&self, wanted: Bytes, promised: &Promised) -> Result<()> {
        self.limiter.expect_counted()?;
        if self.rules.overcommit {
            return self
                .pool
                .expect_room(FIRST_BLOCKS, self.rules.reserve, Owed::default());
        }
        let left = self.left(promised)?;
        if wanted <= left {
            return Ok(());
        }
        let Promised { limits, owed, .. } = promised;
        Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "the volume needs {wanted} more and the pool has {left} to give: {limits} are promised to volumes, of which {owed} are not written yet, or are shared with snapshots"
            ),
        ))
    }

    /// Limits a directory and looks whether it is. The record comes first: cut behind it, the
    /// next mount gives the volume what it says, and nothing forgets a growth that was reported.
    fn raise(&self, directory: &Directory, record: &Record, to: Bytes) -> Result<()> {
        let record = Record {
            size: to,
            ..*record
        };
        attribute::write(&directory.around, RECORD, &record)?;
        sync(&directory.around)?;
        self.limiter.set(&directory.root, &record, to)?;
        let Usage { limit, .. } = self.limiter.usage(&directory.root, &record)?;
        if limit < to {
            return Err(Error::new(
                ErrorKind::Storage,
                format!("the volume's quota was set to {to} and is {limit}"),
            ));
        }
        Ok(())
    }

    fn promised(&self) -> Result<Promised> {
        let mut promised = Promised::default();
        for name in list(&self.pool.volumes)? {
            let Some((prefix, volume)) = directory::entry(&name) else {
                continue;
            };
            // What is wrong with one volume is no reason to refuse all others.
            if let Err(error) = self.count(prefix, &volume, &mut promised) {
                log::warn!(
                    "{prefix}{volume} is not counted as promised: {}",
                    error.report()
                );
            }
        }
        Ok(promised)
    }

    /// Adds what was promised to one volume.
    fn count(&self, prefix: &str, volume: &VolumeId, promised: &mut Promised) -> Result<()> {
        let directory = match self.pool.open_volume(prefix, volume) {
            Ok(Some(directory)) => directory,
            Ok(None) => return Ok(()),
            // Of another backend: nothing was promised to it that it does not have.
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(()),
            Err(error) => return Err(error),
        };
        let (project, promise, own) = match Record::of(&directory.around) {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => {
                promised.projects.extend(record.project);
                let usage = self.limiter.usage(&directory.root, &record)?;
                (record.project, promise(&record, usage), usage.own)
            }
            // Damaged, or of a newer driver: what the kernel says must do.
            Err(error) => {
                log::warn!("{prefix}{volume}: {}", error.report());
                let (usage, project) = self.limiter.usage_without_record(&directory.root)?;
                (project, usage.limit, usage.own)
            }
        };
        promised.projects.extend(project);
        if prefix != GONE {
            promised.add(promise, own);
        }
        Ok(())
    }
}

/// What a volume may take in all, also one whose limit was lost or is about to be raised.
fn promise(record: &Record, usage: Usage) -> Bytes {
    record.size.max(usage.limit)
}

fn record(directory: &Directory) -> Result<Record> {
    Record::of(&directory.around)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Conflict,
            "the volume is a directory without a limit, so it was not made by this driver",
        )
    })
}
