//! Space of a pool, and the part of it that volumes may take.

use super::{Allocation, Pool, Shortfall, id::ID_FILE, lacking::Debt};
use crate::{
    DeviceNumber,
    deadline::Deadline,
    fs::{chunks::Chunks, confine, subvolume::is_btrfs, takes_no_writes},
    lock::{self, PoolGuard, SpaceGuard},
    mount,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::{fs::File, os::fd::AsFd, time::Duration};

/// Timeout for the pool's lock. Allocation takes milliseconds on file systems that support it.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);

/// Maximum size of a thin volume, as a multiple of its pool's file system.
const LARGEST_THIN: u64 = 16;

/// Free space needed to create a thin volume: a full pool must not promise anything.
pub(crate) const FIRST_BLOCKS: Bytes = Bytes::MIB;

/// Images divided by the maximum size of their extent maps. An allocated range is one extent. Each separate write of 4
/// KiB adds two, of 16 bytes on xfs and 12 on ext4, in tree nodes that are at least half full.
const MAPS_SHARE: u64 = 100;

/// On Btrfs an extent takes 78 bytes in metadata chunks: at most a 25th of the images.
const MAPS_SHARE_ON_BTRFS: u64 = 25;

/// Btrfs with mixed chunks, in which metadata are stored twice.
const MAPS_SHARE_ON_MIXED_BTRFS: u64 = 12;

/// Location of a file system's extent maps.
enum Maps {
    /// In the same space as data; at most 1/n of the images' size.
    Anywhere(u64),
    InMetadata(Chunks),
}

/// Space that volumes leave to other users of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Percentage of the file system's size.
    Percent(u8),
    /// Number of bytes.
    Bytes(Bytes),
}

impl Reserve {
    /// Returns the reserve in a file system of this size.
    #[must_use]
    pub fn of(self, size: Bytes) -> Bytes {
        match self {
            Reserve::Percent(percent) => Bytes((size.0 / 100).saturating_mul(percent.into())),
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

/// Size and free space of a pool's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Total size.
    pub size: Bytes,
    /// Space that unprivileged processes may still take.
    pub free: Bytes,
}

/// What a pool has promised its volumes, and can still give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// Space that volumes may still take.
    pub available: Bytes,
    /// Sizes of all volumes in total; `None` if one of them could not be read.
    pub promised: Option<Bytes>,
    /// Space that volumes were promised and do not have; `None` for thin volumes, which are promised none, and if a
    /// volume could not be read.
    pub shortfall: Option<Shortfall>,
}

/// Space that a file system lacks for the extent maps of its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShortage {
    /// Number of missing bytes.
    pub room: Bytes,
    /// Whether it is missing in metadata chunks. A balance of data chunks makes room for these on Btrfs.
    pub of_metadata: bool,
}

impl Pool {
    /// Returns the size and the free space of the file system.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn space(&self) -> Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.volumes)
            .map_err(|error| Error::system("ask the pool for its space", error))?;
        Ok(Space {
            size: Bytes(stat.f_blocks.saturating_mul(stat.f_frsize)),
            free: Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)),
        })
    }

    /// Returns the device number of the pool's file system in the mount table, where all subvolumes of a Btrfs have the
    /// same number.
    ///
    /// # Errors
    /// When the mount table is unreadable.
    pub fn filesystem(&self) -> Result<DeviceNumber> {
        let mount = mount::of(&self.volumes)?;
        mount.map(|mount| mount.number).ok_or_else(|| {
            Error::new(
                ErrorKind::Storage,
                "the mount table does not have the pool's file system",
            )
        })
    }

    /// Returns the space that volumes with this allocation may still take. Space that existing volumes lack, here or in
    /// a pool beside this one, belongs to them.
    ///
    /// # Errors
    /// As for [`Pool::space`], [`Pool::shortfall`] and [`Pool::expect_readable_beside`], and when the file system takes
    /// no writes.
    pub fn available(&self, reserve: Reserve, allocation: Allocation) -> Result<Bytes> {
        self.expect_not_read_only()?;
        // Before the free space is read: blocks that an image gets in between count twice instead of never.
        let owed = self.examine_shared_space(allocation)?.owed_now();
        self.left(reserve, owed)
    }

    /// Returns what is promised to the pool's images, with what [`Pool::available`] returns.
    ///
    /// # Errors
    /// As for [`Pool::available`].
    pub fn promises(&self, reserve: Reserve, allocation: Allocation) -> Result<Promises> {
        self.expect_not_read_only()?;
        let seen = self.examine_shared_space(allocation)?;
        let (promised, shortfall) = match seen.own().sizes() {
            Some(sizes) => (sizes, Some(seen.own().shortfall())),
            None => (self.sizes()?, None),
        };
        Ok(Promises {
            available: self.left(reserve, seen.owed_now())?,
            promised: Some(promised),
            shortfall,
        })
    }

    /// Returns an error for a file system that became read-only. Never waits for a frozen one.
    pub(crate) fn expect_not_read_only(&self) -> Result<()> {
        let mount = mount::of(&self.volumes)?;
        if mount.is_some_and(|mount| mount.superblock_read_only || mount.takes_no_writes) {
            return Err(takes_no_writes());
        }
        Ok(())
    }

    fn left(&self, reserve: Reserve, owed: Debt) -> Result<Bytes> {
        let space = self.space()?;
        let free = space.free.saturating_sub(owed.blocks);
        let left = free.saturating_sub(reserve.of(space.size));
        let Some(images) = owed.maps_of else {
            return Ok(left);
        };
        // `images` has the full size of images that lack blocks.
        let with_maps = match self.maps()? {
            Maps::InMetadata(chunks) => {
                let most = chunks.for_data(images, MAPS_SHARE_ON_BTRFS);
                most.saturating_sub(owed.blocks)
            }
            // Each `share` bytes of an image take one more byte for its map.
            Maps::Anywhere(share) => {
                let most = free.0.saturating_mul(share).saturating_sub(images.0);
                Bytes(most / (share + 1))
            }
        };
        Ok(left.min(with_maps))
    }

    fn maps(&self) -> Result<Maps> {
        let is_btrfs = is_btrfs(&self.volumes);
        let is_btrfs = is_btrfs.map_err(|error| Error::system("ask for the pool's kind", error))?;
        Ok(match is_btrfs.then(|| Chunks::of(self.volumes.as_fd())) {
            Some(Some(chunks)) => Maps::InMetadata(chunks),
            Some(None) => Maps::Anywhere(MAPS_SHARE_ON_MIXED_BTRFS),
            None => Maps::Anywhere(MAPS_SHARE),
        })
    }

    /// Returns the room to make for the extent maps of images, if other files took it. Without that room, writes to an
    /// image can fail although all its blocks are allocated.
    ///
    /// # Errors
    /// As for [`Pool::available`].
    pub fn map_shortage(&self) -> Result<Option<MapShortage>> {
        // Existing maps cannot be told from other metadata. This fraction of the need is never taken by maps.
        let images = self
            .examine_shared_space(Allocation::Full)?
            .owed_now()
            .maps_of;
        let images = images.unwrap_or_default();
        let (has, needed, not_theirs, of_metadata) = match self.maps()? {
            Maps::InMetadata(chunks) => {
                let needed = Bytes(images.0 / MAPS_SHARE_ON_BTRFS);
                (chunks.for_metadata(), needed, needed.0 / 4, true)
            }
            Maps::Anywhere(share) => {
                let needed = Bytes(images.0 / share);
                (self.space()?.free, needed, needed.0 / 10, false)
            }
        };
        let shortage = MapShortage {
            room: needed.saturating_sub(has),
            of_metadata,
        };
        Ok((has.0 < not_theirs).then_some(shortage))
    }

    /// Returns how much more space a balance of nearly empty data chunks certainly gives to images, on a Btrfs that
    /// gives images less than half of its free data space because metadata chunks have no room.
    ///
    /// # Errors
    /// As for [`Pool::available`].
    pub fn withheld_for_metadata(&self, reserve: Reserve) -> Result<Option<Bytes>> {
        let owed = self.examine_shared_space(Allocation::Full)?.owed_now();
        let Maps::InMetadata(chunks) = self.maps()? else {
            return Ok(None);
        };
        let images = owed.maps_of.unwrap_or_default();
        let space = self.space()?;
        let kept = Bytes(owed.blocks.0.saturating_add(reserve.of(space.size).0));
        let left = space.free.saturating_sub(kept);
        let given = |chunks: Chunks| {
            let most = chunks.for_data(images, MAPS_SHARE_ON_BTRFS);
            left.min(most.saturating_sub(owed.blocks))
        };
        let now = given(chunks);
        let in_data = chunks.in_data().min(left);
        // Otherwise the space is free for metadata, or too small to matter.
        let is_much = in_data.0 >= left.0 / 2 && in_data.0 > space.size.0 / 100;
        let is_withheld = is_much && now.0 < in_data.0 / 2;
        Ok(is_withheld.then(|| given(chunks.balanced()).saturating_sub(now)))
    }

    /// Checks that a thin volume is not larger than [`LARGEST_THIN`] pools. By its size alone a file system takes
    /// kernel memory and blocks of the pool (XFS 2 KiB and 24 KiB for each allocation group), and formatting would take
    /// hours.
    pub(crate) fn expect_not_too_large(&self, thin: Bytes) -> Result<()> {
        let pool = self.space()?.size;
        let most = Bytes(pool.0.saturating_mul(LARGEST_THIN));
        if thin <= most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "the volume would have {thin}, and a thin one has at most {most}, {LARGEST_THIN} times its pool"
            ),
        ))
    }

    /// Locks the pool. Held while space is counted and allocated, so that no space is promised to two volumes.
    pub(crate) fn lock(&self) -> Result<PoolGuard> {
        lock::pool(self.lock_file()?, &mut Deadline::after(LOCK_DEADLINE))
    }

    /// Locks several pools on one file system.
    pub(super) fn lock_all<'a>(pools: impl Iterator<Item = &'a Pool>) -> Result<SpaceGuard> {
        let files = pools.map(Pool::lock_file).collect::<Result<_>>()?;
        lock::space(files, Deadline::after(LOCK_DEADLINE))
    }

    fn lock_file(&self) -> Result<File> {
        confine::open(&self.root, ID_FILE, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|error| Error::system("open the pool's lock", error))
    }

    /// Checks that there is room before any is taken: a file system that runs full during an allocation takes the last
    /// block from every user. `owed` is what volumes were promised and do not have.
    pub(crate) fn expect_room(&self, wanted: Bytes, reserve: Reserve, owed: Debt) -> Result<()> {
        let available = self.left(reserve, owed)?;
        if wanted <= available {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exhausted,
            format!("the volume needs {wanted:#} more and the pool has {available:#} to give"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_a_part_or_an_amount() {
        let size = Bytes(1000 << 20);
        assert_eq!(Reserve::Percent(15).of(size), Bytes(150 << 20));
        assert_eq!(
            Reserve::Percent(255).of(Bytes(u64::MAX / 3)).0,
            u64::MAX / 3 / 100 * 255
        );
        assert_eq!(Reserve::Bytes(Bytes(7)).of(size), Bytes(7));
    }
}
