//! The superblocks of ext3, ext4, XFS and Btrfs, read from bytes.
//!
//! Only the fields that the driver needs are read: type, UUID, and the size of the file system. Checksums are not
//! verified: the kernel does that at mount time, and a superblock with a bad checksum must count as data anyway.

mod btrfs;
mod demand;
mod ext;
#[cfg(test)]
mod tests;
mod xfs;

pub use btrfs::SPREAD;
pub(crate) use btrfs::btrfs;
pub use demand::Demand;
pub(crate) use demand::demand;
pub(crate) use ext::{ExtDetails, ext, ext_details};
pub(crate) use xfs::xfs;

use crate::uuid::Uuid;
use flexvol_sdk::{Bytes, Filesystem};

/// Length of the part of a device that contains every type's superblock: that of Btrfs ends at 68 KiB.
pub const HEAD: usize = 68 << 10;

/// A complete superblock of a type that volumes may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Superblock {
    /// Type of the file system.
    pub filesystem: Filesystem,
    /// UUID; for Btrfs the fsid.
    pub uuid: Uuid,
    /// Size of the file system in bytes, which may be more than the device has.
    pub size: Bytes,
    /// The unit of allocation in bytes (Btrfs: the sector size).
    pub block: u32,
}

/// Content of a superblock's location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Another magic number.
    Nothing,
    /// A complete superblock.
    Whole(Superblock),
    /// The right magic number, but not a file system that a volume may have; the text describes it.
    Other(&'static str),
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn uuid(bytes: &[u8], at: usize) -> Option<Uuid> {
    Some(Uuid::from_bytes(*bytes.get(at..)?.first_chunk()?))
}
