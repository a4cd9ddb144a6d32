//! What the images of a pool lack of what they were promised.
//!
//! Images are looked at before the pool's lock is taken, because one can be in millions of pieces. Below the
//! lock only what has changed since is looked at again, for a moment. What is not known after that may all be
//! lacking, so nobody else is promised it.

use super::{Allocation, Image, Pool};
use crate::{
    VolumeId,
    fs::{
        confine,
        extents::{self, Allowance, Blocks},
    },
    lock::SpaceGuard,
};
use flexvol_sdk::{Bytes, Error, Result};
use rustix::{
    fs::{AtFlags, FileType, OFlags, Stat, fstat, statat},
    io::Errno,
};
use std::{collections::BTreeMap, fs::File, io};

/// What volumes were promised as a whole and do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// How much it is at least.
    pub bytes: Bytes,
    /// How many volumes lack something.
    pub volumes: usize,
    /// How many of these are copy-on-write, which no mount changes.
    pub copy_on_write: usize,
    /// How much more it may be: it lies in more pieces than are looked at.
    pub unknown: Bytes,
    /// How many volumes have such pieces.
    pub unknown_volumes: usize,
}

impl Missing {
    /// What is promised to nobody else.
    #[must_use]
    pub fn at_most(&self) -> Bytes {
        Bytes(self.bytes.0.saturating_add(self.unknown.0))
    }
}

/// What an image had at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    stat: Stat,
    below: Bytes,
    blocks: Blocks,
    in_place: bool,
}

impl Seen {
    /// Of its first `below` bytes, or all of it.
    pub(crate) fn of(
        file: &File,
        below: Option<Bytes>,
        allowance: &mut Allowance,
    ) -> io::Result<Self> {
        let mut stat = fstat(file)?;
        let below = below.unwrap_or(size_of(&stat));
        let blocks = extents::blocks(file, below, allowance)?;
        // What it gets meanwhile, and loses later, is not what was read.
        stat.st_blocks = stat.st_blocks.max(fstat(file)?.st_blocks);
        Ok(Seen {
            blocks,
            in_place: extents::is_written_in_place(file)?,
            stat,
            below,
        })
    }

    /// Where no file shares blocks.
    fn counted(stat: Stat) -> Self {
        let counted = counted(&stat);
        Seen {
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

    /// Whether all below `size` has blocks, its own or shared.
    pub(crate) fn has_everywhere(&self, size: Bytes) -> bool {
        self.blocks.all >= size
    }

    /// The same by its extents alone: a file system counts blocks of its map of the file, too.
    pub(crate) fn surely_has_everywhere(&self, size: Bytes) -> bool {
        let Blocks {
            is_exact, unread, ..
        } = self.blocks;
        is_exact && unread == Bytes(0) && self.has_everywhere(size)
    }

    /// What a copy may share of it.
    pub(crate) fn may_share(&self) -> Bytes {
        self.blocks.all.saturating_sub(self.blocks.own)
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// What it needs at most to have all of its own.
    pub(crate) fn may_lack(&self) -> Bytes {
        self.below.saturating_sub(self.blocks.own)
    }

    /// What it certainly lacks.
    pub(crate) fn lacks(&self) -> Bytes {
        let Blocks { own, unread, .. } = self.blocks;
        let read = Bytes(own.0.saturating_add(unread.0));
        match unread {
            Bytes(0) => self.may_lack(),
            // What has no blocks at all lacks them, wherever that is.
            _ => self.below.saturating_sub(read.min(counted(&self.stat))),
        }
    }

    /// Of what it is not known whether it lacks it.
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

    /// What is known of the file as it is now, without another look. What is written gets blocks of its own,
    /// so that no more of these are gone than blocks are. Blocks that are there beyond are its own, and all of
    /// them can be in the part by which it grew.
    fn after(mut self, now: Stat, below: Bytes) -> Self {
        let (before, after) = (counted(&self.stat), counted(&now));
        let gone = before.saturating_sub(after).min(self.blocks.own);
        let gained = after.saturating_sub(before);
        let gained = gained.min(below.saturating_sub(self.below));
        for blocks in [&mut self.blocks.all, &mut self.blocks.own] {
            *blocks = Bytes(blocks.saturating_sub(gone).0.saturating_add(gained.0));
        }
        self.blocks.unread.0 += gone.0;
        Seen {
            stat: now,
            below,
            ..self
        }
    }

    /// The same below the pool's lock.
    pub(crate) fn again(self, file: &File, _lock: &SpaceGuard) -> io::Result<Self> {
        if self.is_as_before(&fstat(file)?) {
            return Ok(self);
        }
        let new = Seen::of(file, Some(self.below), &mut Allowance::hurried(1))?;
        Ok(new.or(self))
    }

    /// This, unless what was seen before tells more.
    fn or(self, before: Seen) -> Self {
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

/// What images were promised and do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// Blocks.
    pub(crate) blocks: Bytes,
    /// Room for the maps of images of so many bytes in all, where the pool's have all of their blocks.
    pub(crate) maps_of: Option<Bytes>,
}

impl Owed {
    /// Both, of pools beside each other. What a thin pool gives away has room for the maps of others, and needs none where
    /// there are no others.
    pub(crate) fn and(self, other: Owed) -> Owed {
        let maps_of = match (self.maps_of, other.maps_of) {
            (Some(ours), Some(theirs)) => Some(Bytes(ours.0.saturating_add(theirs.0))),
            (ours, theirs) => ours.or(theirs.filter(|images| *images > Bytes(0))),
        };
        Owed {
            blocks: Bytes(self.blocks.0.saturating_add(other.blocks.0)),
            maps_of,
        }
    }
}

/// What the images of a pool have, where that counts.
#[derive(Debug)]
pub(crate) struct Look {
    allocation: Allocation,
    images: BTreeMap<VolumeId, Seen>,
}

impl Look {
    /// What all of them lack.
    pub(crate) fn missing(&self) -> Missing {
        self.missing_but(None)
    }

    fn missing_but(&self, but: Option<u64>) -> Missing {
        let mut missing = Missing::default();
        for seen in self.images.values() {
            if Some(seen.stat.st_ino) == but {
                continue;
            }
            let (lacks, unknown) = (seen.lacks(), seen.unknown());
            if lacks > Bytes(0) {
                missing.volumes += 1;
                missing.copy_on_write += usize::from(!seen.in_place);
                missing.bytes = Bytes(missing.bytes.0.saturating_add(lacks.0));
            }
            if unknown > Bytes(0) {
                missing.unknown_volumes += 1;
                missing.unknown = Bytes(missing.unknown.0.saturating_add(unknown.0));
            }
        }
        missing
    }

    /// What is owed to all images, as they are now, but for the blocks of the one that is about to get them.
    pub(crate) fn owed(
        &self,
        pool: &Pool,
        but: Option<&Image>,
        _lock: &SpaceGuard,
    ) -> Result<Owed> {
        let now = pool.look_since(self, Allowance::hurried)?;
        Ok(now.owed_now(but.map(|image| image.inode().number)))
    }

    /// The same as it was seen.
    pub(crate) fn owed_now(&self, but: Option<u64>) -> Owed {
        let size = self.images.values().map(|seen| size_of(&seen.stat).0);
        let size = size.fold(0, u64::saturating_add);
        Owed {
            blocks: self.missing_but(but).at_most(),
            maps_of: (self.allocation == Allocation::Full).then_some(Bytes(size)),
        }
    }
}

impl Pool {
    /// What the images of the pool lack of their size: what was never allocated, was given back by a
    /// discard, is shared with a copy, or is copy-on-write. Where nothing is shared each image is one system call.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn missing(&self) -> Result<Missing> {
        Ok(self.look(Allocation::Full)?.missing())
    }

    /// Looks at all images, if these are promised what they lack. It takes a while.
    pub(crate) fn look(&self, allocation: Allocation) -> Result<Look> {
        let nothing = Look {
            allocation,
            images: BTreeMap::new(),
        };
        self.look_since(&nothing, Allowance::patient)
    }

    fn look_since(&self, before: &Look, allowance: fn(usize) -> Allowance) -> Result<Look> {
        let failed = |error: io::Error| Error::system("examine an image", error);
        let mut look = Look {
            allocation: before.allocation,
            images: BTreeMap::new(),
        };
        if look.allocation == Allocation::Thin {
            return Ok(look);
        }
        let may_share = extents::may_share(&self.volumes).map_err(failed)?;
        let volumes = self.volume_ids()?;
        let mut allowance = allowance(volumes.len());
        for volume in volumes {
            let name = volume.to_string();
            let now = match statat(&self.volumes, &name, AtFlags::SYMLINK_NOFOLLOW) {
                // Removed meanwhile.
                Err(Errno::NOENT) => continue,
                found => found.map_err(|error| failed(error.into()))?,
            };
            if !FileType::from_raw_mode(now.st_mode).is_file() {
                continue;
            }
            let before = before.images.get(&volume).copied();
            let seen = match before {
                Some(seen) if seen.is_as_before(&now) => seen,
                _ if !may_share => Seen::counted(now),
                before => {
                    // Not O_NONBLOCK, for the same reason as an image that is to be used.
                    let file = match confine::open(&self.volumes, &name, OFlags::RDONLY) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        file => file.map_err(failed)?,
                    };
                    let seen = Seen::of(&file, None, &mut allowance).map_err(failed)?;
                    before.map_or(seen, |before| seen.or(before))
                }
            };
            look.images.insert(volume, seen);
        }
        Ok(look)
    }
}

fn size_of(stat: &Stat) -> Bytes {
    Bytes(u64::try_from(stat.st_size).unwrap_or(0))
}

fn counted(stat: &Stat) -> Bytes {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    Bytes(blocks.saturating_mul(512))
}

#[cfg(test)]
mod tests;
