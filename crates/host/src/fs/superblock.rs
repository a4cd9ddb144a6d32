//! The superblocks of ext3, ext4, XFS and Btrfs, read from bytes.
//!
//! Only what the driver decides by is read: kind, UUID, and the size the file system spans.
//! Checksums are not verified: the kernel does that when it mounts, and a superblock with a bad
//! one must count as data anyway. Layouts: `fs/ext4/ext4.h` (`struct ext4_super_block`),
//! `fs/xfs/libxfs/xfs_format.h` (`struct xfs_dsb`), `include/uapi/linux/btrfs_tree.h` (`struct
//! btrfs_super_block`).

mod demand;

pub use demand::Demand;
pub(crate) use demand::demand;

use crate::uuid::Uuid;
use flexvol_sdk::{Bytes, Filesystem};

/// How much of the start of a device holds every superblock: Btrfs' ends at 68 KiB.
pub const HEAD: usize = 68 << 10;

/// A superblock that describes a whole file system of a kind that volumes may hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Superblock {
    /// The kind.
    pub filesystem: Filesystem,
    /// Its identity; for Btrfs the fsid.
    pub uuid: Uuid,
    /// The bytes of the device it spans, which may be more than the device has.
    pub size: Bytes,
    /// The unit of allocation in bytes (Btrfs: the sector size).
    pub block: u32,
}

/// What the place of a superblock holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Not this kind's magic number.
    Nothing,
    /// A whole superblock.
    Whole(Superblock),
    /// The magic number of the kind, but not a file system that a volume may hold; the text says
    /// what it is.
    Other(&'static str),
}

/// What ext4 leaves unused at the end of a device, and how its mount state stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtDetails {
    /// The largest part of a last block group that the kernel and `resize2fs` leave out: its own
    /// metadata and fewer than 50 blocks of data, never more than a group.
    pub slack: Bytes,
    /// `s_state` has `EXT4_ERROR_FS`: the kernel found damage, or `resize2fs` did not come to its
    /// end. The kernel does not grow it then.
    pub has_errors: bool,
    /// More blocks than this it cannot number: 2^32 - 1 without the feature `64bit`.
    pub most_blocks: u64,
    /// The flag is there and the kernel has counted no error (`s_error_count`): it was `resize2fs`.
    pub resize_was_cut: bool,
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn uuid(bytes: &[u8], at: usize) -> Option<Uuid> {
    Some(Uuid::from_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Looks for ext2, ext3 and ext4 in the first bytes of a device (at least 2 KiB to find any).
pub(crate) fn ext(head: &[u8]) -> Found {
    const MAGIC: u16 = 0xef53;
    let Some(sb) = head.get(1024..2048) else {
        return Found::Nothing;
    };
    if le16(sb, 0x38) != Some(MAGIC) {
        return Found::Nothing;
    }
    ext_fields(sb).unwrap_or(Found::Other("damaged ext superblock"))
}

fn ext_fields(sb: &[u8]) -> Option<Found> {
    const HAS_JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    const SIXTY_FOUR_BIT: u32 = 0x80;
    // What ext3's own code understood: filetype, recover, meta_bg; sparse_super, large_file,
    // btree_dir. Anything beyond needs ext4.
    const EXT3_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x10;
    const EXT3_READ_ONLY: u32 = 0x1 | 0x2 | 0x4;

    let revision = le32(sb, 0x4c)?;
    // Revision 0 has no feature words: what lies there is not initialized.
    let feature = |at| if revision == 0 { Some(0) } else { le32(sb, at) };
    let (compatible, incompatible, read_only) = (feature(0x5c)?, feature(0x60)?, feature(0x64)?);
    if incompatible & JOURNAL_DEVICE != 0 {
        return Some(Found::Other("ext journal device"));
    }
    let log_block = le32(sb, 0x18)?;
    if log_block > 6 {
        return None;
    }
    let block = 1024u32 << log_block;
    let high = match incompatible & SIXTY_FOUR_BIT {
        0 => 0,
        _ => le32(sb, 0x150)?,
    };
    let blocks = u64::from(high) << 32 | u64::from(le32(sb, 0x4)?);
    let size = Bytes(blocks.checked_mul(u64::from(block))?);
    let (per_group, inodes) = (le32(sb, 0x20)?, le32(sb, 0x28)?);
    if blocks == 0 || per_group == 0 || inodes == 0 {
        return None;
    }
    let ext3_features = incompatible & !EXT3_INCOMPATIBLE == 0 && read_only & !EXT3_READ_ONLY == 0;
    let filesystem = match (ext3_features, compatible & HAS_JOURNAL != 0) {
        (true, true) => Filesystem::Ext3,
        (true, false) => return Some(Found::Other("ext2")),
        (false, _) => Filesystem::Ext4,
    };
    Some(Found::Whole(Superblock {
        filesystem,
        uuid: uuid(sb, 0x68)?,
        size,
        block,
    }))
}

/// Further facts of an ext superblock in the first bytes of a device; `None` where [`ext`] finds
/// no whole one.
pub(crate) fn ext_details(head: &[u8]) -> Option<ExtDetails> {
    const ERROR_FS: u16 = 0x2;
    /// `resize2fs` drops a last group that would have fewer blocks for data; so does `mke2fs`.
    const LEAST_DATA_BLOCKS: u64 = 50;
    let Found::Whole(found) = ext(head) else {
        return None;
    };
    let sb = head.get(1024..2048)?;
    let block = u64::from(found.block);
    let per_group = u64::from(le32(sb, 0x20)?);
    let inodes = u64::from(le32(sb, 0x28)?);
    let inode_size = match le32(sb, 0x4c)? {
        0 => 128,
        _ => u64::from(le16(sb, 0x58)?),
    };
    let (descriptor, most_blocks) = match le32(sb, 0x60)? & 0x80 {
        0 => (32, u32::MAX.into()),
        _ => (u64::from(le16(sb, 0xfe)?).max(32), u64::MAX),
    };
    let groups = (found.size.0 / block).div_ceil(per_group);
    let metadata = inodes.checked_mul(inode_size)?.div_ceil(block)
        + groups.checked_mul(descriptor)?.div_ceil(block)
        + u64::from(le16(sb, 0xce)?)
        + 3;
    let blocks = (metadata + LEAST_DATA_BLOCKS).min(per_group);
    let has_errors = le16(sb, 0x3a)? & ERROR_FS != 0;
    Some(ExtDetails {
        // Less than a block beyond is lost to rounding.
        slack: Bytes(blocks.checked_mul(block)? + block - 1),
        has_errors,
        most_blocks,
        resize_was_cut: has_errors && le32(sb, 0x194)? == 0,
    })
}

/// Looks for XFS in the first bytes of a device (at least 512 to find any).
pub(crate) fn xfs(head: &[u8]) -> Found {
    let Some(sb) = head.get(..512) else {
        return Found::Nothing;
    };
    if !sb.starts_with(b"XFSB") {
        return Found::Nothing;
    }
    // `sb_inprogress`: mkfs.xfs sets it first and clears it in its last write.
    if sb[126] != 0 {
        return Found::Other("half-made xfs");
    }
    xfs_fields(sb).unwrap_or(Found::Other("damaged xfs superblock"))
}

fn xfs_fields(sb: &[u8]) -> Option<Found> {
    let block = be32(sb, 4)?;
    let blocks = be64(sb, 8)?;
    let (group_blocks, groups) = (u64::from(be32(sb, 84)?), u64::from(be32(sb, 88)?));
    let sane = (512..=65536).contains(&block)
        && block.is_power_of_two()
        && blocks != 0
        && blocks <= groups.checked_mul(group_blocks)?;
    if !sane {
        return None;
    }
    Some(Found::Whole(Superblock {
        filesystem: Filesystem::Xfs,
        uuid: uuid(sb, 32)?,
        size: Bytes(blocks.checked_mul(u64::from(block))?),
        block,
    }))
}

/// What a Btrfs is to which somebody gave a second device.
pub const SPREAD: &str = "btrfs over several devices";

/// Looks for Btrfs in the first bytes of a device ([`HEAD`] to find any).
pub(crate) fn btrfs(head: &[u8]) -> Found {
    let Some(sb) = head.get(0x10000..0x11000) else {
        return Found::Nothing;
    };
    match &sb[0x40..0x48] {
        b"_BHRfS_M" => btrfs_fields(sb).unwrap_or(Found::Other("damaged btrfs superblock")),
        // `BTRFS_MAGIC_TEMPORARY`: mkfs.btrfs writes the real one last.
        b"!BHRfS_M" => Found::Other("half-made btrfs"),
        _ => Found::Nothing,
    }
}

fn btrfs_fields(sb: &[u8]) -> Option<Found> {
    let (own_place, devices, sector) = (le64(sb, 0x30)?, le64(sb, 0x88)?, le32(sb, 0x90)?);
    // The size of this device is in the device item inside the superblock: `total_bytes` of the
    // superblock itself is the sum over all devices.
    let (total, device, size) = (le64(sb, 0x70)?, le64(sb, 0xc9)?, le64(sb, 0xd1)?);
    let sane = own_place == 0x10000
        && (512..=65536).contains(&sector)
        && sector.is_power_of_two()
        && devices != 0
        && size != 0
        && size <= total;
    if !sane {
        return None;
    }
    if devices > 1 {
        return Some(Found::Other(SPREAD));
    }
    // As `btrfs device add` and `remove` leave it.
    if device != 1 {
        return Some(Found::Other("btrfs that was moved to another device"));
    }
    Some(Found::Whole(Superblock {
        filesystem: Filesystem::Btrfs,
        uuid: uuid(sb, 0x20)?,
        size: Bytes(size),
        block: sector,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: [u8; 16] = *b"0123456789abcdef";

    fn head_with(fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        for (at, bytes) in fields {
            head[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    fn ext_head(blocks: u64, compatible: u32, incompatible: u32, read_only: u32) -> Vec<u8> {
        let low = u32::try_from(blocks & 0xffff_ffff).unwrap();
        let high = u32::try_from(blocks >> 32).unwrap();
        head_with(&[
            (1024 + 0x4, &low.to_le_bytes()),
            (1024 + 0x18, &2u32.to_le_bytes()),
            (1024 + 0x20, &32768u32.to_le_bytes()),
            (1024 + 0x28, &8192u32.to_le_bytes()),
            (1024 + 0x38, &[0x53, 0xef]),
            (1024 + 0x4c, &1u32.to_le_bytes()),
            (1024 + 0x58, &256u16.to_le_bytes()),
            (1024 + 0x5c, &compatible.to_le_bytes()),
            (1024 + 0x60, &incompatible.to_le_bytes()),
            (1024 + 0x64, &read_only.to_le_bytes()),
            (1024 + 0x68, &ID),
            (1024 + 0xfe, &64u16.to_le_bytes()),
            (1024 + 0x150, &high.to_le_bytes()),
        ])
    }

    fn xfs_head(block: u32, blocks: u64) -> Vec<u8> {
        let groups = u32::try_from(blocks.div_ceil(1 << 20)).unwrap();
        head_with(&[
            (0, b"XFSB"),
            (4, &block.to_be_bytes()),
            (8, &blocks.to_be_bytes()),
            (32, &ID),
            (84, &(1u32 << 20).to_be_bytes()),
            (88, &groups.to_be_bytes()),
        ])
    }

    fn btrfs_head(size: u64, devices: u64) -> Vec<u8> {
        head_with(&[
            (0x10020, &ID),
            (0x10030, &0x10000u64.to_le_bytes()),
            (0x10040, b"_BHRfS_M"),
            (0x10070, &size.to_le_bytes()),
            (0x10088, &devices.to_le_bytes()),
            (0x10090, &4096u32.to_le_bytes()),
            (0x100c9, &1u64.to_le_bytes()),
            (0x100d1, &size.to_le_bytes()),
        ])
    }

    #[test]
    fn ext_kinds_are_told_by_their_features() {
        for (name, compatible, incompatible, read_only, expected) in [
            ("plain", 0, 0x2, 0x1, Err("ext2")),
            ("journal", 0x4, 0x2, 0x1, Ok(Filesystem::Ext3)),
            ("needs recovery", 0x4, 0x6, 0x3, Ok(Filesystem::Ext3)),
            ("extents", 0x4, 0x42, 0x1, Ok(Filesystem::Ext4)),
            ("metadata_csum", 0x4, 0x2, 0x401, Ok(Filesystem::Ext4)),
            ("no journal", 0, 0x42, 0x1, Ok(Filesystem::Ext4)),
            ("journal device", 0, 0x8, 0, Err("ext journal device")),
        ] {
            match (
                ext(&ext_head(1000, compatible, incompatible, read_only)),
                expected,
            ) {
                (Found::Whole(found), Ok(filesystem)) => {
                    assert_eq!(found.filesystem, filesystem, "{name}");
                    assert_eq!(found.size, Bytes(1000 * 4096), "{name}");
                }
                (Found::Other(found), Err(kind)) => assert_eq!(found, kind, "{name}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_high_half_of_ext4_block_counts_needs_its_feature() {
        let Found::Whole(wide) = ext(&ext_head(1 << 33, 0x4, 0x42 | 0x80, 0)) else {
            panic!("not recognized");
        };
        assert_eq!(wide.size, Bytes((1 << 33) * 4096));
        assert_eq!(
            ext(&ext_head(1 << 33, 0x4, 0x42, 0)),
            Found::Other("damaged ext superblock")
        );
    }

    #[test]
    fn ext_slack_is_a_groups_metadata_and_fifty_blocks() {
        let details = ext_details(&ext_head(1000, 0x4, 0x42 | 0x80, 0)).unwrap();
        // 8192 inodes of 256 bytes: 512 blocks; one descriptor block; two bitmaps, a superblock.
        assert_eq!(details.slack, Bytes((512 + 1 + 3 + 50) * 4096 + 4095));
        assert!(!details.has_errors);
    }

    #[test]
    fn ext_numbers_blocks_beyond_32_bits_only_with_the_feature() {
        let most = |features| {
            let details = ext_details(&ext_head(1000, 0x4, features, 0)).unwrap();
            details.most_blocks
        };
        assert_eq!(most(0x42 | 0x80), u64::MAX);
        assert_eq!(most(0x42), u64::from(u32::MAX));
    }

    #[test]
    fn an_xfs_in_progress_is_half_made() {
        let mut head = xfs_head(4096, 1000);
        assert!(matches!(xfs(&head), Found::Whole(_)));
        head[126] = 1;
        assert_eq!(xfs(&head), Found::Other("half-made xfs"));
    }

    #[test]
    fn a_btrfs_of_two_devices_or_with_the_temporary_magic_is_not_ours() {
        assert_eq!(btrfs(&btrfs_head(1 << 30, 2)), Found::Other(SPREAD));
        let mut head = btrfs_head(1 << 30, 1);
        head[0x100c9] = 2;
        assert_eq!(
            btrfs(&head),
            Found::Other("btrfs that was moved to another device")
        );
        let mut head = btrfs_head(1 << 30, 1);
        head[0x10040] = b'!';
        assert_eq!(btrfs(&head), Found::Other("half-made btrfs"));
    }

    proptest! {
        #[test]
        fn sizes_are_read_back(blocks in 1u64..1 << 40, log in 9u32..=16) {
            let block = 1u32 << log;
            let size = |found| match found {
                Found::Whole(sb) => Some((sb.size, sb.uuid)),
                _ => None,
            };
            let id = Uuid::from_bytes(ID);
            prop_assert_eq!(
                size(xfs(&xfs_head(block, blocks))),
                Some((Bytes(blocks * u64::from(block)), id))
            );
            prop_assert_eq!(
                size(ext(&ext_head(blocks, 4, 0xc2, 0))),
                Some((Bytes(blocks * 4096), id))
            );
            prop_assert_eq!(
                size(btrfs(&btrfs_head(blocks * 4096, 1))),
                Some((Bytes(blocks * 4096), id))
            );
        }

        /// Arbitrary bytes behind a right magic number: any answer, no panic.
        #[test]
        fn no_bytes_panic(
            mut sb in proptest::collection::vec(any::<u8>(), 0..4200),
            length in 0..=HEAD,
            place in prop::sample::select(vec![0usize, 1024, 0x10000]),
        ) {
            for (at, magic) in [(0, &b"XFSB"[..]), (0x38, &[0x53, 0xef]), (0x40, b"_BHRfS_M")] {
                if let Some(bytes) = sb.get_mut(at..at + magic.len()) {
                    bytes.copy_from_slice(magic);
                }
                let mut head = vec![0; HEAD];
                let end = (place + sb.len()).min(HEAD);
                head[place..end].copy_from_slice(&sb[..end - place]);
                head.truncate(length);
                let _ = (ext(&head), ext_details(&head), xfs(&head), btrfs(&head));
            }
        }
    }
}
