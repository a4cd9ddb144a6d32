//! The superblock of XFS: `struct xfs_dsb` in `fs/xfs/libxfs/xfs_format.h`.

use super::{Found, Superblock, be32, be64, uuid};
use flexvol_sdk::{Bytes, Filesystem};

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
