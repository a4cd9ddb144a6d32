//! Repairs a torn ext4 superblock: a power cut left two sectors that were not written together.
//!
//! Everything needed to find the journal is in the first sector, which is intact; the checksum over both sectors is in
//! the second. The copies of the superblock may be older: an interrupted growth may not have written its groups to them
//! yet, and an `e2fsck` that starts from a copy reports these groups as damaged. With a correct checksum the superblock
//! is as good as if both sectors came from one write.
//!
//! If a growth was written in part, the copies may also be newer. The journal then holds a superblock, which a replay
//! writes.
//!
//! A damaged superblock looks the same as a torn one. Therefore every field that does not change in use must equal that
//! of a copy, the journal must be in the state that the superblock claims, and the copy must not tell of a larger file
//! system than the superblock or the journal.

mod descriptors;
mod journal;

pub(super) use descriptors::write_descriptors;

use crate::{
    block::device::Device,
    superblock::{Superblock, le16, le32},
};
use flexvol_sdk::{Error, Result};
use journal::Journal;
use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

const SUPERBLOCK: u64 = 1024;

/// Byte ranges of the superblock that a mount, a write, an error or a growth changes (`struct ext4_super_block`,
/// fs/ext4/ext4.h). Only a growth writes the copies.
const CHANGING: [Range<usize>; 15] = [
    // Numbers of inodes and blocks: all, reserved and free.
    0x0..0x14,
    0x150..0x15c,
    // Times, number of mounts, state, and kibibytes written.
    0x2c..0x36,
    0x3a..0x3c,
    0x40..0x44,
    0x178..0x180,
    0x274..0x27c,
    // Group of a copy.
    0x5a..0x5c,
    COMPATIBLE..READ_ONLY_COMPATIBLE + 4,
    // Last mount point, first orphan, and errors.
    0x88..0xc8,
    0xe8..0xec,
    0x194..0x200,
    RESERVED..RESERVED + 2,
    // Blocks of metadata.
    0x248..0x24c,
    CHECKSUM..CHECKSUM + 4,
];

/// `s_blocks_count_lo` and `s_blocks_count_hi`, which never decrease.
const BLOCKS: usize = 0x4;
const BLOCKS_HIGH: usize = 0x150;

/// `s_reserved_gdt_blocks`, which a growth consumes.
const RESERVED: usize = 0xce;

/// The feature words, and the two flags in them that are set and cleared in use.
const COMPATIBLE: usize = 0x5c;
const INCOMPATIBLE: usize = 0x60;
const READ_ONLY_COMPATIBLE: usize = 0x64;
const RECOVER: u32 = 0x4;
const ORPHAN_PRESENT: u32 = 0x1_0000;

/// Offset of the checksum, which covers everything before it.
const CHECKSUM: usize = 0x3fc;

/// Byte ranges in which a check, a mount or a growth may change a single bit: free blocks and inodes, which the kernel
/// recounts, times, number of mounts, state, and kibibytes written.
const COUNTED: [Range<usize>; 6] = [
    0xc..0x14,
    0x2c..0x36,
    0x3a..0x3c,
    0x40..0x44,
    0x158..0x15c,
    0x178..0x180,
];

/// Writes the checksum again if only the checksum is wrong, as far as the superblock, its copy in block `copy`, and the
/// journal tell. Returns false if something else is or may be wrong: then only the checksum keeps the kernel from
/// trusting the superblock.
///
/// # Errors
/// [`ErrorKind::Busy`](flexvol_sdk::ErrorKind::Busy) where another process has begun to use the device; otherwise when
/// the superblocks cannot be read or written.
pub(super) fn write_checksum(device: &Device, found: &Superblock, copy: u64) -> Result<bool> {
    let corrected = claimed(device, found, copy, correct)?;
    corrected.map_err(|error| Error::system("correct the file system's superblock", error))
}

/// Applies `correct` to the device and to the position of the copy, while no other process can mount the device.
fn claimed(
    device: &Device,
    found: &Superblock,
    copy: u64,
    correct: fn(&File, u64) -> io::Result<bool>,
) -> Result<io::Result<bool>> {
    let _claim = device.claim()?;
    Ok(correct(&device.writer()?, copy * u64::from(found.block)))
}

/// Reads the superblock, and its copy at this position.
fn superblock_and_copy(file: &File, copy: u64) -> io::Result<([u8; 1024], [u8; 1024])> {
    let (mut superblock, mut other) = ([0; 1024], [0; 1024]);
    file.read_exact_at(&mut superblock, SUPERBLOCK)?;
    file.read_exact_at(&mut other, copy)?;
    Ok((superblock, other))
}

/// Whether the superblock says that the journal is to be replayed.
fn is_to_be_replayed(superblock: &[u8; 1024]) -> bool {
    le32(superblock, INCOMPATIBLE).is_some_and(|features| features & RECOVER != 0)
}

fn correct(file: &File, copy: u64) -> io::Result<bool> {
    let (superblock, other) = superblock_and_copy(file, copy)?;
    let Some(checksum) =
        expected(&superblock).filter(|_| constant_fields_match(&superblock, &other))
    else {
        return Ok(false);
    };
    let difference = checksum ^ le32(&superblock, CHECKSUM).unwrap_or(checksum);
    if difference == 0 || is_bit_flip(difference) {
        return Ok(false);
    }
    let newest = match Journal::new(file, &superblock) {
        Some(journal) if !journal.state_matches_superblock()? => return Ok(false),
        Some(journal) => match journal.last_superblock()? {
            Some(newest) if is_whole(&newest) && constant_fields_match(&newest, &other) => newest,
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

/// Returns the checksum that a superblock should have (`ext4_superblock_csum`, fs/ext4/super.c); `None` where it has
/// none.
fn expected(superblock: &[u8; 1024]) -> Option<u32> {
    // `EXT4_FEATURE_RO_COMPAT_METADATA_CSUM` in `s_feature_ro_compat`, and the only `s_checksum_type` that exists.
    let has_one = superblock[0x65] & 0x4 != 0 && superblock[0x175] == 1;
    has_one.then(|| crc32c(&superblock[..CHECKSUM]))
}

/// Whether the superblock has the checksum that it should have.
fn is_whole(superblock: &[u8; 1024]) -> bool {
    expected(superblock).is_some() && expected(superblock) == le32(superblock, CHECKSUM)
}

/// Castagnoli polynomial, least significant bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

fn shifted(sum: u32) -> u32 {
    match sum & 1 {
        1 => sum >> 1 ^ POLYNOMIAL,
        _ => sum >> 1,
    }
}

/// The kernel's `crc32c(~0, ...)`, which omits the final inversion.
fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_after(!0, bytes)
}

/// The same of bytes that follow those with this sum.
fn crc32c_after(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| shifted(sum))
    })
}

/// Whether two checksums differ by one flipped bit that no write changes alone. Then the disk returned wrong data, and
/// no write is missing. The tools write a superblock in runs of changed words, the checksum last, and the first run may
/// change a single bit of a time.
fn is_bit_flip(difference: u32) -> bool {
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

/// Whether every field that does not change in use equals that of the copy.
fn constant_fields_match(superblock: &[u8; 1024], copy: &[u8; 1024]) -> bool {
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

/// Whether the superblock has not lost a growth that the copy knows. A growth writes the superblock before the copies,
/// so it must not have fewer blocks than the copy, nor more room reserved for group descriptors.
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
        // Number of blocks, free blocks, number of mounts, group of a copy, and errors.
        for changes in [0x4, 0xc, 0x34, 0x5a, 0x194] {
            superblock[changes] = 1;
        }
        assert!(constant_fields_match(&superblock, &copy));
        for at in [
            0x18, 0x39, 0x58, 0x70, 0xe0, 0xfe, 0x160, 0x270, 0x280, 0x3fb,
        ] {
            let mut other = superblock;
            other[at] = 1;
            assert!(!constant_fields_match(&other, &copy), "{at:#x}");
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
        // Check value of CRC-32C, before its final inversion.
        assert_eq!(!crc32c(b"123456789"), 0xe306_9283);
    }

    /// Changes a superblock that has a checksum and a copy. Returns whether it was corrected, and whether it then has
    /// the right checksum.
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
        // A byte that never changes, and a sector that reads as zeros.
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
        // Without the feature, or with an unknown kind of checksum.
        for (at, value) in [(0x65, 0), (0x175, 2)] {
            assert_eq!(
                corrected(|superblock| superblock[at] = value),
                (false, false)
            );
        }
    }
}
