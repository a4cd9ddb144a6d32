//! A group as LVM reports it.

use super::{own::Disks, percent::Percent};
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
    /// How much is taken of what the group has for its own metadata, in which a volume is half a
    /// kilobyte or more of text.
    pub metadata: Percent,
    /// How much that is in all.
    pub metadata_size: Bytes,
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
}

/// What a volume of ours takes of a group's metadata, with a long mark.
const TEXT_OF_A_VOLUME: u64 = 900;

impl View {
    /// How many deleted volumes may be kept: as many as a third of the group's metadata has room for, once it is half
    /// full; `None` before.
    #[must_use]
    pub fn max_kept(&self) -> Option<u64> {
        (self.metadata > Percent::of_hundred(50))
            .then_some(self.metadata_size.0 / TEXT_OF_A_VOLUME / 3)
    }

    /// The volume with this name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&LogicalVolume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_kept_volumes_matters_only_where_metadata_are_half_full() {
        let view = |metadata| View {
            uuid: String::new(),
            tags: Vec::new(),
            extent: Bytes(4 << 20),
            size: Bytes(4 << 40),
            free: Bytes(4 << 40),
            metadata: Percent::of_hundred(metadata),
            metadata_size: Bytes(512 << 10),
            disks: Disks::default(),
            volumes: Vec::new(),
        };
        assert_eq!(view(1).max_kept(), None);
        assert_eq!(view(50).max_kept(), None);
        assert_eq!(view(51).max_kept(), Some(194));
    }
}
