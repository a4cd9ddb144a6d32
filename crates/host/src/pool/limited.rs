//! Directory volumes with limits (quotas).

use super::{
    Directory, FIRST_BLOCKS, Pool, Promises, Reserve, Shortfall,
    directory::{self, GONE, NEW},
    lacking::Debt,
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

/// An administrator's rules for the directory volumes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Space that the pool leaves free.
    pub reserve: Reserve,
    /// Whether volumes may be promised more in total than the pool has.
    pub overcommit: bool,
    /// Range of project ids for volumes on XFS and ext4.
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

/// A pool on a file system that can limit directories.
#[derive(Debug)]
pub struct Limited<'a> {
    pub(super) pool: &'a Pool,
    rules: &'a Rules,
    pub(super) limiter: Limiter,
}

/// Totals of a pool's volumes.
#[derive(Debug, Default)]
struct Promised {
    /// Sum of all limits.
    limits: Bytes,
    /// Bytes that can still be written. Overwriting data that a snapshot shares takes new space.
    owed: Bytes,
    projects: HashSet<NonZeroU32>,
    /// Whether a volume could not be read.
    is_partial: bool,
}

impl Promised {
    fn add(&mut self, promise: Bytes, own: Bytes) {
        let rest = promise.saturating_sub(own);
        self.limits = Bytes(self.limits.0.saturating_add(promise.0));
        self.owed = Bytes(self.owed.0.saturating_add(rest.0));
    }
}

impl Pool {
    /// Returns the pool as one for volumes with limits.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when its file system cannot limit directories, with advice.
    pub fn limited<'a>(&'a self, rules: &'a Rules) -> Result<Limited<'a>> {
        Ok(Limited {
            pool: self,
            rules,
            limiter: Limiter::of(&self.volumes)?,
        })
    }
}

impl Limited<'_> {
    /// Returns a volume's limit: the kernel's, or the recorded one if that was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for a directory without a record of a limit.
    pub fn size(&self, directory: &Directory) -> Result<Bytes> {
        let record = record(directory)?;
        match self.limiter.usage(&directory.root, &record) {
            Ok(Usage { limit, .. }) if limit != Bytes(0) => Ok(limit),
            Ok(_) => Ok(record.size),
            // A copied directory can only be inspected and deleted.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(record.size),
            Err(error) => Err(error),
        }
    }

    /// Restores a volume's limit. A pod with enough capabilities can move the volume out of its project, and quotas may
    /// have been off meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the volume does not exist; otherwise errors of the system calls.
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

    /// Moves the root back into its project, despite inode flags that its owner set.
    fn rejoin(&self, directory: &Directory, record: &Record) -> Result<()> {
        if directory.with_flags_cleared(&|| self.limiter.ensure_counted(&directory.root, record))? {
            log::warn!(
                "the volume was moved out of its limit, or made read-only; what was written meanwhile is not counted"
            );
        }
        Ok(())
    }

    /// Returns the volumes whose limits were lost or lowered, or that were moved out of their projects, unordered.
    /// Until [`Limited::restore`], pods that have them mounted are not limited.
    ///
    /// # Errors
    /// Errors of the system calls. Unreadable volumes are skipped.
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

    /// Whether the volume is one of [`Limited::lost`].
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn is_lost(&self, volume: &VolumeId) -> Result<bool> {
        let Some(directory) = self.pool.open_volume("", volume)? else {
            return Ok(false);
        };
        let Some(record) = Record::of(&directory.around)? else {
            return Ok(false);
        };
        let limit = self.limiter.usage(&directory.root, &record)?.limit;
        Ok(limit < record.size || !self.limiter.is_counted(&directory.root, &record)?)
    }

    /// Creates a volume's directory, empty, limited and marked, and syncs it. It appears complete or not at all. The
    /// caller holds the volume's lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when more is promised than there is, [`ErrorKind::Conflict`] when the volume already
    /// exists.
    pub fn create(
        &self,
        volume: &VolumeId,
        size: Bytes,
        mark: &(impl Display + ?Sized),
    ) -> Result<()> {
        let _lock = self.pool.lock()?;
        // Left by a process that was killed.
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
        // Before anything else: a removal finds by the record which project's limit to lift.
        attribute::write(&directory.around, RECORD, &record)?;
        self.limiter.ensure_counted(&directory.root, &record)?;
        self.raise(directory, &record, size)
    }

    /// Raises a volume's limit. A larger limit stays. The caller holds the volume's lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when more is promised than there is; the limit does not change.
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

    /// Returns the size of the largest volume that can be created now.
    ///
    /// # Errors
    /// Errors of the system calls, and when the file system takes no writes.
    pub fn available(&self) -> Result<Bytes> {
        self.pool.expect_not_read_only()?;
        self.limiter.expect_counted()?;
        self.left(&match self.rules.overcommit {
            true => Promised::default(),
            false => self.promised()?,
        })
    }

    /// Returns what is promised to the pool's volumes, with what [`Limited::available`] returns.
    ///
    /// # Errors
    /// As for [`Limited::available`].
    pub fn promises(&self) -> Result<Promises> {
        self.pool.expect_not_read_only()?;
        self.limiter.expect_counted()?;
        let promised = self.promised()?;
        let available = match self.rules.overcommit {
            true => self.left(&Promised::default())?,
            false => self.left(&promised)?,
        };
        let shortfall = Shortfall {
            bytes: promised.owed.saturating_sub(self.pool.space()?.free),
            ..Shortfall::default()
        };
        let is_kept = !self.rules.overcommit && !promised.is_partial;
        Ok(Promises {
            available,
            promised: (!promised.is_partial).then_some(promised.limits),
            shortfall: is_kept.then_some(shortfall),
        })
    }

    /// Returns by how much the volumes' unwritten space exceeds the free space, because other files or snapshots take
    /// it.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn shortage(&self) -> Result<Bytes> {
        if self.rules.overcommit {
            return Ok(Bytes(0));
        }
        let owed = self.promised()?.owed;
        Ok(owed.saturating_sub(self.pool.space()?.free))
    }

    /// Returns the space left to promise, in whole MiB like volumes. The smaller of two counts: free space, which
    /// reflects other files; and total size, because blocks shared within a volume are on the disk once but in its
    /// quota several times.
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
                .expect_room(FIRST_BLOCKS, self.rules.reserve, Debt::default());
        }
        let left = self.left(promised)?;
        if wanted <= left {
            return Ok(());
        }
        let Promised { limits, owed, .. } = promised;
        Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "the volume needs {wanted:#} more and the pool has {left:#} to give: {limits:#} are promised to volumes, of which {owed:#} are not written yet, or are shared with snapshots"
            ),
        ))
    }

    /// Sets a directory's limit and verifies it. The record is written first: after a crash, the next mount sets the
    /// recorded limit, so a reported growth is never lost.
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
            // A problem of one volume must not block all others.
            if let Err(error) = self.count(prefix, &volume, &mut promised) {
                log::warn!(
                    "{prefix}{volume} is not counted as promised: {}",
                    error.report()
                );
                promised.is_partial = true;
            }
        }
        Ok(promised)
    }

    /// Adds one volume to the totals.
    fn count(&self, prefix: &str, volume: &VolumeId, promised: &mut Promised) -> Result<()> {
        let directory = match self.pool.open_volume(prefix, volume) {
            Ok(Some(directory)) => directory,
            Ok(None) => return Ok(()),
            // A volume of another backend was promised nothing that it does not have.
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
            // The record is damaged or from a newer driver: use the kernel's limit instead.
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

/// Returns a volume's limit, even if it was lost or is about to be raised.
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
