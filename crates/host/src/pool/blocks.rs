//! Blocks of images: allocated in advance, reallocated when lost, and unshared from copies.

use crate::{
    fs::{
        extents::{self, ExtentBudget},
        subvolume::BTRFS,
    },
    image::{Allocation, Image},
    lock::SpaceGuard,
    pool::{FIRST_BLOCKS, Pool, Reserve, lacking::ImageBlocks},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::{
    fs::{FallocateFlags, IFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    fmt::Display,
    fs::File,
    io,
    time::{Duration, Instant},
};

/// Bytes to allocate with one system call.
const STEP: Bytes = Bytes::GIB;

/// Minimum number of bytes to allocate with one system call.
const SMALLEST_STEP: Bytes = Bytes::MIB;

/// Timeout for unsharing the blocks of an image; the next callout continues.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether to try smaller parts when the file system has no room for a whole one, for a partly allocated image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetrySmaller {
    Yes,
    No,
}

impl Image {
    /// Extends the image to `to` bytes, unless it is longer. With [`Allocation::Full`] all of it has blocks of its own
    /// afterwards, including blocks freed by a trim and blocks shared with a copy (on Btrfs these stay shared).
    ///
    /// The image's loop device does not notice the new size by itself; see [`crate::loop_device::attach`].
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when the pool has not enough room outside its reserve. Size and content do not change
    /// then, and no space is taken.
    pub fn extend(
        &self,
        to: Bytes,
        allocation: Allocation,
        reserve: Reserve,
        pool: &Pool,
    ) -> Result<()> {
        if allocation == Allocation::Full {
            let seen = self.examine()?;
            if seen.lacks() > Bytes(0) {
                self.refill(seen, reserve, pool, Some(Instant::now() + TIMEOUT))?;
            }
        }
        self.extend_in_memory(to, allocation, reserve, pool)?;
        // Without the pool's lock, because this also writes out dirty data of pods.
        self.file()
            .sync_all()
            .map_err(|error| Error::system("write out the volume's image", error))
    }

    fn extend_in_memory(
        &self,
        to: Bytes,
        allocation: Allocation,
        reserve: Reserve,
        pool: &Pool,
    ) -> Result<()> {
        let longest = to.max(self.size()?);
        let has = match allocation {
            Allocation::Full => Some(self.examine_below(Some(longest), ExtentBudget::ONE)?),
            Allocation::Thin => None,
        };
        let others = pool.examine_shared_space(allocation)?;
        let lock = others.lock(pool)?;
        let size = self.size()?;
        let to = to.max(size);
        let has = has.map(|has| self.examine_again(has, &lock)).transpose()?;
        let missing = match has {
            Some(has) => has.may_lack(),
            None if to > size => {
                pool.expect_not_too_large(to)?;
                FIRST_BLOCKS
            }
            None => Bytes(0),
        };
        pool.expect_room(missing, reserve, others.owed(pool, Some(self), &lock)?)?;
        let allocated = match has {
            // Blocks below the old size were allocated before.
            Some(has) if !has.surely_has_everywhere(to) => {
                self.allocate(size, to, RetrySmaller::No)
            }
            _ => Ok(()),
        };
        let extended = allocated.and_then(|()| self.lengthen(to));
        if allocation == Allocation::Full
            && let Err(error) = self.drop_excess()
        {
            log::warn!(
                "blocks behind the end of an image stay allocated: {}",
                error.report()
            );
        }
        extended.map_err(|error| Error::system("extend the volume's image", error))
    }

    /// Returns the number of bytes allocated behind the image's end, which an interrupted growth leaves.
    ///
    /// # Errors
    /// When the image cannot be examined.
    pub fn excess(&self) -> Result<Bytes> {
        extents::behind(self.file()).map_err(unseen)
    }

    /// Frees the blocks behind the image's end. No other process may be extending the image.
    ///
    /// # Errors
    /// When some of the blocks may still be there.
    pub fn drop_excess(&self) -> Result<()> {
        // Setting the current size again frees the blocks behind it.
        let freed = match self.excess()? {
            Bytes(0) => return Ok(()),
            _ => {
                let size = self.size()?.0;
                self.reopen().and_then(|file| file.set_len(size))
            }
        };
        freed.map_err(|error| Error::system("free the blocks behind the volume's image", error))
    }

    /// Allocates the blocks that the image lost, never had, or shares with a copy (not the shared ones on Btrfs).
    ///
    /// # Errors
    /// As for [`Image::extend`], and for [`Image::fill`].
    pub(crate) fn refill(
        &self,
        seen: ImageBlocks,
        reserve: Reserve,
        pool: &Pool,
        end: Option<Instant>,
    ) -> Result<()> {
        let others = pool.examine_shared_space(Allocation::Full)?;
        let lock = others.lock(pool)?;
        let seen = self.examine_again(seen, &lock)?;
        let owed = others.owed(pool, Some(self), &lock)?;
        pool.expect_room(seen.may_lack(), reserve, owed)?;
        drop(lock);
        self.fill(&seen, end)
    }

    /// Allocates the blocks that an image of a pool lacks. Copying takes long but needs no lock: missing blocks are
    /// owed to the image, so they are promised to no other one.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the image shares more than was seen, or still shares blocks at `end`. The work done so
    /// far is kept.
    pub(crate) fn fill(&self, seen: &ImageBlocks, end: Option<Instant>) -> Result<()> {
        let size = self.size()?;
        if !seen.has_everywhere(size) {
            // Not synced: blocks that a power cut reverts are found missing again.
            self.allocate(Bytes(0), size, RetrySmaller::Yes)
                .map_err(|error| Error::system("allocate the volume's image", error))?;
        }
        // Limited to what there was room for.
        let parted = self
            .reopen()
            .and_then(|file| extents::unshare(&file, size, seen.may_share(), end));
        match parted {
            Ok(true) => Ok(()),
            Ok(false) if end.is_some_and(|end| Instant::now() >= end) => Err(Error::new(
                ErrorKind::Busy,
                "the volume's image shares so much with a copy that parting them takes more than a minute; the next call goes on with it",
            )),
            Ok(false) => Err(Error::new(
                ErrorKind::Busy,
                "the volume's image was copied meanwhile, and shares more with the copy than there was room for; try again",
            )),
            Err(error) => Err(Error::system(
                "give the volume's image what it shares with a copy",
                error,
            )),
        }
    }

    /// Checks that the image has all blocks of its own, and that they are overwritten in place.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the file system cannot reserve room for it at all.
    pub(crate) fn expect_whole(&self) -> Result<()> {
        match self
            .examine_below(None, ExtentBudget::WITHOUT_END)?
            .may_lack()
        {
            Bytes(0) => Ok(()),
            _ => Err(shared()),
        }
    }

    /// Checks that the image can get all blocks of its own: Btrfs cannot unshare blocks.
    ///
    /// # Errors
    /// As for [`Image::expect_whole`].
    pub(crate) fn expect_partable(&self, seen: &ImageBlocks) -> Result<()> {
        if seen.may_share() > Bytes(0) && !extents::can_unshare(self.file()).map_err(unseen)? {
            return Err(shared());
        }
        Ok(())
    }

    /// Checks that blocks are overwritten in place. A file that has blocks cannot be switched to that.
    pub(crate) fn expect_in_place(&self) -> Result<()> {
        match extents::is_written_in_place(self.file()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(unkept("is copy-on-write")),
            Err(error) => Err(Error::system("examine the volume's image", error)),
        }
    }

    /// Examines the blocks of the image.
    pub(crate) fn examine(&self) -> Result<ImageBlocks> {
        self.examine_below(None, ExtentBudget::ONE)
    }

    /// Examines the blocks of the first `below` bytes, or of the whole image.
    pub(crate) fn examine_below(
        &self,
        below: Option<Bytes>,
        mut most: ExtentBudget,
    ) -> Result<ImageBlocks> {
        ImageBlocks::of(self.file(), below, &mut most).map_err(unseen)
    }

    /// Examines the blocks again under the pool's lock.
    pub(crate) fn examine_again(
        &self,
        seen: ImageBlocks,
        lock: &SpaceGuard,
    ) -> Result<ImageBlocks> {
        seen.again(self.file(), lock).map_err(unseen)
    }

    /// Allocates all missing blocks in a range.
    fn allocate(&self, from: Bytes, to: Bytes, retry: RetrySmaller) -> io::Result<()> {
        // XFS requires as much free space as the range is long, even if no block is missing (xfs_bmap_util.c,
        // `xfs_alloc_file_space`). So the range is allocated in parts, and in smaller ones when there is no room.
        let (mut at, mut step) = (from.0, STEP);
        let file = self.reopen()?;
        while at < to.0 {
            let length = step.0.min(to.0 - at);
            match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, at, length) {
                Ok(()) => at += length,
                Err(Errno::NOSPC) if retry == RetrySmaller::Yes && step > SMALLEST_STEP => {
                    step = Bytes(step.0 / 2);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Creates an image without a name. If anything fails before it is linked, the kernel frees it.
    pub(crate) fn nameless(
        volumes: &File,
        size: Bytes,
        mark: &(impl Display + ?Sized),
        allocation: Allocation,
    ) -> Result<File> {
        let file = nameless(volumes)?;
        if allocation == Allocation::Full {
            write_in_place(&file)
                .map_err(|error| Error::system("prepare the volume's image", error))?;
        }
        let image = Image::of(file)?;
        // Blocks first, then the size, so that no part of the image ever lacks blocks.
        let allocated = match allocation {
            Allocation::Full => image.allocate(Bytes(0), size, RetrySmaller::No),
            Allocation::Thin => Ok(()),
        };
        allocated
            .and_then(|()| image.lengthen(size))
            .map_err(|error| Error::system("allocate the volume's image", error))?;
        image.set_mark(mark)?;
        Ok(image.into_file())
    }
}

/// Makes an empty file on Btrfs overwrite its blocks in place (`FS_NOCOW_FL`). Otherwise Btrfs writes to new space, and
/// not to the space that was allocated.
fn write_in_place(empty: &File) -> io::Result<()> {
    if rustix::fs::fstatfs(empty)?.f_type == BTRFS {
        // The flag excludes compression, which the directory may have handed down (`btrfs_ioctl_setflags`).
        rustix::fs::ioctl_setflags(empty, IFlags::empty())?;
        rustix::fs::ioctl_setflags(empty, IFlags::NOCOW)?;
    }
    Ok(())
}

/// Creates a file without a name on the directory's file system (`O_TMPFILE`).
pub(crate) fn nameless(directory: &File) -> Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => Err(Error::new(
            ErrorKind::Configuration,
            "the pool's file system cannot make files without a name; use xfs, ext4 or btrfs",
        )),
        Err(error) => Err(Error::system("make a file in the pool", error)),
    }
}

fn unseen(error: io::Error) -> Error {
    Error::system("examine the volume's image", error)
}

fn shared() -> Error {
    unkept("shares blocks with a copy or a snapshot")
}

/// Advises the administrator to copy the image: only he can decide that there is room for both, and when to delete the
/// old one.
fn unkept(what: &'static str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the image {what}, so btrfs keeps no room to overwrite it; while nothing has it open, copy it into a new file that is written in place: touch NEW, chattr +C NEW, cp --reflink=never --preserve=all IMAGE NEW"
        ),
    )
}
