//! The superblocks of ext2, ext3 and ext4: `struct ext4_super_block` in `fs/ext4/ext4.h`.

use super::{Found, Superblock, le16, le32, uuid};
use flexvol_sdk::{Bytes, Filesystem};

/// Details that growth and checks of an ext3 or ext4 need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtDetails {
    /// Maximum size of the unused rest of a device. The kernel and `resize2fs` leave out a last block group that would
    /// have only its own metadata and fewer than 50 blocks of data.
    pub slack: Bytes,
    /// `s_state` has `EXT4_ERROR_FS`: the kernel found damage, or `resize2fs` was interrupted. The kernel does not grow
    /// the file system then.
    pub has_errors: bool,
    /// Maximum number of blocks: 2^32 - 1 without the feature `64bit`.
    pub most_blocks: u64,
    /// Whether `resize2fs` was interrupted: `has_errors` is set, the kernel has counted no error (`s_error_count`), and
    /// there is no journal to replay, with which `resize2fs` would not have begun.
    pub resize_was_cut: bool,
    /// Maximum number of blocks without moving data. Beyond that, `resize2fs` must make room for more group
    /// descriptors.
    pub most_in_place: u64,
    /// Block of the superblock's first copy: the first one of the second group, if there is one.
    pub first_copy: Option<u64>,
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
    // Features that the ext3 driver supported: filetype, recover, meta_bg; sparse_super, large_file, btree_dir. Any
    // other one needs ext4.
    const EXT3_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x10;
    const EXT3_READ_ONLY: u32 = 0x1 | 0x2 | 0x4;

    let revision = le32(sb, 0x4c)?;
    // Revision 0 has no feature words: these bytes are not initialized.
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

/// Returns details of the ext superblock in the first bytes of a device; `None` if [`ext`] finds no complete one.
pub(crate) fn ext_details(head: &[u8]) -> Option<ExtDetails> {
    const ERROR_FS: u16 = 0x2;
    /// `EXT4_FEATURE_INCOMPAT_RECOVER`.
    const RECOVER: u32 = 0x4;
    /// `EXT4_FEATURE_INCOMPAT_META_BG`.
    const META_BG: u32 = 0x10;
    /// `resize2fs` and `mke2fs` drop a last group with fewer blocks for data.
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
    // With `meta_bg`, descriptors of later groups are in those groups.
    let most_in_place = match le32(sb, 0x60)? & META_BG {
        0 => {
            let in_a_block = (block / descriptor).max(1);
            let described = groups.div_ceil(in_a_block) + u64::from(le16(sb, 0xce)?);
            described.saturating_mul(in_a_block * per_group)
        }
        _ => u64::MAX,
    };
    let has_errors = le16(sb, 0x3a)? & ERROR_FS != 0;
    let first_copy = u64::from(le32(sb, 0x14)?) + per_group;
    let is_replayed = le32(sb, 0x60)? & RECOVER == 0;
    Some(ExtDetails {
        // Rounding loses less than one block more.
        slack: Bytes(blocks.checked_mul(block)? + block - 1),
        has_errors,
        most_blocks,
        resize_was_cut: has_errors && is_replayed && le32(sb, 0x194)? == 0,
        most_in_place,
        first_copy: (first_copy * block < found.size.0).then_some(first_copy),
    })
}
