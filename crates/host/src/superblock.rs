//! The superblocks of ext3, ext4, XFS and Btrfs, read from bytes.
//!
//! Only what the driver decides by is read: kind, UUID, and the size the file system spans.
//! Checksums are not verified: the kernel does that when it mounts, and a superblock with a bad
//! one must count as data anyway.

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
