//! An ext4 superblock of which a power cut left two sectors that were not written together.
//!
//! All that is read from it to find the journal stands in the first sector, which is whole; the checksum
//! over both stands in the second. The copies of the superblock are older: a growth that was cut may
//! not have told them of its groups yet, and `e2fsck` that begins with one finds them damaged. With
//! its checksum right again the superblock is as good as if both sectors were of one write.
//!
//! Where a growth was written in part, the copies may also be newer: what the journal holds of the superblock then is,
//! and a replay writes it.
//!
//! A superblock that was damaged looks the same. So all of it that no use changes must be as it is in a copy, the
//! journal as it says, and no copy of a larger file system than it or the journal tells of.

mod journal;

use crate::{
    block::device::Device,
    superblock::{Superblock, le16, le32},
};
use flexvol_sdk::{Error, Result};
use journal::Journal;
use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

const SUPERBLOCK: u64 = 1024;

/// What a mount, a write, an error or a growth changes, as bytes of the superblock (`struct ext4_super_block`,
/// fs/ext4/ext4.h). Copies are written by a growth alone.
const CHANGING: [Range<usize>; 15] = [
    // Inodes and blocks, those that are reserved, and those that are free.
    0x0..0x14,
    0x150..0x15c,
    // Times, the number of mounts, the state, and the kibibytes written.
    0x2c..0x36,
    0x3a..0x3c,
    0x40..0x44,
    0x178..0x180,
    0x274..0x27c,
    // The group that a copy stands in.
    0x5a..0x5c,
    COMPATIBLE..READ_ONLY_COMPATIBLE + 4,
    // Where it was mounted, the first orphan, and errors.
    0x88..0xc8,
    0xe8..0xec,
    0x194..0x200,
    RESERVED..RESERVED + 2,
    // What metadata take.
    0x248..0x24c,
    CHECKSUM..CHECKSUM + 4,
];

/// `s_blocks_count_lo` and `s_blocks_count_hi`: nothing makes them less.
const BLOCKS: usize = 0x4;
const BLOCKS_HIGH: usize = 0x150;

/// `s_reserved_gdt_blocks`: a growth takes of them.
const RESERVED: usize = 0xce;

/// The words of features, and the two flags in them that come and go with use.
const COMPATIBLE: usize = 0x5c;
const INCOMPATIBLE: usize = 0x60;
const READ_ONLY_COMPATIBLE: usize = 0x64;
const RECOVER: u32 = 0x4;
const ORPHAN_PRESENT: u32 = 0x1_0000;

/// Where the checksum is kept, which is over all before it.
const CHECKSUM: usize = 0x3fc;

/// What a check, a mount or a growth may have changed by one bit: free blocks and inodes, which the kernel counts
/// anew, times and the number of mounts, the state, and what was written in all.
const COUNTED: [Range<usize>; 6] = [
    0xc..0x14,
    0x2c..0x36,
    0x3a..0x3c,
    0x40..0x44,
    0x158..0x15c,
    0x178..0x180,
];

/// Writes the checksum again if it is all that is wrong, as far as the superblock, the copy of it in this block, and the
/// journal tell; false where something else is, or may be: the checksum is all that keeps the kernel from believing it.
///
/// # Errors
/// [`ErrorKind::Busy`](flexvol_sdk::ErrorKind::Busy) where somebody has begun to use the device;
/// otherwise when the superblocks cannot be read or written.
pub(super) fn write_checksum(device: &Device, found: &Superblock, copy: u64) -> Result<bool> {
    // Against everybody who would mount it meanwhile.
    let _claim = device.claim()?;
    let copy = copy * u64::from(found.block);
    correct(&device.writer()?, copy)
        .map_err(|error| Error::system("correct the file system's superblock", error))
}

fn correct(file: &File, copy: u64) -> io::Result<bool> {
    let (mut superblock, mut other) = ([0; 1024], [0; 1024]);
    file.read_exact_at(&mut superblock, SUPERBLOCK)?;
    file.read_exact_at(&mut other, copy)?;
    let Some(checksum) = expected(&superblock).filter(|_| lasts(&superblock, &other)) else {
        return Ok(false);
    };
    let difference = checksum ^ le32(&superblock, CHECKSUM).unwrap_or(checksum);
    if difference == 0 || is_by_chance(difference) {
        return Ok(false);
    }
    let newest = match Journal::new(file, &superblock) {
        Some(journal) if !journal.is_told()? => return Ok(false),
        Some(journal) => match journal.last_superblock()? {
            Some(newest) if is_whole(&newest) && lasts(&newest, &other) => newest,
            Some(_) => return Ok(false),
            None => superblock,
        },
        None => superblock,
    };
    if !has_grown_as_far(&newest, &other) {
        return Ok(false);
    }
    file.write_all_at(&checksum.to_le_bytes(), SUPERBLOCK + CHECKSUM as u64)?;
    file.sync_all()?;
    Ok(true)
}

/// The checksum that a superblock should have (`ext4_superblock_csum`, fs/ext4/super.c); `None` where
/// it has none.
fn expected(superblock: &[u8; 1024]) -> Option<u32> {
    // `EXT4_FEATURE_RO_COMPAT_METADATA_CSUM` in `s_feature_ro_compat`, and `s_checksum_type`, of
    // which there is one.
    let has_one = superblock[0x65] & 0x4 != 0 && superblock[0x175] == 1;
    has_one.then(|| crc32c(&superblock[..CHECKSUM]))
}

/// Whether it has the checksum that it should have.
fn is_whole(superblock: &[u8; 1024]) -> bool {
    expected(superblock).is_some() && expected(superblock) == le32(superblock, CHECKSUM)
}

/// Castagnoli's polynomial, lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

fn shifted(sum: u32) -> u32 {
    match sum & 1 {
        1 => sum >> 1 ^ POLYNOMIAL,
        _ => sum >> 1,
    }
}

/// The kernel's `crc32c(~0, ...)`, which leaves out the last inversion.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| shifted(sum))
    })
}

/// Whether two checksums differ because of one bit that nobody writes alone: a disk that returns what was not
/// written to it, and no write that was left out. The tools write a superblock in runs of the words that change, its
/// checksum last, and the first run may be one bit of a time.
fn is_by_chance(difference: u32) -> bool {
    let mut sum = 1;
    let byte = (0..CHECKSUM).rev().find(|_| {
        (0..8).any(|_| {
            sum = shifted(sum);
            sum == difference
        })
    });
    match byte {
        Some(byte) => !COUNTED.iter().any(|range| range.contains(&byte)),
        None => difference.is_power_of_two(),
    }
}

/// Whether all that no use changes is that of the copy.
fn lasts(superblock: &[u8; 1024], copy: &[u8; 1024]) -> bool {
    let word = |bytes: &[u8], at| le32(bytes, at).unwrap_or(0);
    let features = |bytes: &[u8]| {
        [
            word(bytes, COMPATIBLE),
            word(bytes, INCOMPATIBLE) & !RECOVER,
            word(bytes, READ_ONLY_COMPATIBLE) & !ORPHAN_PRESENT,
        ]
    };
    (0..1024)
        .filter(|at| !CHANGING.iter().any(|range| range.contains(at)))
        .all(|at| superblock[at] == copy[at])
        && features(superblock) == features(copy)
}

/// Whether no end is lost: a copy is told of a growth after the superblock, so the file system is not smaller than
/// one says, nor has it more room left for descriptors.
fn has_grown_as_far(superblock: &[u8; 1024], copy: &[u8; 1024]) -> bool {
    let word = |bytes: &[u8], at| le32(bytes, at).unwrap_or(0);
    let blocks =
        |bytes: &[u8]| u64::from(word(bytes, BLOCKS_HIGH)) << 32 | u64::from(word(bytes, BLOCKS));
    blocks(superblock) >= blocks(copy) && le16(superblock, RESERVED) <= le16(copy, RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_is_compared() {
        let mut superblock = [0; 1024];
        let copy = [0; 1024];
        // The number of blocks, free blocks, mounts, the group that a copy stands in, and errors.
        for changes in [0x4, 0xc, 0x34, 0x5a, 0x194] {
            superblock[changes] = 1;
        }
        assert!(lasts(&superblock, &copy));
        for at in [
            0x18, 0x39, 0x58, 0x70, 0xe0, 0xfe, 0x160, 0x270, 0x280, 0x3fb,
        ] {
            let mut other = superblock;
            other[at] = 1;
            assert!(!lasts(&other, &copy), "{at:#x}");
        }
    }

    #[test]
    fn a_copy_is_told_of_a_growth_last() {
        let (mut superblock, mut copy) = ([0; 1024], [0; 1024]);
        copy[RESERVED] = 8;
        (superblock[BLOCKS], superblock[RESERVED]) = (2, 7);
        assert!(has_grown_as_far(&superblock, &copy));
        copy[BLOCKS_HIGH] = 1;
        assert!(!has_grown_as_far(&superblock, &copy));
        superblock[BLOCKS_HIGH] = 1;
        assert!(has_grown_as_far(&superblock, &copy));
        superblock[RESERVED] = 9;
        assert!(!has_grown_as_far(&superblock, &copy));
    }

    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of CRC-32C, before its last inversion.
        assert_eq!(!crc32c(b"123456789"), 0xe306_9283);
    }

    /// A superblock with a checksum and its copy, changed by `change`: whether it was corrected,
    /// and whether it then has the checksum it should have.
    fn corrected(change: impl Fn(&mut [u8; 1024])) -> (bool, bool) {
        const COPY: u64 = 8192;
        let mut superblock = [7; 1024];
        (superblock[0x65], superblock[0x175]) = (0x4, 1);
        let checksum = expected(&superblock).unwrap();
        superblock[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&superblock, COPY).unwrap();
        change(&mut superblock);
        file.write_all_at(&superblock, SUPERBLOCK).unwrap();
        let written = correct(&file, COPY).unwrap();
        let mut now = [0; 1024];
        file.read_exact_at(&mut now, SUPERBLOCK).unwrap();
        assert_eq!(now[..CHECKSUM], superblock[..CHECKSUM]);
        assert_eq!(written, now != superblock);
        (written, le32(&now, CHECKSUM) == expected(&now))
    }

    #[test]
    fn a_checksum_is_written_only_where_it_alone_is_wrong() {
        assert_eq!(corrected(|_| ()), (false, true));
        // The number of mounts, and its time.
        assert_eq!(
            corrected(|superblock| superblock[0x2c..0x36].fill(1)),
            (true, true)
        );
        // A byte that lasts, and a sector that reads as zeros.
        assert_eq!(corrected(|superblock| superblock[0x70] = 1), (false, false));
        assert_eq!(
            corrected(|superblock| superblock[0x200..].fill(0)),
            (false, false)
        );
        // One bit of what every use changes.
        for at in [0xc, 0x2c, 0x34, 0x35, 0x3a, 0x43, 0x178] {
            assert_eq!(corrected(|superblock| superblock[at] ^= 0x20), (true, true));
        }
        // One bit of anything else, or of the checksum.
        for at in [0x14, 0x36, 0x60, 0xe8, 0x180, 0x3fb, 0x3fc] {
            assert_eq!(
                corrected(|superblock| superblock[at] ^= 0x20),
                (false, false)
            );
        }
        // Other features, and fewer blocks.
        for at in [0x5c, 0x61, 0x66, 0x4] {
            assert_eq!(corrected(|superblock| superblock[at] = 0), (false, false));
        }
        // Without the feature, or with a kind of checksum that nobody knows.
        for (at, value) in [(0x65, 0), (0x175, 2)] {
            assert_eq!(
                corrected(|superblock| superblock[at] = value),
                (false, false)
            );
        }
    }
}
