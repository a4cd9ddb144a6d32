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

/// What a volume of ours takes of a group's metadata, with a long mark, and each segment of it but the first.
const TEXT_OF_A_VOLUME: u64 = 900;
pub(super) const TEXT_OF_A_SEGMENT: u64 = 150;

/// A volume in more pieces grows by at least this part of its size.
const MANY_SEGMENTS: u64 = 16;
const LEAST_GROWTH: u64 = 8;

impl LogicalVolume {
    /// What it takes of the group's metadata, about.
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        let more = self.segments.saturating_sub(1);
        Bytes(TEXT_OF_A_VOLUME.saturating_add(more.saturating_mul(TEXT_OF_A_SEGMENT)))
    }

    /// What it gets, if there is room, when it grows to `to`, and no volume is to be larger than `largest`. Volumes that
    /// grow in turns by little get a segment each time, so one in many gets more.
    #[must_use]
    pub fn least_growth(&self, to: Bytes, largest: Option<Bytes>) -> Bytes {
        let more = Bytes(self.size.0.saturating_add(self.size.0 / LEAST_GROWTH));
        match self.segments > MANY_SEGMENTS && largest.is_none_or(|largest| more <= largest) {
            true => to.max(more),
            false => to,
        }
    }
}

impl View {
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
    fn a_volume_in_many_pieces_grows_by_more() {
        let volume = |segments| LogicalVolume {
            name: String::new(),
            uuid: String::new(),
            size: Bytes(800),
            tags: Vec::new(),
            is_plain: true,
            segments,
        };
        let grows = |segments, to, largest: Option<u64>| {
            volume(segments)
                .least_growth(Bytes(to), largest.map(Bytes))
                .0
        };
        assert_eq!(grows(16, 804, None), 804);
        assert_eq!(grows(17, 804, None), 900);
        assert_eq!(grows(17, 804, Some(900)), 900);
        assert_eq!(grows(17, 804, Some(899)), 804);
        assert_eq!(grows(17, 1_000, None), 1_000);
        assert_eq!(volume(1).metadata(), Bytes(900));
        assert_eq!(volume(3).metadata(), Bytes(1_200));
    }
}
