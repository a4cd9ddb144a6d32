//! The blocks of an image: all of them from the beginning, given back where they got lost, and parted from copies.

use crate::{
    fs::{
        extents::{self, Allowance},
        subvolume::BTRFS,
    },
    image::{Allocation, Image},
    lock::SpaceGuard,
    pool::{FIRST_BLOCKS, Pool, Reserve, lacking::Seen},
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

/// How much is allocated by one system call.
const STEP: Bytes = Bytes::GIB;

/// How little is worth another try.
const SMALLEST_STEP: Bytes = Bytes::MIB;

/// How long a call takes that parts what an image shares. The next one goes on.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether what has blocks here and there is tried in smaller parts where the whole is too much.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stubborn {
    Yes,
    No,
}

impl Image {
    /// Makes the image `to` bytes long, or leaves it as long as it is if it is longer; with
    /// [`Allocation::Full`] all of it has blocks of its own afterwards, also what a trim had given
    /// back and what a copy of the image shares (on Btrfs that stays shared).
    ///
    /// The loop device of the image does not see this by itself; see [`crate::loop_device::attach`].
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where the pool has no room for it outside its reserve. Size and
    /// content are as before then, and nothing is taken.
    pub fn extend(
        &self,
        to: Bytes,
        allocation: Allocation,
        reserve: Reserve,
        pool: &Pool,
    ) -> Result<()> {
        if allocation == Allocation::Full {
            let seen = self.look()?;
            if seen.lacks() > Bytes(0) {
                self.refill(seen, reserve, pool, Some(Instant::now() + TIMEOUT))?;
            }
        }
        self.extend_in_memory(to, allocation, reserve, pool)?;
        // Without the pool's lock: this writes out whatever a pod has written, too.
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
            Allocation::Full => Some(self.look_below(Some(longest), Allowance::ONE)?),
            Allocation::Thin => None,
        };
        let others = pool.look_around(allocation)?;
        let lock = others.lock(pool)?;
        let size = self.size()?;
        let to = to.max(size);
        let has = has.map(|has| self.look_again(has, &lock)).transpose()?;
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
            // What is below its size it has by now.
            Some(has) if !has.surely_has_everywhere(to) => self.allocate(size, to, Stubborn::No),
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

    /// What it has behind its end, where a growth that was cut took blocks.
    ///
    /// # Errors
    /// When it cannot be examined.
    pub fn excess(&self) -> Result<Bytes> {
        extents::behind(self.file()).map_err(unseen)
    }

    /// Gives back what it has behind its end. Nobody else may be growing it.
    ///
    /// # Errors
    /// When some of it may still be there.
    pub fn drop_excess(&self) -> Result<()> {
        // To the size that it has, which frees what is behind it.
        let freed = match self.excess()? {
            Bytes(0) => return Ok(()),
            _ => self.file().set_len(self.size()?.0),
        };
        freed.map_err(|error| Error::system("free the blocks behind the volume's image", error))
    }

    /// Gives back to the image the blocks that it has lost, never had, or shares with a copy of it; these
    /// not where the file system cannot (Btrfs).
    ///
    /// # Errors
    /// As for [`Image::extend`], and for [`Image::fill`].
    pub(crate) fn refill(
        &self,
        seen: Seen,
        reserve: Reserve,
        pool: &Pool,
        end: Option<Instant>,
    ) -> Result<()> {
        let others = pool.look_around(Allocation::Full)?;
        let lock = others.lock(pool)?;
        let seen = self.look_again(seen, &lock)?;
        let owed = others.owed(pool, Some(self), &lock)?;
        pool.expect_room(seen.may_lack(), reserve, owed)?;
        drop(lock);
        self.fill(&seen, end)
    }

    /// Gives the image of a pool what it lacks. That takes long where it is copied, and needs no lock: until
    /// the image has it, it is owed to it, so nobody else is promised it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where it shares more than was seen, or still shares something at `end`; what was
    /// done stays done.
    pub(crate) fn fill(&self, seen: &Seen, end: Option<Instant>) -> Result<()> {
        let size = self.size()?;
        if !seen.has_everywhere(size) {
            // Not synced: what a power cut takes away again is missing at the next look.
            self.allocate(Bytes(0), size, Stubborn::Yes)
                .map_err(|error| Error::system("allocate the volume's image", error))?;
        }
        // No more than there was room for.
        let parted = extents::unshare(self.file(), size, seen.may_share(), end);
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

    /// That it has all blocks of its own, and they are written in place.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where the file system keeps no room for it whatever is done.
    pub(crate) fn expect_whole(&self) -> Result<()> {
        match self.look_below(None, Allowance::WITHOUT_END)?.may_lack() {
            Bytes(0) => Ok(()),
            _ => Err(shared()),
        }
    }

    /// That nothing keeps it from getting all blocks of its own: Btrfs does not part what is shared.
    ///
    /// # Errors
    /// As for [`Image::expect_whole`].
    pub(crate) fn expect_partable(&self, seen: &Seen) -> Result<()> {
        if seen.may_share() > Bytes(0) && !extents::can_unshare(self.file()).map_err(unseen)? {
            return Err(shared());
        }
        Ok(())
    }

    /// That what it has is written in place. Nothing makes a file so that has blocks already.
    pub(crate) fn expect_in_place(&self) -> Result<()> {
        match extents::is_written_in_place(self.file()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(unkept("is copy-on-write")),
            Err(error) => Err(Error::system("examine the volume's image", error)),
        }
    }

    /// What it has of its size.
    pub(crate) fn look(&self) -> Result<Seen> {
        self.look_below(None, Allowance::ONE)
    }

    /// What it has of so many bytes, or of its size.
    pub(crate) fn look_below(&self, below: Option<Bytes>, mut most: Allowance) -> Result<Seen> {
        Seen::of(self.file(), below, &mut most).map_err(unseen)
    }

    /// The same as it is now.
    pub(crate) fn look_again(&self, seen: Seen, lock: &SpaceGuard) -> Result<Seen> {
        seen.again(self.file(), lock).map_err(unseen)
    }

    /// Gives blocks to everything between the two that has none.
    fn allocate(&self, from: Bytes, to: Bytes, stubborn: Stubborn) -> io::Result<()> {
        // XFS asks for as much free space as it is told to allocate, even where nothing is missing
        // (xfs_bmap_util.c, `xfs_alloc_file_space`), so it is told a part at a time, and a smaller one
        // where that is too much.
        let (mut at, mut step) = (from.0, STEP);
        while at < to.0 {
            let length = step.0.min(to.0 - at);
            match rustix::fs::fallocate(self.file(), FallocateFlags::KEEP_SIZE, at, length) {
                Ok(()) => at += length,
                Err(Errno::NOSPC) if stubborn == Stubborn::Yes && step > SMALLEST_STEP => {
                    step = Bytes(step.0 / 2);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes a file without a name, complete but for the name: if anything goes wrong before it
    /// gets one, the kernel frees it.
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
        // Blocks first, then the size: nobody sees a part of an image that has none.
        let allocated = match allocation {
            Allocation::Full => image.allocate(Bytes(0), size, Stubborn::No),
            Allocation::Thin => Ok(()),
        };
        allocated
            .and_then(|()| image.lengthen(size))
            .map_err(|error| Error::system("allocate the volume's image", error))?;
        image.set_mark(mark)?;
        Ok(image.into_file())
    }
}

/// Btrfs writes to new space what overwrites old, unless an empty file is told otherwise
/// (`FS_NOCOW_FL`): the space that was allocated for a volume would not be what it is written to.
fn write_in_place(empty: &File) -> io::Result<()> {
    if rustix::fs::fstatfs(empty)?.f_type == BTRFS {
        // What the directory's compression handed down excludes it (`btrfs_ioctl_setflags`).
        rustix::fs::ioctl_setflags(empty, IFlags::empty())?;
        rustix::fs::ioctl_setflags(empty, IFlags::NOCOW)?;
    }
    Ok(())
}

/// A file on the directory's file system that has no name yet (`O_TMPFILE`).
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

/// Whoever copies it has the room for both, and decides about the old one.
fn unkept(what: &'static str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the image {what}, so btrfs keeps no room to overwrite it; while nothing has it open, copy it into a new file that is written in place: touch NEW, chattr +C NEW, cp --reflink=never --preserve=all IMAGE NEW"
        ),
    )
}
