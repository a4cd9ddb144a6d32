//! Blocks that the images of a pool were promised and do not have.
//!
//! Images are examined before the pool's lock is taken, because an image can have millions of extents. Under the lock,
//! only images that changed since are examined again, and only briefly. Anything still unknown then counts as missing,
//! so it is promised to no other volume.

use super::{Allocation, Image, Pool};
use crate::{
    VolumeId,
    fs::{
        confine,
        extents::{self, Blocks, ExtentBudget},
    },
    lock::SpaceGuard,
};
use flexvol_sdk::{Bytes, Error, Result};
use rustix::{
    fs::{AtFlags, FileType, OFlags, Stat, fstat, statat},
    io::Errno,
};
use std::{collections::BTreeMap, fs::File, io};

/// Space that fully allocated volumes were promised and do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// Minimum number of bytes.
    pub bytes: Bytes,
    /// Number of volumes that lack space.
    pub volumes: usize,
    /// Number of these that are copy-on-write, which no mount can change.
    pub copy_on_write: usize,
    /// Number of further bytes that may be missing, in extents beyond the limit of those examined.
    pub unknown: Bytes,
    /// Number of volumes with such extents.
    pub unknown_volumes: usize,
}

impl Shortfall {
    /// Returns the maximum number of missing bytes, which no other volume may be promised.
    #[must_use]
    pub fn at_most(&self) -> Bytes {
        Bytes(self.bytes.0.saturating_add(self.unknown.0))
    }
}

/// Blocks of an image at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageBlocks {
    stat: Stat,
    below: Bytes,
    blocks: Blocks,
    in_place: bool,
}

impl ImageBlocks {
    /// Examines the first `below` bytes of a file, or the whole file.
    pub(crate) fn of(
        file: &File,
        below: Option<Bytes>,
        budget: &mut ExtentBudget,
    ) -> io::Result<Self> {
        let mut stat = fstat(file)?;
        let below = below.unwrap_or(size_of(&stat));
        let blocks = extents::blocks(file, below, budget)?;
        // Blocks that were added meanwhile and are lost later must not count as examined.
        stat.st_blocks = stat.st_blocks.max(fstat(file)?.st_blocks);
        Ok(ImageBlocks {
            blocks,
            in_place: extents::is_written_in_place(file)?,
            stat,
            below,
        })
    }

    /// Derives the state from `stat` alone, if no file of the file system shares blocks.
    fn counted(stat: Stat) -> Self {
        let counted = counted(&stat);
        ImageBlocks {
            below: size_of(&stat),
            blocks: Blocks {
                all: counted,
                own: counted,
                ..Blocks::default()
            },
            in_place: true,
            stat,
        }
    }

    /// Whether all bytes below `size` have blocks, own or shared.
    pub(crate) fn has_everywhere(&self, size: Bytes) -> bool {
        self.blocks.all >= size
    }

    /// The same, judged by extents only: `st_blocks` also contains blocks of the file system's map of the file.
    pub(crate) fn surely_has_everywhere(&self, size: Bytes) -> bool {
        let Blocks {
            is_exact, unread, ..
        } = self.blocks;
        is_exact && unread == Bytes(0) && self.has_everywhere(size)
    }

    /// Returns how much may be shared with a copy.
    pub(crate) fn may_share(&self) -> Bytes {
        self.blocks.all.saturating_sub(self.blocks.own)
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Returns the maximum number of bytes that the image needs to have all blocks of its own.
    pub(crate) fn may_lack(&self) -> Bytes {
        self.below.saturating_sub(self.blocks.own)
    }

    /// Returns the number of bytes that are certainly missing.
    pub(crate) fn lacks(&self) -> Bytes {
        let Blocks { own, unread, .. } = self.blocks;
        let read = Bytes(own.0.saturating_add(unread.0));
        match unread {
            Bytes(0) => self.may_lack(),
            // Bytes without any block are missing, wherever they are.
            _ => self.below.saturating_sub(read.min(counted(&self.stat))),
        }
    }

    /// Returns the number of bytes that may or may not be missing.
    pub(crate) fn unknown(&self) -> Bytes {
        self.may_lack().saturating_sub(self.lacks())
    }

    fn is_as_before(&self, now: &Stat) -> bool {
        self.is_same_file(now)
            && (now.st_ctime, now.st_ctime_nsec) == (self.stat.st_ctime, self.stat.st_ctime_nsec)
            && (now.st_size, now.st_blocks) == (self.stat.st_size, self.stat.st_blocks)
    }

    fn is_same_file(&self, now: &Stat) -> bool {
        now.st_ino == self.stat.st_ino
    }

    /// Updates the state to `now` without examining the file. Written data get blocks of their own, so the number of
    /// own blocks falls at most by the number of blocks. Additional blocks are own ones, and all of them can be in the
    /// part by which the file grew.
    fn after(mut self, now: Stat, below: Bytes) -> Self {
        let (before, after) = (counted(&self.stat), counted(&now));
        let gone = before.saturating_sub(after).min(self.blocks.own);
        let gained = after.saturating_sub(before);
        let gained = gained.min(below.saturating_sub(self.below));
        for blocks in [&mut self.blocks.all, &mut self.blocks.own] {
            *blocks = Bytes(blocks.saturating_sub(gone).0.saturating_add(gained.0));
        }
        self.blocks.unread.0 += gone.0;
        ImageBlocks {
            stat: now,
            below,
            ..self
        }
    }

    /// Examines the image again under the pool's lock, if it changed.
    pub(crate) fn again(self, file: &File, _lock: &SpaceGuard) -> io::Result<Self> {
        if self.is_as_before(&fstat(file)?) {
            return Ok(self);
        }
        let new = ImageBlocks::of(file, Some(self.below), &mut ExtentBudget::hurried(1))?;
        Ok(new.or(self))
    }

    /// Returns this state, unless the earlier state tells more.
    fn or(self, before: ImageBlocks) -> Self {
        if self.blocks.unread == Bytes(0) || !before.is_same_file(&self.stat) {
            return self;
        }
        let known = before.after(self.stat, self.below);
        match known.may_lack() < self.may_lack() {
            true => known,
            false => self,
        }
    }
}

/// Space that images were promised and do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// Missing blocks, in bytes.
    pub(crate) blocks: Bytes,
    /// Total size of the images whose extent maps need room. `None` for a thin pool.
    pub(crate) maps_of: Option<Bytes>,
}

impl Debt {
    /// Adds the debts of pools on the same file system. A thin pool must leave room for the maps of other pools'
    /// images; it needs none if there are no others.
    pub(crate) fn and(self, other: Debt) -> Debt {
        let maps_of = match (self.maps_of, other.maps_of) {
            (Some(ours), Some(theirs)) => Some(Bytes(ours.0.saturating_add(theirs.0))),
            (ours, theirs) => ours.or(theirs.filter(|images| *images > Bytes(0))),
        };
        Debt {
            blocks: Bytes(self.blocks.0.saturating_add(other.blocks.0)),
            maps_of,
        }
    }
}

/// State of all images of a pool whose blocks are promised.
#[derive(Debug)]
pub(crate) struct PoolBlocks {
    allocation: Allocation,
    images: BTreeMap<VolumeId, ImageBlocks>,
}

impl PoolBlocks {
    /// Returns what all images lack.
    pub(crate) fn shortfall(&self) -> Shortfall {
        self.shortfall_but(None)
    }

    fn shortfall_but(&self, but: Option<u64>) -> Shortfall {
        let mut shortfall = Shortfall::default();
        for seen in self.images.values() {
            if Some(seen.stat.st_ino) == but {
                continue;
            }
            let (lacks, unknown) = (seen.lacks(), seen.unknown());
            if lacks > Bytes(0) {
                shortfall.volumes += 1;
                shortfall.copy_on_write += usize::from(!seen.in_place);
                shortfall.bytes = Bytes(shortfall.bytes.0.saturating_add(lacks.0));
            }
            if unknown > Bytes(0) {
                shortfall.unknown_volumes += 1;
                shortfall.unknown = Bytes(shortfall.unknown.0.saturating_add(unknown.0));
            }
        }
        shortfall
    }

    /// Returns the current debt to all images, except for the blocks of `but`, which is about to get them.
    pub(crate) fn owed(
        &self,
        pool: &Pool,
        but: Option<&Image>,
        _lock: &SpaceGuard,
    ) -> Result<Debt> {
        let now = pool.examine_since(self, ExtentBudget::hurried)?;
        Ok(now.owed_now(but.map(|image| image.inode().number)))
    }

    /// Returns the debt according to the recorded state.
    pub(crate) fn owed_now(&self, but: Option<u64>) -> Debt {
        Debt {
            blocks: self.shortfall_but(but).at_most(),
            maps_of: self.sizes(),
        }
    }

    /// Returns the sizes of all images in total. `None` for a thin pool, of which none is examined.
    pub(crate) fn sizes(&self) -> Option<Bytes> {
        let sizes = self.images.values().map(|seen| size_of(&seen.stat));
        (self.allocation == Allocation::Full).then(|| sum(sizes))
    }
}

impl Pool {
    /// Returns what the images of the pool lack of their size: blocks never allocated, freed by a discard, shared with
    /// a copy, or of copy-on-write files. If no file shares blocks, this takes one system call for each image.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn shortfall(&self) -> Result<Shortfall> {
        Ok(self.examine_images(Allocation::Full)?.shortfall())
    }

    /// Returns the sizes of all images in total.
    pub(super) fn sizes(&self) -> Result<Bytes> {
        let mut sizes = Vec::new();
        for volume in self.volume_ids()? {
            sizes.extend(self.image_stat(&volume)?.map(|stat| size_of(&stat)));
        }
        Ok(sum(sizes.into_iter()))
    }

    /// Returns the state of a volume's image; `None` if there is no image of it.
    fn image_stat(&self, volume: &VolumeId) -> Result<Option<Stat>> {
        match statat(&self.volumes, volume.to_string(), AtFlags::SYMLINK_NOFOLLOW) {
            // Removed meanwhile.
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::system("examine an image", error)),
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode)
                .is_file()
                .then_some(stat)),
        }
    }

    /// Examines all images whose missing blocks are promised. Takes a while.
    pub(crate) fn examine_images(&self, allocation: Allocation) -> Result<PoolBlocks> {
        let nothing = PoolBlocks {
            allocation,
            images: BTreeMap::new(),
        };
        self.examine_since(&nothing, ExtentBudget::patient)
    }

    fn examine_since(
        &self,
        before: &PoolBlocks,
        budget: fn(usize) -> ExtentBudget,
    ) -> Result<PoolBlocks> {
        let failed = |error: io::Error| Error::system("examine an image", error);
        let mut found = PoolBlocks {
            allocation: before.allocation,
            images: BTreeMap::new(),
        };
        if found.allocation == Allocation::Thin {
            return Ok(found);
        }
        let may_share = extents::may_share(&self.volumes).map_err(failed)?;
        let volumes = self.volume_ids()?;
        let mut budget = budget(volumes.len());
        for volume in volumes {
            let Some(now) = self.image_stat(&volume)? else {
                continue;
            };
            let before = before.images.get(&volume).copied();
            let seen = match before {
                Some(seen) if seen.is_as_before(&now) => seen,
                _ if !may_share => ImageBlocks::counted(now),
                before => {
                    // Without O_NONBLOCK: a lease, which another process' `find` may hold, must be waited for.
                    let name = volume.to_string();
                    let file = match confine::open(&self.volumes, &name, OFlags::RDONLY) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        file => file.map_err(failed)?,
                    };
                    let seen = ImageBlocks::of(&file, None, &mut budget).map_err(failed)?;
                    before.map_or(seen, |before| seen.or(before))
                }
            };
            found.images.insert(volume, seen);
        }
        Ok(found)
    }
}

fn size_of(stat: &Stat) -> Bytes {
    Bytes(u64::try_from(stat.st_size).unwrap_or(0))
}

fn sum(sizes: impl Iterator<Item = Bytes>) -> Bytes {
    Bytes(sizes.fold(0, |sum, size| sum.saturating_add(size.0)))
}

fn counted(stat: &Stat) -> Bytes {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    Bytes(blocks.saturating_mul(512))
}

#[cfg(test)]
mod tests;
