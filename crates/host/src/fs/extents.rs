//! Which parts of a file have blocks, and which of these are its own: are written in place. What a reflink
//! (`cp` makes one where it can) or a snapshot shares needs new blocks when it is written, and so does all of
//! a file on Btrfs that is not told otherwise.

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

/// How many extents are read. Whoever may write to a volume can cut its image into pieces as small as a
/// block, and a million of them take half a second, or two where they are shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Of each file: one with many leaves something for the others.
    each: usize,
    /// Of all files, beyond that.
    common: usize,
    /// At so many places, of each file, it is asked what lies behind the last extent that was read.
    places: usize,
}

impl Allowance {
    /// For the one file that a call is about: eight seconds, or half a minute where it is shared.
    pub(crate) const ONE: Self = Allowance {
        each: 1 << 24,
        common: 0,
        places: 1 << 11,
    };

    /// For a look at so many files that others need not wait for: a second, or five where they are shared.
    pub(crate) fn patient(files: usize) -> Self {
        Allowance {
            each: (1 << 16).min((1 << 21) / files.max(1)),
            common: 1 << 19,
            places: (1 << 11).min((1 << 19) / files.max(1)),
        }
    }

    /// For a look for which others wait: some ten milliseconds. Whoever comes first leaves something to small
    /// and new files.
    pub(crate) fn hurried(files: usize) -> Self {
        Allowance {
            each: (1 << 10).min((1 << 15) / files.max(1)),
            common: 1 << 14,
            // What the patient look found stands until then.
            places: 0,
        }
    }

    /// For a file that must be known, and that nobody else writes to.
    pub(crate) const WITHOUT_END: Self = Allowance {
        each: usize::MAX,
        common: 0,
        places: 0,
    };
}

/// One sample in `e` to this power, a thousand million, misses that more is shared than it lets expect.
const CERTAINTY: usize = 21;

/// So long places are asked: Btrfs of Linux 6.1 needs milliseconds for one that is in one of many pieces.
const SAMPLED: Duration = Duration::from_secs(1);

/// XFS copies what it unshares through the page cache and keeps others from the file meanwhile.
const STEP: u64 = 64 << 20;

/// ext2 to ext4, and tmpfs.
const WITHOUT_SHARING: [i64; 2] = [0xef53, 0x0102_1994];

/// What a file has of its first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// What has blocks, or where these cannot be told apart, what it has in all.
    pub(crate) all: Bytes,
    /// What of it can be written, again and again, without new blocks.
    pub(crate) own: Bytes,
    /// Of this it is not known, because the file is in more pieces than were read. A sample may say that it is
    /// little.
    pub(crate) unread: Bytes,
    /// Extents told it, and no count of blocks, in which the file's map is too.
    pub(crate) is_exact: bool,
}

/// Whether files may share blocks on the file system of `file`.
pub(crate) fn may_share(file: impl AsFd) -> io::Result<bool> {
    Ok(!WITHOUT_SHARING.contains(&fstatfs(file)?.f_type))
}

/// Whether the file system can give blocks of its own to what a file shares.
pub(crate) fn can_unshare(file: impl AsFd) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type != BTRFS)
}

/// Whether what is not shared is overwritten where it is. Btrfs writes elsewhere and frees the old extent
/// once nothing of it is left, so that a full file needs up to as much again, unless it was told otherwise
/// while the file was empty (`FS_NOCOW_FL`; fs/btrfs/ioctl.c, `btrfs_fileattr_set`).
pub(crate) fn is_written_in_place(file: impl AsFd) -> io::Result<bool> {
    if fstatfs(&file)?.f_type != BTRFS {
        return Ok(true);
    }
    Ok(ioctl_getflags(file)?.contains(IFlags::NOCOW))
}

/// What a file has of its first `below` bytes.
///
/// Where nothing is shared this is one look at `st_blocks`, which counts 512 bytes whatever the block of
/// the file system is, and also what lies behind the end and the file system's map of the file (ext4: at
/// most 12 bytes for a block of 4 KiB): so much of a hole may be missed. Elsewhere the extents are asked
/// for, unless all of them are written elsewhere.
pub(crate) fn blocks(file: &File, below: Bytes, allowance: &mut Allowance) -> io::Result<Blocks> {
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
    let walked = walk(file, below.0, allowance, |extent| {
        found.all.0 += extent.length;
        if extent.is_own() {
            found.own.0 += extent.length;
        }
        Ok(ControlFlow::Continue(()))
    });
    match walked {
        Ok(unread) => {
            let part = below.0 - unread..below.0;
            let doubtful = sample(file, part, allowance.places)?;
            found.own.0 += unread - doubtful;
            found.unread = Bytes(doubtful);
            found.all.0 += unread.min(all.saturating_sub(found.all).0);
            Ok(found)
        }
        Err(error) if is_unsupported(&error) => Ok(counted),
        Err(error) => Err(error),
    }
}

/// `fallocate` makes none that is longer (`__btrfs_prealloc_file_range` in fs/btrfs/inode.c).
const LONGEST_OF_BTRFS: u64 = 256 << 20;

/// What a file has behind its end. That is in few pieces: nobody writes there.
pub(crate) fn behind(file: &File) -> io::Result<Bytes> {
    let found = file.metadata()?;
    let stat = fstatfs(file)?;
    // The block that its end is in is its own.
    let block = u64::try_from(stat.f_bsize).unwrap_or(1).max(1);
    let end = found.len().next_multiple_of(block);
    let is_btrfs = stat.f_type == BTRFS;
    let mut map = ExtentMap::new(file, is_btrfs)?;
    // Btrfs tells of an extent where it begins, and the end may be in one.
    let before = if is_btrfs { LONGEST_OF_BTRFS } else { 0 };
    let (mut next, mut behind) = (Some(end.saturating_sub(before)), 0);
    while let Some(at) = next {
        let extents;
        (extents, next) = match map.read(at, u64::MAX) {
            // Of these none counts its maps as the file's.
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

/// How much of `part` need not be the file's own, by a look at so many places.
///
/// Whoever writes to a volume decides in how many pieces its image is, but not what it shares, and root alone
/// copies. No file system tells of a file that it never shared anything (XFS has such a flag,
/// `XFS_DIFLAG2_REFLINK`, and fs/xfs/libxfs/xfs_inode_util.c, `xfs_ip2xflags`, leaves it out). So places are asked
/// that nobody can know before: where all are the file's own, a share `f` of others went unseen with a
/// probability of `(1 - f)^asked`. Where one is not, all of it is in doubt.
fn sample(file: &File, part: Range<u64>, places: usize) -> io::Result<u64> {
    let length = part.end.saturating_sub(part.start);
    if length == 0 {
        return Ok(0);
    }
    let (began, mut asked) = (Instant::now(), 0);
    while asked < places && began.elapsed() < SAMPLED {
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

/// Gives blocks of its own to what a file shares of its first `below` bytes, where the file system can
/// (Btrfs cannot): to at most `budget` bytes, and until `end`. Whether nothing was left for that.
///
/// # Errors
/// ENOSPC where it has none; what was done until then stays done.
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
    // Each call writes out what it copied, so small extents are taken together, with what is between them.
    let (mut part, mut mapped) = (0..0, 0);
    let walked = walk(file, below.0, &mut { Allowance::WITHOUT_END }, |extent| {
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
    });
    match walked.and_then(|_| unshare_part(file, part, end)) {
        Err(error) if is_unsupported(&error) => Ok(true),
        Err(error) => Err(error),
        Ok(done) => Ok(done && !is_left),
    }
}

/// `part` has no holes: kernels were wrong about these (Linux 6.12, "xfs: don't allocate COW extents when
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

/// Shows the extents of the first `below` bytes until it is told to end; how much of these lies behind the last that
/// was read.
fn walk(
    file: &File,
    below: u64,
    allowance: &mut Allowance,
    mut show: impl FnMut(Extent) -> io::Result<ControlFlow<()>>,
) -> io::Result<u64> {
    let mut map = ExtentMap::new(file, fstatfs(file)?.f_type == BTRFS)?;
    let (mut next, mut at, mut left) = (Some(0), 0, allowance.each);
    while let Some(from) = next.filter(|_| at < below) {
        if left == 0 && allowance.common == 0 {
            return Ok(below - at);
        }
        let found;
        (found, next) = map.read(from, below)?;
        let beyond = found.len().saturating_sub(left);
        left = left.saturating_sub(found.len());
        allowance.common = allowance.common.saturating_sub(beyond);
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
