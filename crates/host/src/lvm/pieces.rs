//! Free pieces of a group's disks.

use super::{
    group_or_thin_pool::{GroupOrThinPool, REPORT},
    report::{NO_DISKS, NO_GROUP, NO_SEGMENTS, NO_VOLUMES},
    rows::{Reports, row},
};
use flexvol_sdk::Result;

row! {
    /// One piece of a disk.
    struct FreeRow {
        pv_allocatable: String,
        pvseg_size: u64,
    }
}

impl FreeRow {
    /// Arguments of the report about free pieces of a group's disks.
    fn words() -> Vec<&'static str> {
        let mut words = vec!["--configreport", "pvseg"];
        words.extend(["-o", FreeRow::FIELDS]);
        words.extend(["-S", "lv_name=\"\""]);
        for nothing in [NO_GROUP, NO_VOLUMES, NO_DISKS, NO_SEGMENTS] {
            words.extend(nothing);
        }
        words
    }
}

impl GroupOrThinPool {
    /// Returns the free pieces of allocatable disks, in extents.
    ///
    /// # Errors
    /// As for [`GroupOrThinPool::look`].
    pub(super) fn free_pieces(&self) -> Result<Vec<u64>> {
        let mut words = vec!["fullreport"];
        words.extend(REPORT);
        words.extend(FreeRow::words());
        words.push(&self.group);
        let rows: Vec<FreeRow> = Reports::parse(&self.printed(&words)?)?.take("pvseg")?;
        let usable = rows
            .into_iter()
            .filter(|row| !row.pv_allocatable.is_empty());
        Ok(usable.map(|row| row.pvseg_size).collect())
    }
}

/// Returns the maximum number of segments of a volume with `extents` of the free pieces. Which pieces LVM takes depends
/// on the disks that the volume is on (`_allocate` in its lib/metadata/lv_manip.c); the worst case takes the smallest
/// first.
pub(super) fn max_segments(mut free: Vec<u64>, extents: u64) -> u64 {
    free.sort_unstable();
    let mut missing = extents;
    let mut taken = 0;
    for piece in free {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(piece);
        taken += 1;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_gets_no_more_segments_than_free_pieces_have_its_extents() {
        for (free, extents, segments) in [
            (vec![], 1, 0),
            (vec![500], 7, 1),
            (vec![500, 1, 1, 1], 3, 3),
            (vec![500, 1, 1, 1], 4, 4),
            (vec![500, 1, 1, 1], 502, 4),
            (vec![3, 3, 3], 4, 2),
            (vec![3, 3, 3], 9, 3),
            (vec![3], 0, 0),
        ] {
            let found = max_segments(free.clone(), extents);
            assert_eq!(found, segments, "{extents} of {free:?}");
        }
    }
}
