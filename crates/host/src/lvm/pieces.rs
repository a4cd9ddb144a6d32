//! The pieces of a group's disks that no volume has.

use super::{
    group_or_thin_pool::{GroupOrThinPool, REPORT},
    report::{NO_DISKS, NO_GROUP, NO_SEGMENTS, NO_VOLUMES, number, reports},
};
use flexvol_sdk::Result;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Pieces of so many extents, of each disk.
pub(super) type Pieces = BTreeMap<String, Vec<u64>>;

/// What no logical volume has of the disks of a group.
#[derive(Debug, Default, Deserialize)]
struct FreeReport {
    #[serde(default)]
    pvseg: Vec<FreeRow>,
}

/// A piece of a disk.
#[derive(Debug, Deserialize)]
struct FreeRow {
    pv_name: String,
    pv_allocatable: String,
    #[serde(deserialize_with = "number")]
    pvseg_size: u64,
}

impl FreeReport {
    /// What is asked for.
    fn words() -> Vec<&'static str> {
        let mut words = vec!["--configreport", "pvseg"];
        words.extend(["-o", "pv_name,pv_allocatable,pvseg_size"]);
        words.extend(["-S", "lv_name=\"\""]);
        for nothing in [NO_GROUP, NO_VOLUMES, NO_DISKS, NO_SEGMENTS] {
            words.extend(nothing);
        }
        words
    }
}

impl GroupOrThinPool {
    /// What is free of each disk that may be used.
    ///
    /// # Errors
    /// As for [`GroupOrThinPool::look`].
    pub(super) fn free_pieces(&self) -> Result<Pieces> {
        let mut words = vec!["fullreport"];
        words.extend(REPORT);
        words.extend(FreeReport::words());
        words.push(&self.group);
        let reports = reports::<FreeReport>(&self.printed(&words)?)?;
        let mut pieces = Pieces::new();
        let rows = reports.into_iter().flat_map(|report| report.pvseg);
        for row in rows.filter(|row| !row.pv_allocatable.is_empty()) {
            pieces.entry(row.pv_name).or_default().push(row.pvseg_size);
        }
        Ok(pieces)
    }
}

/// How many segments a volume gets at most with so many extents of what is free. LVM takes the largest pieces first: of
/// the disks that the volume is on, where these have enough, or of all (`_find_some_parallel_space` in its
/// lib/metadata/lv_manip.c).
pub(super) fn segments_of(free: &Pieces, extents: u64, stripes: u32) -> u64 {
    let each = extents.div_ceil(stripes.max(1).into());
    let mut on_one: Vec<u64> = free
        .values()
        .filter(|pieces| pieces.iter().sum::<u64>() >= each)
        .map(|pieces| largest_first(pieces.clone(), each))
        .collect();
    on_one.sort_unstable_by(|a, b| b.cmp(a));
    let on_disks = on_one.iter().take(stripes.max(1) as usize).sum::<u64>();
    let all = free.values().flatten().copied().collect();
    on_disks.max(largest_first(all, extents))
}

/// How many pieces are taken until they have so many extents.
fn largest_first(mut pieces: Vec<u64>, extents: u64) -> u64 {
    pieces.sort_unstable_by(|a, b| b.cmp(a));
    let mut missing = extents;
    let mut taken = 0;
    for piece in pieces {
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
    fn a_volume_takes_the_largest_pieces_first() {
        for (disks, extents, stripes, segments) in [
            (vec![vec![]], 1, 1, 0),
            (vec![vec![1, 1, 1, 500]], 7, 1, 1),
            (vec![vec![1, 1, 1, 500]], 502, 1, 3),
            (vec![vec![1, 2, 3]], 6, 1, 3),
            // On the disk that it is on.
            (vec![vec![500], vec![1, 1, 1, 1]], 4, 1, 4),
            // That one has not enough.
            (vec![vec![500], vec![1, 1, 1, 1]], 5, 1, 1),
            (vec![vec![500], vec![2, 2, 2, 2]], 8, 2, 3),
        ] {
            let free = disks.iter().cloned().enumerate();
            let free = free.map(|(at, pieces)| (at.to_string(), pieces)).collect();
            let found = segments_of(&free, extents, stripes);
            assert_eq!(found, segments, "{extents} of {disks:?} over {stripes}");
        }
    }
}
