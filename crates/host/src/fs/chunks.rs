//! How a Btrfs divides its disks between data and metadata. Free space in chunks of one kind cannot be used for the
//! other kind, whatever `statfs` reports as free.

use super::grow;
use flexvol_sdk::Bytes;
use rustix::fs::fstatfs;
use std::{fs, os::fd::BorrowedFd, path::Path};

/// Metadata space that must stay free. With less, Btrfs reports no free space at all (fs/btrfs/super.c,
/// `btrfs_statfs`), because a single operation can temporarily reserve that much.
const LEAST: u64 = 4 << 20;

/// Largest data chunk; a tenth of the disks is also a limit (fs/btrfs/volumes.c,
/// `init_alloc_chunk_ctl_policy_regular`).
const LARGEST_CHUNK: u64 = 10 << 30;

/// Bytes allocated at once, if one hole is long enough (fs/btrfs/inode.c, `__btrfs_prealloc_file_range`).
const PIECE: u128 = 256 << 20;

/// Profiles with their largest number of copies, and whether copies lie on different disks. Other profiles write once.
const PROFILES: [(&str, u64, bool); 7] = [
    ("dup", 2, false),
    ("raid1", 2, true),
    ("raid10", 2, true),
    ("raid5", 2, true),
    ("raid1c3", 3, true),
    ("raid6", 3, true),
    ("raid1c4", 4, true),
];

/// Chunks of one kind, as sysfs reports them (fs/btrfs/sysfs.c, `space_info_attrs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockGroups {
    total: u64,
    free: u64,
    /// Number of copies of everything in these chunks.
    copies: u64,
    /// Each copy lies on a different disk.
    apart: bool,
}

/// Space that belongs to no chunk yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unallocated {
    bytes: u64,
    /// Bytes of metadata that the space can hold, copies not counted.
    metadata: u64,
    /// Fraction (numerator, denominator): bytes of `metadata` lost for each byte that data takes.
    loss: (u64, u64),
}

impl Unallocated {
    /// Computes the space from the unallocated bytes of each disk. `apart`: each copy of metadata lies on a different
    /// disk.
    fn of(disks: &[u64], copies: u64, apart: bool) -> Unallocated {
        let mut disks = disks.to_owned();
        disks.sort_unstable();
        let bytes: u64 = disks.iter().sum();
        if !apart {
            return Unallocated {
                bytes,
                metadata: bytes / copies,
                loss: (1, copies),
            };
        }
        // What the largest disks have beyond the others can hold only one copy each.
        let mut metadata = u64::MAX;
        let mut left = bytes;
        for copies in (1..=copies).rev() {
            metadata = metadata.min(left / copies);
            left -= disks.pop().unwrap_or_default();
        }
        // Data may take equally much from each disk, and the fullest disk limits metadata.
        let count = disks.len() as u64 + copies;
        Unallocated {
            bytes,
            metadata,
            loss: (count - 1, count),
        }
    }
}

/// How a Btrfs has divided its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    data: BlockGroups,
    metadata: BlockGroups,
    unallocated: Unallocated,
    /// Largest size of a new data chunk.
    chunk: u64,
}

impl Chunks {
    /// Reads the state of a mounted Btrfs. `None` where data and metadata share chunks, or the kernel does not tell.
    pub(crate) fn of(mount: BorrowedFd<'_>) -> Option<Chunks> {
        let allocation = grow::btrfs_entry(mount)?.join("allocation");
        let data = BlockGroups::read(&allocation.join("data"))?;
        let mut metadata = BlockGroups::read(&allocation.join("metadata"))?;
        let reserve = number(&allocation.join("global_rsv_size"))?;
        metadata.free = metadata.free.saturating_sub(reserve + LEAST);
        let disks = grow::btrfs_unallocated(mount)?;
        let stat = fstatfs(mount).ok()?;
        // `statfs` divides by the copies of data (fs/btrfs/super.c, `btrfs_statfs`).
        let all = stat.f_blocks.saturating_mul(stat.f_bsize.unsigned_abs());
        let all = all.saturating_mul(data.copies);
        Some(Chunks {
            data,
            metadata,
            unallocated: Unallocated::of(&disks, metadata.copies, metadata.apart),
            chunk: LARGEST_CHUNK.min(all / 10),
        })
    }

    /// Returns the bytes that metadata can still take.
    pub(crate) fn for_metadata(&self) -> Bytes {
        let in_chunks = self.metadata.free;
        Bytes(in_chunks.saturating_add(self.unallocated.metadata))
    }

    /// Returns the state after a balance of the data chunks that are less than half used. Counts only what such chunks
    /// certainly have free, which is nothing unless more than half of all data space is free. That space becomes
    /// unallocated, except for the remainder of one chunk.
    pub(crate) fn balanced(self) -> Chunks {
        let BlockGroups {
            total,
            free,
            copies,
            ..
        } = self.data;
        if free <= total / 2 {
            return self;
        }
        let freed = free.saturating_sub(self.chunk);
        let bytes = freed.saturating_mul(copies);
        let mut balanced = self;
        balanced.data.total -= freed;
        balanced.data.free -= freed;
        balanced.unallocated.bytes = self.unallocated.bytes.saturating_add(bytes);
        let metadata = bytes / self.metadata.copies;
        balanced.unallocated.metadata = self.unallocated.metadata.saturating_add(metadata);
        balanced
    }

    /// Returns the free space in data chunks, which only data can use.
    pub(crate) fn in_data(&self) -> Bytes {
        Bytes(self.data.free)
    }

    /// Returns the bytes that data can take while metadata keeps room for one `share`th of these bytes and of `other`.
    /// Btrfs allocates a new data chunk when no hole in the existing ones is as long as a single allocation, however
    /// much is free in them (fs/btrfs/extent-tree.c, `find_free_extent`). Data may thus consume all unallocated space
    /// first.
    pub(crate) fn for_data(&self, other: Bytes, share: u64) -> Bytes {
        let Chunks {
            data,
            metadata,
            unallocated,
            chunk,
        } = *self;
        let [free, of_data, metadata_free, chunk, share, other] =
            [data.free, data.copies, metadata.free, chunk, share, other.0].map(u128::from);
        let [bytes, room] = [unallocated.bytes, unallocated.metadata].map(u128::from);
        let (lost, of) = unallocated.loss;
        let [lost, of] = [lost, of].map(u128::from);
        let in_chunks = (share * metadata_free).saturating_sub(other);
        // A chunk ends in a remainder too short for the next piece, and the last chunk may lie on a single disk.
        let (taken, used) = match chunk - chunk % PIECE {
            0 => (2, 1),
            pieces => (chunk, pieces),
        };
        let room = room.saturating_sub(chunk * of_data);
        let bytes_left = bytes.saturating_sub(chunk * of_data);
        let outside = (share * (metadata_free + room)).saturating_sub(other);
        let outside = outside * of * used / (of * used + share * of_data * lost * taken);
        let outside = outside.min(bytes_left * used / (of_data * taken));
        let most = in_chunks.max(outside).min(free + bytes / of_data);
        Bytes(u64::try_from(most).unwrap_or(u64::MAX))
    }
}

impl BlockGroups {
    fn read(directory: &Path) -> Option<BlockGroups> {
        let number = |name: &str| number(&directory.join(name));
        let total = number("total_bytes")?;
        let mut free = total;
        let names = [
            "bytes_used",
            "bytes_pinned",
            "bytes_reserved",
            "bytes_readonly",
        ];
        for name in names {
            free = free.saturating_sub(number(name)?);
        }
        let (mut copies, mut apart) = (1, false);
        for (profile, of_it, is_apart) in PROFILES {
            if directory.join(profile).exists() {
                copies = copies.max(of_it);
                apart |= is_apart;
            }
        }
        Some(BlockGroups {
            total,
            free,
            copies,
            apart,
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
        let kind = |free: u64, copies| BlockGroups {
            total: free * MIB,
            free: free * MIB,
            copies,
            apart: false,
        };
        Chunks {
            data: kind(data, 1),
            metadata: kind(metadata, 2),
            unallocated: Unallocated::of(&[unallocated * MIB], 2, false),
            chunk: 100 * MIB,
        }
    }

    #[test]
    fn metadata_take_what_lies_on_as_many_disks_as_they_have_copies() {
        let of = |disks: &[u64], copies| Unallocated::of(disks, copies, true).metadata;
        assert_eq!(of(&[21, 3093], 2), 21);
        assert_eq!(of(&[21, 3093, 30], 2), 51);
        assert_eq!(of(&[100, 100], 2), 100);
        assert_eq!(of(&[100, 100, 100], 2), 150);
        assert_eq!(of(&[100, 200, 300, 50], 3), 150);
        assert_eq!(of(&[100], 2), 0);
        let on_any = Unallocated::of(&[100, 300], 2, false);
        assert_eq!((on_any.metadata, on_any.loss), (200, (1, 2)));
    }

    #[test]
    fn data_take_what_metadata_can_note() {
        let for_data = |chunks: Chunks, other: u64| chunks.for_data(Bytes(other * MIB), 25).0 / MIB;
        // All space is in chunks: metadata takes a 25th of data.
        assert_eq!(for_data(chunks(10_000, 200, 0), 0), 5000);
        assert_eq!(for_data(chunks(10_000, 200, 0), 4000), 1000);
        assert_eq!(for_data(chunks(3000, 200, 0), 0), 3000);
        assert_eq!(for_data(chunks(10_000, 0, 0), 0), 0);
        // No space is in chunks: one chunk is lost, and half of each other one, for 25 parts of data and twice one part
        // of metadata.
        assert_eq!(for_data(chunks(0, 0, 2800), 0), 1250);
        assert_eq!(for_data(chunks(0, 0, 2800), 250), 1240);
        // Data may take the unallocated space although its chunks have room.
        assert_eq!(for_data(chunks(10_000, 6, 240), 100), 50);
        assert_eq!(for_data(chunks(10_000, 6, 2400), 100), 1059);
        assert_eq!(chunks(0, 100, 50).for_metadata(), Bytes(125 * MIB));
    }

    #[test]
    fn a_balance_gives_back_what_data_do_not_use() {
        let nearly_empty = chunks(1000, 6, 0);
        let now = nearly_empty.for_data(Bytes(0), 25);
        assert_eq!(now, Bytes(150 * MIB));
        let balanced = nearly_empty.balanced();
        assert_eq!(balanced.unallocated.bytes, 900 * MIB);
        assert!(balanced.for_data(Bytes(0), 25) > Bytes(300 * MIB));
        let mut half_full = nearly_empty;
        half_full.data.total = 2000 * MIB;
        assert_eq!(half_full.balanced(), half_full);
        assert_eq!(chunks(100, 6, 900).balanced(), chunks(100, 6, 900));
    }
}
