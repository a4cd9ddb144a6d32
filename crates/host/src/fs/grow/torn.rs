//! An ext4 superblock of which a power cut left two sectors that were not written together.
//!
//! All that is read from it to find the journal stands in the first sector, which is whole; the checksum
//! over both stands in the second. The copies of the superblock are older: a growth that was cut may
//! not have told them of its groups yet, and `e2fsck` that begins with one finds them damaged. With
//! its checksum right again the superblock is as good as if both sectors were of one write.

use crate::{block::device::Device, superblock::Superblock};
use flexvol_sdk::{Error, Result};
use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

const SUPERBLOCK: u64 = 1024;

/// What no mount, no write and no growth changes, as bytes of the superblock (`struct
/// ext4_super_block`, fs/ext4/ext4.h): the geometry of a group, the magic number, revision and inode
/// size, the UUID, the journal's inode, and the hashes of directories with the size of descriptors.
const LASTING: [Range<usize>; 6] = [
    0x14..0x2c,
    0x38..0x3a,
    0x48..0x5a,
    0x68..0x78,
    0xe0..0xe4,
    0xec..0x100,
];

/// Where the checksum is kept, which is over all before it.
const CHECKSUM: usize = 0x3fc;

/// Writes the checksum again if it is all that is wrong, as far as the superblock and the copy of it
/// in this block tell; false where something else is. Whether it was all is for `e2fsck` to say.
///
/// # Errors
/// [`ErrorKind::Busy`](flexvol_sdk::ErrorKind::Busy) where somebody has begun to use the device;
/// otherwise when the superblocks cannot be read or written.
pub(super) fn write_checksum(device: &Device, found: &Superblock, copy: u64) -> Result<bool> {
    // Against everybody who would mount it meanwhile.
    let _claim = device.claim()?;
    correct(&device.writer()?, copy * u64::from(found.block))
        .map_err(|error| Error::system("correct the file system's superblock", error))
}

fn correct(file: &File, copy: u64) -> io::Result<bool> {
    let (mut superblock, mut other) = ([0; 1024], [0; 512]);
    file.read_exact_at(&mut superblock, SUPERBLOCK)?;
    file.read_exact_at(&mut other, copy)?;
    let Some(checksum) = expected(&superblock).filter(|_| is_same(&superblock, &other)) else {
        return Ok(false);
    };
    if superblock[CHECKSUM..] == checksum {
        return Ok(false);
    }
    file.write_all_at(&checksum, SUPERBLOCK + CHECKSUM as u64)?;
    file.sync_all()?;
    Ok(true)
}

/// The checksum that a superblock should have (`ext4_superblock_csum`, fs/ext4/super.c); `None` where
/// it has none.
fn expected(superblock: &[u8; 1024]) -> Option<[u8; 4]> {
    // `EXT4_FEATURE_RO_COMPAT_METADATA_CSUM` in `s_feature_ro_compat`, and `s_checksum_type`, of
    // which there is one.
    let has_one = superblock[0x65] & 0x4 != 0 && superblock[0x175] == 1;
    has_one.then(|| crc32c(&superblock[..CHECKSUM]).to_le_bytes())
}

/// The kernel's `crc32c(~0, ...)`, which leaves out the last inversion.
fn crc32c(bytes: &[u8]) -> u32 {
    /// Castagnoli's polynomial, lowest bit first.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| match sum & 1 {
            1 => sum >> 1 ^ POLYNOMIAL,
            _ => sum >> 1,
        })
    })
}

fn is_same(superblock: &[u8; 1024], copy: &[u8; 512]) -> bool {
    LASTING
        .into_iter()
        .all(|range| superblock[range.clone()] == copy[range])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_is_compared() {
        let mut superblock = [0; 1024];
        let copy = [0; 512];
        // The number of blocks, free blocks, mounts, and the group that a copy stands in.
        for changes in [0x4, 0xc, 0x34, 0x5a] {
            superblock[changes] = 1;
        }
        assert!(is_same(&superblock, &copy));
        for lasts in [0x18, 0x39, 0x58, 0x70, 0xe0, 0xfe] {
            let mut other = superblock;
            other[lasts] = 1;
            assert!(!is_same(&other, &copy), "{lasts:#x}");
        }
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
        superblock[CHECKSUM..].copy_from_slice(&checksum);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&superblock, COPY).unwrap();
        change(&mut superblock);
        file.write_all_at(&superblock, SUPERBLOCK).unwrap();
        let written = correct(&file, COPY).unwrap();
        let mut now = [0; 1024];
        file.read_exact_at(&mut now, SUPERBLOCK).unwrap();
        assert_eq!(now[..CHECKSUM], superblock[..CHECKSUM]);
        assert_eq!(written, now != superblock);
        (
            written,
            Some(&now[CHECKSUM..]) == expected(&now).as_ref().map(<[u8; 4]>::as_slice),
        )
    }

    #[test]
    fn a_checksum_is_written_only_where_it_alone_is_wrong() {
        assert_eq!(corrected(|_| ()), (false, true));
        // The number of mounts.
        assert_eq!(corrected(|superblock| superblock[0x34] = 1), (true, true));
        assert_eq!(corrected(|superblock| superblock[0x70] = 1), (false, false));
        // Without the feature, or with a kind of checksum that nobody knows.
        for (at, value) in [(0x65, 0), (0x175, 2)] {
            assert_eq!(
                corrected(|superblock| superblock[at] = value),
                (false, false)
            );
        }
    }
}
