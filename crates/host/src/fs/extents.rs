//! Which parts of a file have blocks, and which of these are its own: are written in place. What a reflink
//! (`cp` makes one where it can) or a snapshot shares needs new blocks when it is written, and so does all of
//! a file on Btrfs that is not told otherwise.

use crate::{fs::subvolume::BTRFS, sys::fiemap};
use flexvol_sdk::Bytes;
use linux_raw_sys::ioctl::{FIEMAP_EXTENT_ENCODED, FIEMAP_EXTENT_LAST, FIEMAP_EXTENT_SHARED};
use rustix::{
    fs::{FallocateFlags, IFlags, fallocate, fstatfs, ioctl_getflags},
    io::Errno,
};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
};

/// How many extents are read. Whoever may write to a volume can cut its image into pieces as small as a
/// block, and a million of them take half a second, or two where they are shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Of each file: one with many leaves something for the others.
    each: usize,
    /// Of all files, beyond that.
    common: usize,
}

impl Allowance {
    /// For the one file that a call is about: as a rule it ends in sight. Eight seconds.
    pub(crate) const ONE: Self = Allowance {
        each: 1 << 24,
        common: 0,
    };

    /// For a look that others need not wait for.
    pub(crate) const PATIENT: Self = Allowance {
        each: 1 << 16,
        common: 1 << 19,
    };

    /// For a look for which others wait: ten milliseconds.
    pub(crate) const HURRIED: Self = Allowance {
        each: 0,
        common: 1 << 14,
    };

    /// For a file that must be known, and that nobody else writes to.
    pub(crate) const WITHOUT_END: Self = Allowance {
        each: usize::MAX,
        common: 0,
    };
}

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
    /// Of this it is not known, because the file is in more pieces than were read.
    pub(crate) unread: Bytes,
}

/// A part of a file that has blocks, below the end that was asked for.
struct Extent {
    start: u64,
    length: u64,
    flags: u32,
}

/// Whether files may share blocks on the file system of `file`.
pub(crate) fn may_share(file: impl AsFd) -> io::Result<bool> {
    Ok(!WITHOUT_SHARING.contains(&fstatfs(file)?.f_type))
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
        unread: Bytes(0),
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
    let mut found = Blocks::default();
    let walked = walk(file.as_fd(), below.0, allowance, |extent| {
        found.all.0 += extent.length;
        // Compressed is what has less than it says.
        if extent.flags & (FIEMAP_EXTENT_SHARED | FIEMAP_EXTENT_ENCODED) == 0 {
            found.own.0 += extent.length;
        }
        Ok(())
    });
    match walked {
        Ok(unread) => {
            found.unread = Bytes(unread);
            found.all.0 += unread.min(all.saturating_sub(found.all).0);
            Ok(found)
        }
        Err(error) if is_unsupported(&error) => Ok(counted),
        Err(error) => Err(error),
    }
}

/// Gives blocks of its own to what a file shares of its first `below` bytes, where the file system can
/// (Btrfs cannot).
///
/// # Errors
/// ENOSPC where it has none; what was done until then stays done.
pub(crate) fn unshare(file: &File, below: Bytes) -> io::Result<()> {
    if !may_share(file)? {
        return Ok(());
    }
    let walked = walk(
        file.as_fd(),
        below.0,
        &mut { Allowance::WITHOUT_END },
        |extent| {
            // Not the whole file at once: kernels were wrong about what is in holes (Linux 6.12, "xfs: don't
            // allocate COW extents when unsharing a hole").
            if extent.flags & FIEMAP_EXTENT_SHARED == 0 {
                return Ok(());
            }
            let end = extent.start + extent.length;
            let mut at = extent.start;
            while at < end {
                let length = STEP.min(end - at);
                let flags = FallocateFlags::UNSHARE_RANGE | FallocateFlags::KEEP_SIZE;
                fallocate(file, flags, at, length)?;
                at += length;
            }
            Ok(())
        },
    );
    match walked {
        Err(error) if is_unsupported(&error) => Ok(()),
        walked => walked.map(|_| ()),
    }
}

/// Shows every extent of the first `below` bytes; how much of these lies behind the last that was read.
fn walk(
    file: BorrowedFd<'_>,
    below: u64,
    allowance: &mut Allowance,
    mut show: impl FnMut(Extent) -> io::Result<()>,
) -> io::Result<u64> {
    let (mut at, mut left) = (0, allowance.each);
    while at < below {
        if left == 0 && allowance.common == 0 {
            return Ok(below - at);
        }
        let found = fiemap::extents(file, at, below - at)?;
        let Some(last) = found.last().copied() else {
            break;
        };
        let beyond = found.len().saturating_sub(left);
        left = left.saturating_sub(found.len());
        allowance.common = allowance.common.saturating_sub(beyond);
        for extent in found {
            let start = extent.start.max(at);
            let end = extent.start.saturating_add(extent.length).min(below);
            if start < end {
                show(Extent {
                    start,
                    length: end - start,
                    flags: extent.flags,
                })?;
                at = end;
            }
        }
        let end = last.start.saturating_add(last.length);
        if last.flags & FIEMAP_EXTENT_LAST != 0 || end < at || last.length == 0 {
            break;
        }
        at = end;
    }
    Ok(0)
}

fn is_unsupported(error: &io::Error) -> bool {
    [Some(Errno::OPNOTSUPP), Some(Errno::NOTTY)].contains(&Errno::from_io_error(error))
}
