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

/// What is allocated at once, if it is one hole (fs/btrfs/inode.c, `__btrfs_prealloc_file_range`).
const PIECE: u128 = 256 << 20;

/// How often profiles write all, at most, and whether on different disks. Others write once.
const PROFILES: [(&str, u64, bool); 7] = [
    ("dup", 2, false),
    ("raid1", 2, true),
    ("raid10", 2, true),
    ("raid5", 2, true),
    ("raid1c3", 3, true),
    ("raid6", 3, true),
    ("raid1c4", 4, true),
];

/// Chunks of one kind, as sysfs tells (fs/btrfs/sysfs.c, `space_info_attrs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    total: u64,
    free: u64,
    /// How often all of it is written.
    copies: u64,
    /// Each copy is on another disk.
    apart: bool,
}

/// What is in no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unallocated {
    bytes: u64,
    /// How much metadata it can hold, each byte counted once.
    metadata: u64,
    /// By how much less metadata for bytes that data take: a fraction.
    loss: (u64, u64),
}

impl Unallocated {
    /// `apart`: each copy of metadata on another disk.
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
        // What the largest have beyond the others is of use for one copy each.
        let mut metadata = u64::MAX;
        let mut left = bytes;
        for copies in (1..=copies).rev() {
            metadata = metadata.min(left / copies);
            left -= disks.pop().unwrap_or_default();
        }
        // Data may take as much from each disk, where the fullest is what metadata wait for.
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
    data: Kind,
    metadata: Kind,
    unallocated: Unallocated,
    /// The most that one new chunk of data holds.
    chunk: u64,
}

impl Chunks {
    /// `None` where one kind of chunk has both, or the kernel does not tell.
    pub(crate) fn of(mount: BorrowedFd<'_>) -> Option<Chunks> {
        let allocation = grow::btrfs_entry(mount)?.join("allocation");
        let data = Kind::read(&allocation.join("data"))?;
        let mut metadata = Kind::read(&allocation.join("metadata"))?;
        let reserve = number(&allocation.join("global_rsv_size"))?;
        metadata.free = metadata.free.saturating_sub(reserve + LEAST);
        let disks = grow::btrfs_unallocated(mount)?;
        let stat = fstatfs(mount).ok()?;
        // Without what copies of data would take (fs/btrfs/super.c, `btrfs_statfs`).
        let all = stat.f_blocks.saturating_mul(stat.f_bsize.unsigned_abs());
        let all = all.saturating_mul(data.copies);
        Some(Chunks {
            data,
            metadata,
            unallocated: Unallocated::of(&disks, metadata.copies, metadata.apart),
            chunk: LARGEST_CHUNK.min(all / 10),
        })
    }

    /// What metadata can still take.
    pub(crate) fn for_metadata(&self) -> Bytes {
        let in_chunks = self.metadata.free;
        Bytes(in_chunks.saturating_add(self.unallocated.metadata))
    }

    /// The same after a balance of those chunks of data of which less than half is used, as far as there are some for sure:
    /// what is free in them is in no chunk then, but for the rest of the last one.
    pub(crate) fn balanced(self) -> Chunks {
        let Kind {
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

    /// What is free in chunks of data, and for nothing else.
    pub(crate) fn in_data(&self) -> Bytes {
        Bytes(self.data.free)
    }

    /// How much data can take so that metadata find room for a `share`th of these and of `other`.
    ///
    /// Where no hole of its chunks is as long as what is allocated at once, data get a new chunk, however much is free in
    /// theirs (fs/btrfs/extent-tree.c, `find_free_extent`): they may take all that is in no chunk before that.
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
        // A chunk has a rest that is too short for the next piece, and the last one may lie on one disk.
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

impl Kind {
    fn read(directory: &Path) -> Option<Kind> {
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
        Some(Kind {
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
        let kind = |free: u64, copies| Kind {
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
        // Everything is given away: a 25th of data are metadata.
        assert_eq!(for_data(chunks(10_000, 200, 0), 0), 5000);
        assert_eq!(for_data(chunks(10_000, 200, 0), 4000), 1000);
        assert_eq!(for_data(chunks(3000, 200, 0), 0), 3000);
        assert_eq!(for_data(chunks(10_000, 0, 0), 0), 0);
        // Nothing is: a chunk is lost, and half of each of the others, 25 parts of data and twice one part of metadata.
        assert_eq!(for_data(chunks(0, 0, 2800), 0), 1250);
        assert_eq!(for_data(chunks(0, 0, 2800), 250), 1240);
        // What is in no chunk may go to data, though these have room.
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
