//! What a pool has, and what volumes may take of it.

use super::{Allocation, Pool, id::ID_FILE, lacking::Owed};
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

/// Allocating blocks is a matter of milliseconds on file systems that can do it at all.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);

/// So many times its pool's file system a thin volume may be large.
const LARGEST_THIN: u64 = 16;

/// What a thin volume must find free: a pool that has nothing to give promises nothing either.
pub(crate) const FIRST_BLOCKS: Bytes = Bytes::MIB;

/// The maps of images take a hundredth of them at most. What is allocated is one extent, and each 4 KiB that are
/// written alone make two more: of 16 bytes on xfs and 12 on ext4, in nodes of a tree that are half full at least.
const MAPS_SHARE: u64 = 100;

/// On Btrfs an extent takes 78 bytes: a 25th of the images, in chunks of metadata.
const MAPS_SHARE_ON_BTRFS: u64 = 25;

/// The same where metadata and data are in the same chunks, and metadata there twice.
const MAPS_SHARE_ON_MIXED_BTRFS: u64 = 12;

/// Where a file system keeps the maps of its images.
enum Maps {
    /// Where all else is; they are such a share of the images at most.
    Anywhere(u64),
    InMetadata(Chunks),
}

/// What volumes must leave free for everybody else on the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// A part of the file system's size, in percent.
    Percent(u8),
    /// So many bytes.
    Bytes(Bytes),
}

impl Reserve {
    /// How much that is of something of this size.
    #[must_use]
    pub fn of(self, size: Bytes) -> Bytes {
        match self {
            Reserve::Percent(percent) => Bytes((size.0 / 100).saturating_mul(percent.into())),
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

/// The file system that a pool lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub size: Bytes,
    /// What processes without privileges may still take.
    pub free: Bytes,
}

/// What a file system lacks to note where its images were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// How much.
    pub room: Bytes,
    /// In chunks of metadata, which a Btrfs gets from those of data by a balance.
    pub of_metadata: bool,
}

impl Pool {
    /// How large the file system is and how much of it is free.
    ///
    /// # Errors
    /// What the system call says.
    pub fn space(&self) -> Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.volumes)
            .map_err(|error| Error::system("ask the pool for its space", error))?;
        Ok(Space {
            size: Bytes(stat.f_blocks.saturating_mul(stat.f_frsize)),
            free: Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)),
        })
    }

    /// The file system that the pool lies on, as the mount table numbers it: all subvolumes of a Btrfs
    /// have the same number there.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn filesystem(&self) -> Result<DeviceNumber> {
        let mount = mount::of(&self.volumes)?;
        mount.map(|mount| mount.number).ok_or_else(|| {
            Error::new(
                ErrorKind::Storage,
                "the mount table does not have the pool's file system",
            )
        })
    }

    /// What volumes that are made with this allocation may still take. What is missing in those that
    /// are there, here or in a pool beside it, is theirs.
    ///
    /// # Errors
    /// As for [`Pool::space`], [`Pool::missing`] and [`Pool::expect_readable_beside`], and where the file system takes no
    /// writes.
    pub fn available(&self, reserve: Reserve, allocation: Allocation) -> Result<Bytes> {
        self.expect_not_read_only()?;
        // Before what is free is: an image that gets meanwhile what it lacks is counted twice, not never.
        let owed = self.look_around(allocation)?.owed_now();
        self.left(reserve, owed)
    }

    /// Refuses a file system that became read-only, by what is known without waiting for one that is frozen.
    pub(crate) fn expect_not_read_only(&self) -> Result<()> {
        let mount = mount::of(&self.volumes)?;
        if mount.is_some_and(|mount| mount.superblock_read_only || mount.takes_no_writes) {
            return Err(takes_no_writes());
        }
        Ok(())
    }

    fn left(&self, reserve: Reserve, owed: Owed) -> Result<Bytes> {
        let space = self.space()?;
        let free = space.free.saturating_sub(owed.blocks);
        let left = free.saturating_sub(reserve.of(space.size));
        let Some(images) = owed.maps_of else {
            return Ok(left);
        };
        // Images that do not have all of their blocks are in `images` as large as they are.
        let with_maps = match self.maps()? {
            Maps::InMetadata(chunks) => {
                let most = chunks.for_data(images, MAPS_SHARE_ON_BTRFS);
                most.saturating_sub(owed.blocks)
            }
            // Each `share` bytes take one more for their map.
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

    /// Where others took the room that maps of images need, which makes writing to an image fail although all of
    /// its blocks are allocated: how much of it is to be made.
    ///
    /// # Errors
    /// As for [`Pool::available`].
    pub fn lacks_for_maps(&self) -> Result<Option<Lack>> {
        // What maps have by now is not told apart from what others have. Of a share this much is never theirs.
        let images = self.look_around(Allocation::Full)?.owed_now().maps_of;
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
        let lack = Lack {
            room: needed.saturating_sub(has),
            of_metadata,
        };
        Ok((has.0 < not_theirs).then_some(lack))
    }

    /// Where a Btrfs gives images less than half of what is free in its chunks of data, because metadata get none of it:
    /// how much more it certainly gives after a balance of those that are nearly empty.
    ///
    /// # Errors
    /// As for [`Pool::available`].
    pub fn withheld_for_metadata(&self, reserve: Reserve) -> Result<Option<Bytes>> {
        let owed = self.look_around(Allocation::Full)?.owed_now();
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
        // Otherwise it is free for metadata, or too little to be worth a word.
        let is_much = in_data.0 >= left.0 / 2 && in_data.0 > space.size.0 / 100;
        let is_withheld = is_much && now.0 < in_data.0 / 2;
        Ok(is_withheld.then(|| given(chunks.balanced()).saturating_sub(now)))
    }

    /// Checks that a volume that takes its blocks when they are written is not larger than a few pools: by its
    /// size alone a file system takes memory of the kernel and blocks of the pool (XFS 2 KiB and 24 KiB for each
    /// allocation group), and making one takes hours.
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

    /// Held while space is counted and taken, so that two volumes cannot be promised the same.
    pub(crate) fn lock(&self) -> Result<PoolGuard> {
        lock::pool(self.lock_file()?, &mut Deadline::after(LOCK_DEADLINE))
    }

    /// The same of several pools on one file system.
    pub(super) fn lock_all<'a>(pools: impl Iterator<Item = &'a Pool>) -> Result<SpaceGuard> {
        let files = pools.map(Pool::lock_file).collect::<Result<_>>()?;
        lock::space(files, Deadline::after(LOCK_DEADLINE))
    }

    fn lock_file(&self) -> Result<File> {
        confine::open(&self.root, ID_FILE, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|error| Error::system("open the pool's lock", error))
    }

    /// Checks before anything is taken: a file system that runs full while it allocates has taken
    /// its last block from everybody. `owed` is what volumes were promised and do not have.
    pub(crate) fn expect_room(&self, wanted: Bytes, reserve: Reserve, owed: Owed) -> Result<()> {
        let available = self.left(reserve, owed)?;
        if wanted <= available {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exhausted,
            format!("the volume needs {wanted} more and the pool has {available} to give"),
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
