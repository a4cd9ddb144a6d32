//! What a Btrfs has given of its disks to data and to metadata: neither takes room in chunks of the other, whatever
//! `statfs` says is free.

use super::grow;
use flexvol_sdk::Bytes;
use rustix::fs::fstatfs;
use std::{fs, os::fd::BorrowedFd, path::Path};

/// With less for metadata Btrfs counts nothing as free (fs/btrfs/super.c, `btrfs_statfs`): a single change can reserve so
/// much for a moment.
const LEAST: u64 = 4 << 20;

/// No chunk of data holds more, nor more than a tenth of the disks (fs/btrfs/volumes.c, `init_alloc_chunk_ctl_policy_regular`).
const LARGEST_CHUNK: u64 = 10 << 30;

/// Chunks of one kind, as sysfs tells (fs/btrfs/sysfs.c, `space_info_attrs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    free: u64,
    /// What they take of the disks.
    taken: u64,
    /// How often all of it is written.
    copies: u64,
}

/// How a Btrfs has divided its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    data: Kind,
    metadata: Kind,
    unallocated: u64,
    /// The most that one new chunk of data holds.
    chunk: u64,
}

impl Chunks {
    /// `None` where one kind of chunk has both, or the kernel does not tell.
    pub(crate) fn of(mount: BorrowedFd<'_>) -> Option<Chunks> {
        let allocation = grow::btrfs_entry(mount)?.join("allocation");
        let [data, metadata, system] =
            ["data", "metadata", "system"].map(|kind| Kind::read(&allocation.join(kind)));
        let (data, mut metadata) = (data?, metadata?);
        let reserve = number(&allocation.join("global_rsv_size"))?;
        metadata.free = metadata.free.saturating_sub(reserve + LEAST);
        // All disks, less what copies of data would take (fs/btrfs/super.c, `btrfs_statfs`).
        let stat = fstatfs(mount).ok()?;
        let all = stat.f_blocks.saturating_mul(stat.f_bsize.unsigned_abs());
        let all = all.saturating_mul(data.copies);
        let taken = [data, metadata, system?]
            .map(|kind| kind.taken)
            .iter()
            .sum();
        Some(Chunks {
            data,
            metadata,
            unallocated: all.saturating_sub(taken),
            chunk: LARGEST_CHUNK.min(all / 10),
        })
    }

    /// What metadata can still take.
    pub(crate) fn for_metadata(&self) -> Bytes {
        let Chunks {
            metadata,
            unallocated,
            ..
        } = self;
        Bytes(metadata.free.saturating_add(unallocated / metadata.copies))
    }

    /// How much data can take so that metadata find room for a `share`th of these and of `other`.
    ///
    /// Where no hole of its chunks is as long as what is allocated at once, data get a new chunk, however much is free in
    /// theirs (fs/btrfs/extent-tree.c, `find_free_extent`): they may take all that is given to neither before that.
    pub(crate) fn for_data(&self, other: Bytes, share: u64) -> Bytes {
        let Chunks {
            data,
            metadata,
            unallocated,
            chunk,
        } = *self;
        let [metadata_free, copies, of_data, share] =
            [metadata.free, metadata.copies, data.copies, share].map(u128::from);
        let [free, unallocated, chunk, other] =
            [data.free, unallocated, chunk, other.0].map(u128::from);
        let in_chunks = (share * metadata_free).saturating_sub(other);
        // Each byte takes `of_data` from what is given to neither, the last one a chunk, and needs a share of it.
        let rest = unallocated.saturating_sub(chunk * of_data);
        let outside = (share * metadata_free + share * rest / copies).saturating_sub(other);
        let outside = (outside * copies / (copies + share * of_data)).min(rest / of_data);
        let most = in_chunks.max(outside).min(free + unallocated / of_data);
        Bytes(u64::try_from(most).unwrap_or(u64::MAX))
    }
}

impl Kind {
    fn read(directory: &Path) -> Option<Kind> {
        let number = |name: &str| number(&directory.join(name));
        let (total, taken) = (number("total_bytes")?, number("disk_total")?);
        let names = [
            "bytes_used",
            "bytes_pinned",
            "bytes_reserved",
            "bytes_readonly",
        ];
        let mut free = total;
        for name in names {
            free = free.saturating_sub(number(name)?);
        }
        Some(Kind {
            free,
            taken,
            copies: taken.checked_div(total).unwrap_or(1).max(1),
        })
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn chunks(data: u64, metadata: u64, unallocated: u64) -> Chunks {
        let kind = |free: u64, copies| Kind {
            free: free * MIB,
            taken: 0,
            copies,
        };
        Chunks {
            data: kind(data, 1),
            metadata: kind(metadata, 2),
            unallocated: unallocated * MIB,
            chunk: 100 * MIB,
        }
    }

    #[test]
    fn data_take_what_metadata_can_note() {
        let for_data = |chunks: Chunks, other: u64| chunks.for_data(Bytes(other * MIB), 25).0 / MIB;
        // Everything is given away: a 25th of data are metadata.
        assert_eq!(for_data(chunks(10_000, 200, 0), 0), 5000);
        assert_eq!(for_data(chunks(10_000, 200, 0), 4000), 1000);
        assert_eq!(for_data(chunks(3000, 200, 0), 0), 3000);
        assert_eq!(for_data(chunks(10_000, 0, 0), 0), 0);
        // Nothing is, but for the last chunk: 25 parts of data and twice one part of metadata.
        assert_eq!(for_data(chunks(0, 0, 2800), 0), 2500);
        assert_eq!(for_data(chunks(0, 0, 2800), 250), 2481);
        // What is given to neither may go to data, though these have room.
        assert_eq!(for_data(chunks(10_000, 6, 240), 100), 133);
        assert_eq!(for_data(chunks(10_000, 6, 40), 100), 50);
        assert_eq!(chunks(0, 100, 50).for_metadata(), Bytes(125 * MIB));
    }
}
