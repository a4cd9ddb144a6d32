//! A group as LVM reports it.

use super::{metadata::Metadata, own::Disks};
use flexvol_sdk::Bytes;

/// A group, or a thin pool in it, and the logical volumes that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The group's UUID, without dashes.
    pub uuid: String,
    /// The tags of the group, or of the thin pool.
    pub tags: Vec<String>,
    /// Sizes are multiples of this.
    pub extent: Bytes,
    /// All of the group, or of the thin pool.
    pub size: Bytes,
    /// What no logical volume of the group has.
    pub free: Bytes,
    /// The room for the group's own metadata.
    pub metadata: Metadata,
    /// The disks of the group.
    pub disks: Disks,
    /// The volumes of this place, as far as they were asked for.
    pub volumes: Vec<LogicalVolume>,
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalVolume {
    /// Its name in the group.
    pub name: String,
    /// What the kernel calls its device ([`super::mapping::Mapping::uuid`]).
    pub uuid: String,
    /// Its size; of a thin volume, what is promised.
    pub size: Bytes,
    /// Its tags.
    pub tags: Vec<String>,
    /// It is neither a pool of others nor the origin of a snapshot that fills up when it is
    /// written, nor such a snapshot, nor the origin of volumes in a thin pool it is not in. With
    /// any other, `lvremove` removes those too.
    pub is_plain: bool,
    /// In how many pieces it lies on disks; a thin volume is one.
    pub segments: u64,
}

impl View {
    /// The volume with this name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&LogicalVolume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }
}
