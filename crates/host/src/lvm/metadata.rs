//! The room that a group has for its own metadata. They are text, and the room cannot be made larger.

use super::{
    GroupOrThinPool, LogicalVolume, Percent, Rules, View,
    group_or_thin_pool::REPORT,
    report::{FreeReport, reports},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// What a volume of ours takes, with a long mark, and each segment of it but the first.
const TEXT_OF_A_VOLUME: u64 = 900;
const TEXT_OF_A_SEGMENT: u64 = 150;

/// A volume in more pieces grows by at least this part of its size.
const MANY_SEGMENTS: u64 = 16;
const LEAST_GROWTH: u64 = 8;

/// Less full, metadata have room for any single change: a free piece of a disk lies between pieces that are taken, so no
/// volume can take more of them than the text has segments.
const ENOUGH: Percent = Percent::of_hundred(40);

/// The room for a group's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// All of it.
    pub size: Bytes,
    /// What is left.
    pub free: Bytes,
}

/// How full metadata may be when a volume is made, and when one grows.
struct Fullest {
    to_make: Percent,
    to_grow: Percent,
}

/// A volume's mark becomes longer when it is formatted and when it grows. In a group without room for that it could be
/// neither, and with no byte left not even be deleted.
const FULLEST: Fullest = Fullest {
    to_make: Percent::of_hundred(87),
    to_grow: Percent::of_hundred(95),
};

/// The mark of a volume that was deleted and is kept is longer by a sixth of all that a volume takes.
const FULLEST_WHERE_KEPT: Fullest = Fullest {
    to_make: Percent::of_hundred(75),
    to_grow: Percent::of_hundred(82),
};

impl Metadata {
    /// How full it is.
    #[must_use]
    pub fn taken(&self) -> Percent {
        self.taken_with(Bytes(0))
    }

    fn taken_with(&self, more: Bytes) -> Percent {
        Percent::taken(self.free.saturating_sub(more).0, self.size.0)
    }

    /// How much of it volumes may take that were deleted and are kept: a third once it is half full; `None` before.
    #[must_use]
    pub fn max_kept(&self) -> Option<Bytes> {
        (self.taken() > Percent::of_hundred(50)).then_some(Bytes(self.size.0 / 3))
    }

    fn expect(&self, more: Bytes, fullest: Percent, rest: &str) -> Result<()> {
        if self.taken_with(more) <= fullest {
            return Ok(());
        }
        let with = match more.0 {
            0 => String::new(),
            _ => format!(
                " and would be {} full, as what is free of its disks is in small pieces",
                self.taken_with(more)
            ),
        };
        Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "the volume group's own metadata is {} full{with}, and the rest is {rest}; make another group with `vgcreate --metadatasize 16m`, or delete volumes",
                self.taken()
            ),
        ))
    }
}

impl LogicalVolume {
    /// What it takes of the group's metadata, about.
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        let more = self.segments.saturating_sub(1);
        Bytes(TEXT_OF_A_VOLUME.saturating_add(more.saturating_mul(TEXT_OF_A_SEGMENT)))
    }

    /// What it gets, if there is room, when it grows to `to`. Volumes that grow in turns by little get a segment each
    /// time, so one in many gets more.
    #[must_use]
    pub fn least_growth(&self, to: Bytes) -> Bytes {
        match self.segments > MANY_SEGMENTS {
            true => to.max(Bytes(
                self.size.0.saturating_add(self.size.0 / LEAST_GROWTH),
            )),
            false => to,
        }
    }
}

/// Checks that a group's metadata has room for another volume.
///
/// # Errors
/// [`ErrorKind::Exhausted`] where there is none.
pub fn expect_metadata_to_make(view: &View, rules: &Rules) -> Result<()> {
    let fullest = rules.fullest().to_make;
    view.metadata
        .expect(Bytes(0), fullest, "for the volumes it has")
}

/// Checks that a group's metadata has room for a volume to grow.
///
/// # Errors
/// [`ErrorKind::Exhausted`] where there is none.
pub fn expect_metadata_to_grow(view: &View, rules: &Rules) -> Result<()> {
    expect_metadata_for(Bytes(0), view, rules)
}

fn expect_metadata_for(segments: Bytes, view: &View, rules: &Rules) -> Result<()> {
    let rest = "for volumes to be formatted and deleted";
    view.metadata
        .expect(segments, rules.fullest().to_grow, rest)
}

impl Rules {
    fn fullest(&self) -> Fullest {
        match self.keeps {
            true => FULLEST_WHERE_KEPT,
            false => FULLEST,
        }
    }
}

impl GroupOrThinPool {
    /// Checks that a group's metadata has room for the segments that a volume gets when it grows by `more`.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where there is none; otherwise as for [`GroupOrThinPool::look`].
    pub fn expect_metadata_for_segments(
        &self,
        more: Bytes,
        view: &View,
        rules: &Rules,
    ) -> Result<()> {
        if self.thin_pool.is_some() || view.metadata.taken() <= ENOUGH {
            return Ok(());
        }
        let extents = more.0.div_ceil(view.extent.0.max(1));
        let segments = segments_of(&self.free_pieces()?, extents, rules.layout.stripes);
        let text = segments.saturating_mul(TEXT_OF_A_SEGMENT);
        expect_metadata_for(Bytes(text), view, rules)
    }

    /// What is free of each disk that may be used: pieces of so many extents.
    fn free_pieces(&self) -> Result<BTreeMap<String, Vec<u64>>> {
        let mut words = vec!["fullreport"];
        words.extend(REPORT);
        words.extend(FreeReport::words());
        words.push(&self.group);
        let reports = reports::<FreeReport>(&self.printed(&words)?)?;
        let mut pieces = BTreeMap::<_, Vec<_>>::new();
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
fn segments_of(free: &BTreeMap<String, Vec<u64>>, extents: u64, stripes: u32) -> u64 {
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

    fn metadata(taken: u64) -> Metadata {
        Metadata {
            size: Bytes(512 << 10),
            free: Bytes((512 << 10) * (100 - taken) / 100),
        }
    }

    #[test]
    fn what_kept_volumes_take_of_the_metadata_matters_only_where_they_are_half_full() {
        assert_eq!(metadata(1).max_kept(), None);
        assert_eq!(metadata(49).max_kept(), None);
        assert_eq!(metadata(52).max_kept(), Some(Bytes((512 << 10) / 3)));
    }

    #[test]
    fn a_change_over_many_pieces_says_what_the_metadata_would_be() {
        let expect = |more| metadata(60).expect(Bytes(more), Percent::of_hundred(90), "for others");
        expect(150).unwrap();
        let error = expect(1_200 * TEXT_OF_A_SEGMENT).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("60.01 % full and would be 94.34 % full"),
            "{said}"
        );
    }

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
        assert_eq!(volume(16).least_growth(Bytes(804)), Bytes(804));
        assert_eq!(volume(17).least_growth(Bytes(804)), Bytes(900));
        assert_eq!(volume(17).least_growth(Bytes(1_000)), Bytes(1_000));
        assert_eq!(volume(1).metadata(), Bytes(900));
        assert_eq!(volume(3).metadata(), Bytes(1_200));
    }
}
