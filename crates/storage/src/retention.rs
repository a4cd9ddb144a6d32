//! For how long a volume that was deleted is kept, and which goes where they may not take so much.
//!
//! How long it was to be kept is written into its mark when it is deleted, so that another
//! configuration, or none, ends nothing early. The time is counted by what passed for sure, and not
//! told by the clock: clocks begin in 1970, are set and jump. What was not seen to pass, as while the
//! node was off, keeps a volume longer.

use flexvol_host::{
    Uuid, VolumeId,
    clock::{Moment, UnixTime},
};
use flexvol_sdk::Bytes;
use std::{cmp::Reverse, fmt, time::Duration};

/// That somebody deleted a volume, which is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// When, as the node's clock had it: for people, and nothing depends on it.
    pub at: UnixTime,
    /// How long it is kept, in whole seconds; `None` where the driver that deleted it wrote nothing.
    pub keep: Option<Duration>,
    /// How long it has been kept; `None` where nobody has begun to count.
    pub kept: Option<Kept>,
}

/// How long a volume has been kept, for sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// So long, in whole seconds,
    pub time: Duration,
    /// until then.
    pub until: Moment,
}

impl Deletion {
    /// Now, and it is kept so long.
    #[must_use]
    pub fn new(now: &Moment, keep: Duration) -> Deletion {
        Deletion {
            at: now.unix,
            keep: Some(keep),
            kept: Some(Kept::nothing_until(now)),
        }
    }

    /// The same, counted up to `now`.
    #[must_use]
    pub fn counted(&self, now: &Moment) -> Deletion {
        let kept = self.kept.unwrap_or_else(|| Kept::nothing_until(now));
        Deletion {
            kept: Some(Kept {
                time: kept.time.saturating_add(kept.until.passed_until(now)),
                until: *now,
            }),
            ..*self
        }
    }

    /// How long it is kept where its pool says `now` how long that is: the longer of both; `None`
    /// where neither is known.
    #[must_use]
    pub fn keeps(&self, now: Option<Duration>) -> Option<Duration> {
        self.keep.max(now)
    }

    /// Whether what was counted is enough; `None` where it is not known how long it is kept.
    pub(crate) fn is_over(&self, now: Option<Duration>) -> Option<bool> {
        let time = self.kept.map_or(Duration::ZERO, |kept| kept.time);
        Some(time >= self.keeps(now)?)
    }
}

/// A volume that was deleted and is kept, as something that takes room.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) id: VolumeId,
    /// That of its claim.
    pub(crate) namespace: Option<String>,
    pub(crate) size: Bytes,
    pub(crate) deletion: Deletion,
}

/// Which volume goes first, so that those that are kept have no more than `most` together; `None` where
/// they have not. One that has more by itself goes before it costs the others anything. Of the rest it is
/// the one kept longest in the namespace that takes most, so that nobody ends what is kept for others by
/// deleting much.
pub(crate) fn first_to_go(kept: &[Holding], most: Bytes, now: &Moment) -> Option<VolumeId> {
    let sum = |of: &dyn Fn(&Holding) -> bool| {
        let sizes = kept.iter().filter(|it| of(it)).map(|it| it.size.0);
        Bytes(sizes.fold(0, u64::saturating_add))
    };
    if sum(&|_| true) <= most {
        return None;
    }
    let first = kept.iter().max_by_key(|it| {
        let counted = it.deletion.counted(now).kept;
        let time = counted.map_or(Duration::ZERO, |kept| kept.time);
        (
            it.size > most,
            sum(&|other| other.namespace == it.namespace),
            time,
            Reverse(it.deletion.at),
            it.id,
        )
    });
    first.map(|it| it.id)
}

impl Kept {
    fn nothing_until(now: &Moment) -> Kept {
        Kept {
            time: Duration::ZERO,
            until: *now,
        }
    }

    /// Reads `SECONDS/UNIX/BOOT/UPTIME`.
    pub(crate) fn decode(text: &str) -> Option<Kept> {
        let mut parts = text.split('/');
        let kept = Kept {
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

impl fmt::Display for Kept {
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
            assert_eq!(counted.is_over(day), Some(false));
            let counted = counted.counted(&moment(jumped, 2, 300));
            assert_eq!(counted.is_over(day), Some(false));
        }
    }

    #[test]
    fn time_is_counted_from_start_to_start() {
        let mut deletion = Deletion::new(&moment(0, 0, 0), DAY);
        for start in 1..=24 {
            assert_eq!(deletion.is_over(None), Some(false));
            let unix = u64::from(start) * 7_200;
            deletion = deletion.counted(&moment(unix, start, 3_600));
        }
        assert_eq!(deletion.is_over(None), Some(true));
    }

    /// Each with its namespace, its size, and for how long it has been kept.
    fn order(kept: &[(&str, u64, u64)], most: u64) -> Vec<usize> {
        let now = moment(0, 1, 1_000);
        let id = |at: usize| VolumeId::parse(&format!("{at:032x}")).unwrap();
        let holding = |(at, (namespace, size, time)): (usize, &(&str, u64, u64))| Holding {
            id: id(at),
            namespace: Some((*namespace).to_owned()),
            size: Bytes(*size),
            deletion: Deletion::new(&moment(0, 1, 1_000 - time), DAY),
        };
        let mut left: Vec<Holding> = kept.iter().enumerate().map(holding).collect();
        let mut gone = Vec::new();
        while let Some(first) = first_to_go(&left, Bytes(most), &now) {
            left.retain(|it| it.id != first);
            gone.push((0..kept.len()).find(|at| id(*at) == first).unwrap());
        }
        gone
    }

    #[test]
    fn what_is_kept_goes_oldest_first_until_it_fits() {
        let kept = [("a", 4, 10), ("a", 4, 30), ("a", 4, 20)];
        assert_eq!(order(&kept, 12), [0; 0]);
        assert_eq!(order(&kept, 11), [1]);
        assert_eq!(order(&kept, 7), [1, 2]);
        assert_eq!(order(&kept, 3), [1, 2, 0]);
        assert_eq!(order(&[], 0), [0; 0]);
    }

    #[test]
    fn who_deletes_much_ends_what_is_kept_for_himself() {
        let kept = [("b", 4, 90), ("a", 3, 10), ("a", 3, 20), ("a", 3, 30)];
        assert_eq!(order(&kept, 10), [3]);
        assert_eq!(order(&kept, 8), [3, 2]);
    }

    #[test]
    fn a_volume_that_cannot_be_kept_costs_the_others_nothing() {
        let kept = [("a", 2, 90), ("a", 20, 1), ("b", 2, 50)];
        assert_eq!(order(&kept, 10), [1]);
        let kept = [("a", u64::MAX, 1), ("a", u64::MAX, 2), ("b", 1, 3)];
        assert_eq!(order(&kept, 10), [1, 0]);
    }

    #[test]
    fn the_longer_of_what_was_wanted_then_and_is_wanted_now_counts() {
        let kept = Deletion::new(&moment(0, 1, 0), DAY).counted(&moment(0, 1, 86_400));
        assert_eq!(kept.is_over(Some(Duration::ZERO)), Some(true));
        assert_eq!(kept.is_over(Some(DAY * 2)), Some(false));
        let young = Deletion::new(&moment(0, 1, 0), DAY);
        assert_eq!(young.is_over(Some(Duration::ZERO)), Some(false));
        let silent = Deletion {
            keep: None,
            kept: None,
            ..young
        };
        assert_eq!(silent.is_over(None), None);
        assert_eq!(silent.is_over(Some(Duration::ZERO)), Some(true));
        assert_eq!(silent.is_over(Some(DAY)), Some(false));
    }
}
