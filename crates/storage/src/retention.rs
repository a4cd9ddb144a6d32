//! Retention of deleted volumes: how long they are kept, and which ones are removed first if they take too much
//! space.
//!
//! The retention time is written into the mark at the deletion, so that a changed or lost configuration never
//! shortens it. It is counted from time that certainly passed, not from dates: clocks begin in 1970, are set
//! and jump. Time that was not seen to pass, such as while the node was off, prolongs it.

use flexvol_host::{
    Uuid, VolumeId,
    clock::{Moment, UnixTime},
};
use flexvol_sdk::Bytes;
use std::{cmp::Reverse, collections::HashMap, fmt, time::Duration};

/// Most time that goes uncounted if the node restarts; a hundredth of the retention time if that is less.
const MAX_UNNOTED: Duration = Duration::from_secs(6 * 3600);

/// The deletion of a volume that is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// The date by the node's clock, for users; nothing depends on it.
    pub at: UnixTime,
    /// How long the volume is kept, in whole seconds; `None` if the deleting driver recorded nothing.
    pub keep: Option<Duration>,
    /// How long it has been kept; `None` if counting has not begun.
    pub kept: Option<CountedTime>,
}

/// The time for which a volume has certainly been kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CountedTime {
    /// The counted time, in whole seconds.
    pub time: Duration,
    /// The moment up to which it was counted.
    pub until: Moment,
}

impl Deletion {
    /// Makes a deletion at `now` with this retention time.
    #[must_use]
    pub fn new(now: &Moment, keep: Duration) -> Deletion {
        Deletion {
            at: now.unix,
            keep: Some(keep),
            kept: Some(CountedTime::nothing_until(now)),
        }
    }

    /// Returns the deletion with the time counted up to `now`.
    #[must_use]
    pub fn counted(&self, now: &Moment) -> Deletion {
        let kept = self.kept.unwrap_or_else(|| CountedTime::nothing_until(now));
        Deletion {
            kept: Some(CountedTime {
                time: kept.time.saturating_add(kept.until.passed_until(now)),
                until: *now,
            }),
            ..*self
        }
    }

    /// Whether enough time was counted since `noted` to record it again. A record writes to the storage; time
    /// that is not recorded is lost when the node restarts.
    pub(crate) fn is_due(&self, noted: &Deletion) -> bool {
        let (Some(now), Some(before)) = (self.kept, noted.kept) else {
            return true;
        };
        let most = self
            .keep
            .map_or(MAX_UNNOTED, |keep| MAX_UNNOTED.min(keep / 100));
        now.until.boot != before.until.boot || now.time.saturating_sub(before.time) >= most
    }

    /// Returns the retention time if the pool's present setting is `now`: the longer of both; `None` if both
    /// are unknown.
    #[must_use]
    pub fn retention(&self, now: Option<Duration>) -> Option<Duration> {
        self.keep.max(now)
    }

    /// Whether the retention time is over; `None` if it is unknown.
    pub(crate) fn has_expired(&self, now: Option<Duration>) -> Option<bool> {
        let time = self.kept.map_or(Duration::ZERO, |kept| kept.time);
        Some(time >= self.retention(now)?)
    }
}

/// A deleted and kept volume, with the space that it takes.
#[derive(Clone, Debug)]
pub(crate) struct KeptVolume {
    pub(crate) id: VolumeId,
    /// The namespace of its claim.
    pub(crate) namespace: Option<String>,
    pub(crate) size: Bytes,
    /// The size of what its pool stores for it in addition to its data.
    pub(crate) metadata: Bytes,
    pub(crate) deletion: Deletion,
}

/// Limits on the space that all kept volumes of a pool take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptLimits {
    pub(crate) size: Bytes,
    /// The limit on what the pool stores in addition to their data; `None` if the pool has enough space.
    pub(crate) metadata: Option<Bytes>,
}

/// Returns the volume to remove first so that the kept volumes fit `limits`; `None` if they do. A volume that
/// exceeds it alone goes first, before it costs others anything. Next comes the one kept longest in the
/// namespace that takes most, so that a tenant who deletes much cannot end the retention of others.
pub(crate) fn next_to_purge(
    kept: &[KeptVolume],
    limits: KeptLimits,
    now: &Moment,
) -> Option<VolumeId> {
    let sum = |of: fn(&KeptVolume) -> Bytes| kept.iter().map(of).fold(Bytes(0), add);
    let is_too_large = sum(|it| it.size) > limits.size;
    if !is_too_large
        && limits
            .metadata
            .is_none_or(|most| sum(|it| it.metadata) <= most)
    {
        return None;
    }
    let mut taken_by = HashMap::<_, Bytes>::new();
    for it in kept {
        let taken = taken_by.entry(&it.namespace).or_insert(Bytes(0));
        *taken = add(*taken, if is_too_large { it.size } else { it.metadata });
    }
    let first = kept.iter().max_by_key(|it| {
        let counted = it.deletion.counted(now).kept;
        let time = counted.map_or(Duration::ZERO, |kept| kept.time);
        (
            is_too_large && it.size > limits.size,
            taken_by[&it.namespace],
            time,
            Reverse(it.deletion.at),
            it.id,
        )
    });
    first.map(|it| it.id)
}

fn add(sum: Bytes, more: Bytes) -> Bytes {
    Bytes(sum.0.saturating_add(more.0))
}

impl CountedTime {
    fn nothing_until(now: &Moment) -> CountedTime {
        CountedTime {
            time: Duration::ZERO,
            until: *now,
        }
    }

    /// Parses `SECONDS/UNIX/BOOT/UPTIME`.
    pub(crate) fn decode(text: &str) -> Option<CountedTime> {
        let mut parts = text.split('/');
        let kept = CountedTime {
            time: Duration::from_secs(parts.next()?.parse().ok()?),
            until: Moment {
                unix: UnixTime(parts.next()?.parse().ok()?),
                boot: Uuid::parse(parts.next()?).ok()?,
                uptime: parts.next()?.parse().ok()?,
            },
        };
        parts.next().is_none().then_some(kept)
    }
}

impl fmt::Display for CountedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { unix, boot, uptime } = self.until;
        write!(f, "{}/{}/{boot}/{uptime}", self.time.as_secs(), unix.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn moment(unix: u64, boot: u8, uptime: u64) -> Moment {
        Moment {
            unix: UnixTime(unix),
            boot: Uuid::from_bytes([boot; 16]),
            uptime,
        }
    }

    #[test]
    fn a_wrong_clock_ends_no_time_early() {
        let day = Some(DAY);
        for (deleted, jumped) in [(0, 1_700_000_000), (1_700_000_000, u64::MAX)] {
            let deletion = Deletion::new(&moment(deleted, 1, 100), DAY);
            let counted = deletion.counted(&moment(jumped, 1, 200));
            assert_eq!(counted.has_expired(day), Some(false));
            let counted = counted.counted(&moment(jumped, 2, 300));
            assert_eq!(counted.has_expired(day), Some(false));
        }
    }

    #[test]
    fn time_is_counted_from_start_to_start() {
        let mut deletion = Deletion::new(&moment(0, 0, 0), DAY);
        for start in 1..=24 {
            assert_eq!(deletion.has_expired(None), Some(false));
            let unix = u64::from(start) * 7_200;
            deletion = deletion.counted(&moment(unix, start, 3_600));
        }
        assert_eq!(deletion.has_expired(None), Some(true));
    }

    #[test]
    fn a_count_is_noted_after_a_hundredth_of_the_time_and_after_each_start() {
        let noted = Deletion::new(&moment(0, 1, 100), DAY);
        let is_due = |boot, uptime| noted.counted(&moment(9_000, boot, uptime)).is_due(&noted);
        assert!(!is_due(1, 100) && !is_due(1, 963) && is_due(1, 964));
        assert!(is_due(2, 10));
        let long = Deletion::new(&moment(0, 1, 0), DAY * 365);
        let is_due = |uptime| long.counted(&moment(0, 1, uptime)).is_due(&long);
        assert!(!is_due(6 * 3600 - 1) && is_due(6 * 3600));
        let uncounted = Deletion {
            kept: None,
            ..noted
        };
        assert!(uncounted.counted(&moment(0, 1, 100)).is_due(&uncounted));
    }

    fn size(most: u64) -> KeptLimits {
        KeptLimits {
            size: Bytes(most),
            metadata: None,
        }
    }

    /// Returns the order of removal of volumes, each given as namespace, size and how long it has been kept.
    fn order(kept: &[(&str, u64, u64)], limits: KeptLimits) -> Vec<usize> {
        let now = moment(0, 1, 1_000);
        let id = |at: usize| VolumeId::parse(&format!("{at:032x}")).unwrap();
        let volume = |(at, (namespace, size, time)): (usize, &(&str, u64, u64))| KeptVolume {
            id: id(at),
            namespace: Some((*namespace).to_owned()),
            size: Bytes(*size),
            // A volume of size 2 counts as fragmented, with much metadata.
            metadata: Bytes(if *size == 2 { 9 } else { 1 }),
            deletion: Deletion::new(&moment(0, 1, 1_000 - time), DAY),
        };
        let mut left: Vec<KeptVolume> = kept.iter().enumerate().map(volume).collect();
        let mut gone = Vec::new();
        while let Some(first) = next_to_purge(&left, limits, &now) {
            left.retain(|it| it.id != first);
            gone.push((0..kept.len()).find(|at| id(*at) == first).unwrap());
        }
        gone
    }

    #[test]
    fn what_is_kept_goes_oldest_first_until_it_fits() {
        let kept = [("a", 4, 10), ("a", 4, 30), ("a", 4, 20)];
        assert_eq!(order(&kept, size(12)), [0; 0]);
        assert_eq!(order(&kept, size(11)), [1]);
        assert_eq!(order(&kept, size(7)), [1, 2]);
        assert_eq!(order(&kept, size(3)), [1, 2, 0]);
        assert_eq!(order(&[], size(0)), [0; 0]);
    }

    #[test]
    fn who_deletes_much_ends_what_is_kept_for_himself() {
        let kept = [("b", 4, 90), ("a", 3, 10), ("a", 3, 20), ("a", 3, 30)];
        assert_eq!(order(&kept, size(10)), [3]);
        assert_eq!(order(&kept, size(8)), [3, 2]);
    }

    #[test]
    fn small_volumes_that_are_too_many_go_where_they_take_most() {
        let kept = [("b", 400, 90), ("a", 1, 10), ("a", 1, 30), ("a", 1, 20)];
        let at_most = |metadata| KeptLimits {
            metadata: Some(Bytes(metadata)),
            ..size(1_000)
        };
        assert_eq!(order(&kept, at_most(4)), [0; 0]);
        assert_eq!(order(&kept, at_most(2)), [2, 3]);
        assert_eq!(order(&kept, at_most(1)), [2, 3, 0]);
        let kept = [("a", 1, 30), ("a", 1, 20), ("b", 2, 10)];
        assert_eq!(order(&kept, at_most(10)), [2]);
    }

    #[test]
    fn a_volume_that_cannot_be_kept_costs_the_others_nothing() {
        let kept = [("a", 2, 90), ("a", 20, 1), ("b", 2, 50)];
        assert_eq!(order(&kept, size(10)), [1]);
        let kept = [("a", u64::MAX, 1), ("a", u64::MAX, 2), ("b", 1, 3)];
        assert_eq!(order(&kept, size(10)), [1, 0]);
    }

    #[test]
    fn the_longer_of_what_was_wanted_then_and_is_wanted_now_counts() {
        let kept = Deletion::new(&moment(0, 1, 0), DAY).counted(&moment(0, 1, 86_400));
        assert_eq!(kept.has_expired(Some(Duration::ZERO)), Some(true));
        assert_eq!(kept.has_expired(Some(DAY * 2)), Some(false));
        let young = Deletion::new(&moment(0, 1, 0), DAY);
        assert_eq!(young.has_expired(Some(Duration::ZERO)), Some(false));
        let silent = Deletion {
            keep: None,
            kept: None,
            ..young
        };
        assert_eq!(silent.has_expired(None), None);
        assert_eq!(silent.has_expired(Some(Duration::ZERO)), Some(true));
        assert_eq!(silent.has_expired(Some(DAY)), Some(false));
    }
}
