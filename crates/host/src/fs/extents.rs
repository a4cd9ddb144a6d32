//! Determines which parts of a file have blocks, and which of these are overwritten in place.
//!
//! Blocks shared by a reflink (`cp` makes one where it can) or a snapshot need new blocks when they are written. On
//! Btrfs so does everything in a file, unless copy-on-write is turned off for it.

use super::{
    extent_map::{Extent, ExtentMap, extent_at},
    subvolume::BTRFS,
};
use crate::random;
use flexvol_sdk::Bytes;
use rustix::{
    fs::{FallocateFlags, IFlags, fallocate, fstatfs, ioctl_getflags},
    io::Errno,
};
use std::{
    fs::File,
    io, mem,
    ops::{ControlFlow, Range},
    os::{fd::AsFd, unix::fs::MetadataExt},
    time::{Duration, Instant},
};

/// Budget of extents to read. A pod that writes to a volume can fragment its image into pieces as small as a block.
/// Reading a million of them takes half a second, or two where they are shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentBudget {
    /// Extents of each file, so that a file with many leaves some for the others.
    per_file: usize,
    /// Extents of all files together, beyond `per_file`.
    pooled: usize,
    /// Offsets sampled in each file, in the part whose extents were not read.
    samples: usize,
}

impl ExtentBudget {
    /// For a callout about a single file: eight seconds, or half a minute where it is shared.
    pub(crate) const ONE: Self = ExtentBudget {
        per_file: 1 << 24,
        pooled: 0,
        samples: 1 << 11,
    };

    /// For examining this many files while no other process waits: a second, or five where they are shared.
    pub(crate) fn patient(files: usize) -> Self {
        ExtentBudget {
            per_file: (1 << 16).min((1 << 21) / files.max(1)),
            pooled: 1 << 19,
            samples: (1 << 11).min((1 << 19) / files.max(1)),
        }
    }

    /// For examining files while other processes wait: some ten milliseconds. `per_file` leaves some for small and new
    /// files, whichever file comes first.
    pub(crate) fn hurried(files: usize) -> Self {
        ExtentBudget {
            per_file: (1 << 10).min((1 << 15) / files.max(1)),
            pooled: 1 << 14,
            // The results of the patient pass are used until the next one.
            samples: 0,
        }
    }

    /// For a file whose extents must all be known, and that no other process writes to.
    pub(crate) const WITHOUT_END: Self = ExtentBudget {
        per_file: usize::MAX,
        pooled: 0,
        samples: 0,
    };
}

/// Confidence of a sample: more is shared than it suggests with a probability of e to the power of minus this, one in a
/// thousand million.
const CERTAINTY: usize = 21;

/// Time limit for sampling. Btrfs of Linux 6.1 needs milliseconds for an offset whose extent is in many pieces.
const SAMPLED: Duration = Duration::from_secs(1);

/// Bytes unshared by one call. XFS copies them through the page cache and locks the file meanwhile.
const STEP: u64 = 64 << 20;

/// File systems without shared blocks: ext2 to ext4, and tmpfs.
const WITHOUT_SHARING: [i64; 2] = [0xef53, 0x0102_1994];

/// Blocks of a file's first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Bytes that have blocks; where extents cannot be read, the file's total.
    pub(crate) all: Bytes,
    /// Bytes of these that can be overwritten again and again without new blocks.
    pub(crate) own: Bytes,
    /// Bytes about which nothing is known, because the file has more extents than were read. A sample can make them
    /// few.
    pub(crate) unread: Bytes,
    /// The numbers come from extents, not from a block count, which includes the file's map.
    pub(crate) is_exact: bool,
}

/// Whether files can share blocks on the file system of `file`.
pub(crate) fn may_share(file: impl AsFd) -> io::Result<bool> {
    Ok(!WITHOUT_SHARING.contains(&fstatfs(file)?.f_type))
}

/// Whether the file system can unshare blocks.
pub(crate) fn can_unshare(file: impl AsFd) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type != BTRFS)
}

/// Whether blocks that are not shared are overwritten in place. Btrfs writes to new blocks and frees an extent once no
/// part of it is in use, so a full file needs up to its size again. Only files for which copy-on-write was turned off
/// while they were empty are overwritten in place (`FS_NOCOW_FL`; fs/btrfs/ioctl.c, `btrfs_fileattr_set`).
pub(crate) fn is_written_in_place(file: impl AsFd) -> io::Result<bool> {
    if fstatfs(&file)?.f_type != BTRFS {
        return Ok(true);
    }
    Ok(ioctl_getflags(file)?.contains(IFlags::NOCOW))
}

/// Determines the blocks of a file's first `below` bytes. Where files cannot share blocks this is just `st_blocks`.
/// That counts 512-byte units whatever the block size is, and includes blocks behind the end and the file's map (ext4:
/// at most 12 bytes for a block of 4 KiB), so a hole of that size may be missed. Elsewhere extents are read, unless
/// everything is copied on write anyway.
pub(crate) fn blocks(file: &File, below: Bytes, budget: &mut ExtentBudget) -> io::Result<Blocks> {
    let all = Bytes(file.metadata()?.blocks() * 512);
    let counted = Blocks {
        all,
        own: all,
        ..Blocks::default()
    };
    if all == Bytes(0) || !may_share(file)? {
        return Ok(counted);
    }
    if !is_written_in_place(file)? {
        return Ok(Blocks {
            own: Bytes(0),
            ..counted
        });
    }
    let mut found = Blocks {
        is_exact: true,
        ..Blocks::default()
    };
    let walked = walk(file, below.0, budget, |extent| {
        found.all.0 += extent.length;
        if extent.is_own() {
            found.own.0 += extent.length;
        }
        Ok(ControlFlow::Continue(()))
    });
    match walked {
        Ok(unread) => {
            let part = below.0 - unread..below.0;
            let doubtful = sample(file, part, budget.samples)?;
            found.own.0 += unread - doubtful;
            found.unread = Bytes(doubtful);
            found.all.0 += unread.min(all.saturating_sub(found.all).0);
            Ok(found)
        }
        Err(error) if is_unsupported(&error) => Ok(counted),
        Err(error) => Err(error),
    }
}

/// Longest extent that `fallocate` makes on Btrfs (`__btrfs_prealloc_file_range` in fs/btrfs/inode.c).
const LONGEST_OF_BTRFS: u64 = 256 << 20;

/// Returns the bytes allocated behind the end of a file. There are few extents there, because nobody writes them.
pub(crate) fn behind(file: &File) -> io::Result<Bytes> {
    let found = file.metadata()?;
    let stat = fstatfs(file)?;
    // The block that contains the end belongs to the file.
    let block = u64::try_from(stat.f_bsize).unwrap_or(1).max(1);
    let end = found.len().next_multiple_of(block);
    let is_btrfs = stat.f_type == BTRFS;
    let mut map = ExtentMap::new(file, is_btrfs)?;
    // Btrfs reports an extent at its start, and the file may end within one.
    let before = if is_btrfs { LONGEST_OF_BTRFS } else { 0 };
    let (mut next, mut behind) = (Some(end.saturating_sub(before)), 0);
    while let Some(at) = next {
        let extents;
        (extents, next) = match map.read(at, u64::MAX) {
            // No file system without FIEMAP counts its own maps as a file's blocks.
            Err(error) if is_unsupported(&error) => {
                return Ok(Bytes((found.blocks() * 512).saturating_sub(end)));
            }
            read => read?,
        };
        for extent in extents {
            behind += extent.end().saturating_sub(extent.start.max(end));
        }
    }
    Ok(Bytes(behind))
}

/// Returns how many bytes of `part` may be shared, estimated from samples at random offsets.
///
/// A pod decides in how many pieces its volume's image is, but not what the image shares: only root can make reflinks
/// of it. No file system reports that a file never shared anything (XFS has such a flag, `XFS_DIFLAG2_REFLINK`, but
/// fs/xfs/libxfs/xfs_inode_util.c, `xfs_ip2xflags`, leaves it out). Nobody can predict the offsets: if all are the
/// file's own, a shared fraction `f` went unseen with a probability of `(1 - f)^asked`. If one is not, the whole part
/// counts as shared.
fn sample(file: &File, part: Range<u64>, samples: usize) -> io::Result<u64> {
    let length = part.end.saturating_sub(part.start);
    if length == 0 {
        return Ok(0);
    }
    let (began, mut asked) = (Instant::now(), 0);
    while asked < samples && began.elapsed() < SAMPLED {
        let random = random::number().map_err(io::Error::other)?;
        let found = extent_at(file, part.start + random % length)?;
        if !found.is_some_and(|extent| extent.is_own()) {
            return Ok(length);
        }
        asked += 1;
    }
    let parts = u64::try_from(asked / CERTAINTY).unwrap_or(0).max(1);
    Ok(length.div_ceil(parts))
}

/// Unshares a file's first `below` bytes where the file system can (Btrfs cannot): at most `budget` bytes, and until
/// `end`. Returns whether nothing was left to do within these limits.
///
/// # Errors
/// ENOSPC where there are no free blocks; what was unshared until then stays so.
pub(crate) fn unshare(
    file: &File,
    below: Bytes,
    budget: Bytes,
    end: Option<Instant>,
) -> io::Result<bool> {
    if !may_share(file)? {
        return Ok(true);
    }
    let (mut budget, mut is_left) = (budget.0, false);
    // Each call writes out what it copied, so small extents are combined, with unshared ones between them.
    let (mut part, mut mapped) = (0..0, 0);
    let walked = walk(
        file,
        below.0,
        &mut { ExtentBudget::WITHOUT_END },
        |extent| {
            if extent.start != mapped || extent.start - part.start >= STEP {
                let next = extent.start..extent.start;
                is_left = !unshare_part(file, mem::replace(&mut part, next), end)?;
            }
            mapped = extent.end();
            if extent.is_shared && !is_left {
                let paid = extent.length.min(budget);
                budget -= paid;
                part.end = extent.start + paid;
                is_left = paid < extent.length;
            }
            Ok(match is_left {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        },
    );
    match walked.and_then(|_| unshare_part(file, part, end)) {
        Err(error) if is_unsupported(&error) => Ok(true),
        Err(error) => Err(error),
        Ok(done) => Ok(done && !is_left),
    }
}

/// Unshares `part`, which has no holes: kernels mishandled these (Linux 6.12, "xfs: don't allocate COW extents when
/// unsharing a hole").
fn unshare_part(file: &File, part: Range<u64>, end: Option<Instant>) -> io::Result<bool> {
    let mut at = part.start;
    while at < part.end {
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(false);
        }
        let length = STEP.min(part.end - at);
        let flags = FallocateFlags::UNSHARE_RANGE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, at, length)?;
        at += length;
    }
    Ok(true)
}

/// Passes the extents of the first `below` bytes to `show` until it breaks or the budget is used up. Returns how
/// many of these bytes lie behind the last extent that was read.
fn walk(
    file: &File,
    below: u64,
    budget: &mut ExtentBudget,
    mut show: impl FnMut(Extent) -> io::Result<ControlFlow<()>>,
) -> io::Result<u64> {
    let mut map = ExtentMap::new(file, fstatfs(file)?.f_type == BTRFS)?;
    let (mut next, mut at, mut left) = (Some(0), 0, budget.per_file);
    while let Some(from) = next.filter(|_| at < below) {
        if left == 0 && budget.pooled == 0 {
            return Ok(below - at);
        }
        let found;
        (found, next) = map.read(from, below)?;
        let beyond = found.len().saturating_sub(left);
        left = left.saturating_sub(found.len());
        budget.pooled = budget.pooled.saturating_sub(beyond);
        for extent in found {
            let start = extent.start.max(at);
            let end = extent.end().min(below);
            if start < end {
                let shown = show(Extent {
                    start,
                    length: end - start,
                    ..extent
                })?;
                at = end;
                if shown.is_break() {
                    return Ok(below - at);
                }
            }
        }
    }
    Ok(0)
}

fn is_unsupported(error: &io::Error) -> bool {
    [Some(Errno::OPNOTSUPP), Some(Errno::NOTTY)].contains(&Errno::from_io_error(error))
}
