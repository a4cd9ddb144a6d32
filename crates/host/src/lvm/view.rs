//! A group as LVM reports it.

use super::{metadata::Metadata, own::Disks};
use flexvol_sdk::Bytes;

/// A group, or a thin pool in it, and the selected logical volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The group's UUID, without dashes.
    pub uuid: String,
    /// Tags of the group, or of the thin pool.
    pub tags: Vec<String>,
    /// Extent size: sizes of volumes are multiples of it.
    pub extent: Bytes,
    /// Total size of the group, or of the thin pool.
    pub size: Bytes,
    /// Free space of the group.
    pub free: Bytes,
    /// Space of the group's metadata area.
    pub metadata: Metadata,
    /// The disks of the group.
    pub disks: Disks,
    /// Free space of each disk on which LVM may allocate.
    pub(super) free_of_disks: Vec<u64>,
    /// The selected volumes.
    pub volumes: Vec<LogicalVolume>,
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalVolume {
    /// Name in the group.
    pub name: String,
    /// Device-mapper UUID of its device ([`super::mapping::Mapping::uuid`]).
    pub uuid: String,
    /// Size; for a thin volume, the promised size.
    pub size: Bytes,
    /// Tags of the volume.
    pub tags: Vec<String>,
    /// Whether `lvremove` would remove this volume alone. False for a pool, a thick snapshot, the origin of one, and
    /// the external origin of thin volumes.
    pub is_removed_alone: bool,
    /// Number of segments on disks; 1 for a thin volume.
    pub segments: u64,
}

/// Bytes that a volume takes in its group's metadata, with a long mark; and each segment after the first.
const TEXT_OF_A_VOLUME: u64 = 900;
pub(super) const TEXT_OF_A_SEGMENT: u64 = 150;

/// A volume with more segments grows by at least 1/`LEAST_GROWTH` of its size.
const MANY_SEGMENTS: u64 = 16;
const LEAST_GROWTH: u64 = 8;

impl LogicalVolume {
    /// Returns the approximate number of bytes that the volume takes in the group's metadata.
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        let more = self.segments.saturating_sub(1);
        Bytes(TEXT_OF_A_VOLUME.saturating_add(more.saturating_mul(TEXT_OF_A_SEGMENT)))
    }

    /// Returns the size to grow to when `to` is asked for, if there is room. Volumes that grow alternately by little
    /// get a segment each time, so a volume with many segments grows by more, but not beyond `largest`.
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
    /// Returns the volume with this name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&LogicalVolume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// Replaces a tag of a volume, as LVM did in the group's metadata.
    pub fn retag(&mut self, name: &str, old: Option<&str>, new: &str) {
        let mut volumes = self.volumes.iter_mut();
        if let Some(volume) = volumes.find(|volume| volume.name == name) {
            volume.tags.retain(|tag| Some(tag.as_str()) != old);
            volume.tags.push(new.to_owned());
        }
    }

    /// Returns the space that volumes over `stripes` disks may still take of the group.
    #[must_use]
    pub fn room(&self, stripes: u32) -> Bytes {
        Bytes(spread(self.free_of_disks.clone(), stripes))
    }
}

/// Returns the space that a volume over `stripes` disks can have, given the free space of each disk: the disks with the
/// most free space contribute equal amounts, round by round (`_find_some_parallel_space` in LVM's
/// lib/metadata/lv_manip.c).
fn spread(mut free: Vec<u64>, stripes: u32) -> u64 {
    let Ok(stripes) = usize::try_from(stripes.max(1)) else {
        return 0;
    };
    if stripes == 1 {
        return free.iter().fold(0, |sum, disk| sum.saturating_add(*disk));
    }
    let Some(others) = free.len().checked_sub(stripes) else {
        return 0;
    };
    let mut room: u64 = 0;
    loop {
        free.sort_unstable();
        let emptiest = &mut free[others..];
        let least = emptiest[0];
        if least == 0 {
            return room;
        }
        for disk in emptiest {
            *disk -= least;
        }
        room = room.saturating_add(least.saturating_mul(stripes as u64));
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
            is_removed_alone: true,
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

    #[test]
    fn a_striped_volume_takes_the_same_from_each_disk() {
        for (free, stripes, room) in [
            (vec![], 1, 0),
            (vec![5, 7], 1, 12),
            (vec![5, 7], 2, 10),
            (vec![5], 2, 0),
            (vec![10, 6, 6], 2, 20),
            (vec![10, 6, 6], 3, 18),
            (vec![4, 4, 4, 4], 2, 16),
        ] {
            assert_eq!(
                spread(free.clone(), stripes),
                room,
                "{free:?} over {stripes}"
            );
        }
    }
}
