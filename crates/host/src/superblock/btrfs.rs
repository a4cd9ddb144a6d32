//! The superblock of Btrfs: `struct btrfs_super_block` in `include/uapi/linux/btrfs_tree.h`.

use super::{Found, Superblock, le32, le64, uuid};
use flexvol_sdk::{Bytes, Filesystem};

/// Description of a Btrfs with more than one device.
pub const SPREAD: &str = "btrfs over several devices";

/// Looks for Btrfs in the first bytes of a device ([`HEAD`](super::HEAD) to find any).
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
    // `btrfs device add` followed by `remove` changes the device id.
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
