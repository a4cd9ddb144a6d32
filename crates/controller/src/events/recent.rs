//! Events that were recorded lately: none is repeated, and no object gets too many.

use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// Period in which an identical event of the same object is not repeated.
const SILENCE: Duration = Duration::from_secs(300);

/// Number of warnings that an object may get at once; one more is allowed after each [`ONE_MORE`]. Kubernetes' own
/// components have these limits (`defaultSpamBurst`, `defaultSpamQPS` in client-go's `tools/record/events_cache.go`).
/// They hold back messages that always differ, such as a driver's with the time in them. Normal events are not limited.
const BURST: u32 = 25;
const ONE_MORE: Duration = Duration::from_secs(300);

/// Number of remembered entries. When it is exceeded, events may be recorded twice.
const REMEMBERED: usize = 10_000;

/// Recently recorded events.
#[derive(Debug, Default)]
pub(super) struct RecentEvents {
    /// When an event, by the checksum of object, reason and message, was last recorded.
    words: HashMap<u64, Instant>,
    /// When an object's allowance of warnings is full again, at one in [`ONE_MORE`].
    objects: HashMap<u64, Instant>,
}

impl RecentEvents {
    /// Whether an event was not recorded recently.
    pub fn is_news(&mut self, words: u64, now: Instant) -> bool {
        forget(&mut self.words, |said| now.duration_since(said) >= SILENCE);
        let last = self.words.get(&words);
        let news = last.is_none_or(|said| now.duration_since(*said) >= SILENCE);
        if news {
            self.words.insert(words, now);
        }
        news
    }

    /// Whether an object may get another warning.
    pub fn may_warn(&mut self, object: u64, now: Instant) -> bool {
        forget(&mut self.objects, |made_up| made_up <= now);
        let made_up = self.objects.entry(object).or_insert(now);
        let next = (*made_up).max(now) + ONE_MORE;
        let may = next.duration_since(now) <= ONE_MORE * BURST;
        if may {
            *made_up = next;
        }
        may
    }

    /// Forgets an event that was not written, so that it is news the next time. A warning gives its part of the object's
    /// allowance back.
    pub fn forget(&mut self, words: u64, warned: Option<u64>) {
        self.words.remove(&words);
        if let Some(made_up) = warned.and_then(|object| self.objects.get_mut(&object)) {
            *made_up = made_up.checked_sub(ONE_MORE).unwrap_or(*made_up);
        }
    }
}

/// Makes room if the map is full: drops useless entries, or else all entries.
fn forget(all: &mut HashMap<u64, Instant>, useless: impl Fn(Instant) -> bool) {
    if all.len() >= REMEMBERED {
        all.retain(|_, when| !useless(*when));
    }
    if all.len() >= REMEMBERED {
        all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_is_said_and_not_again_for_a_while() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        assert!(recorded.is_news(1, now));
        assert!(!recorded.is_news(1, now + SILENCE / 2));
        assert!(recorded.is_news(2, now + SILENCE / 2));
        assert!(recorded.is_news(1, now + SILENCE));
    }

    #[test]
    fn an_object_that_is_warned_of_again_and_again_has_some_events_and_no_flood() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        let mut warn = |object: u64, after: Duration| recorded.may_warn(object, now + after);
        for _ in 0..BURST {
            assert!(warn(1, Duration::ZERO));
        }
        assert!(!warn(1, Duration::ZERO));
        assert!(warn(2, Duration::ZERO), "another object has its own");
        assert!(!warn(1, ONE_MORE / 2));
        assert!(warn(1, ONE_MORE));
        assert!(!warn(1, ONE_MORE));
        let later = (0..BURST + 5).filter(|_| warn(1, ONE_MORE * (BURST + 1)));
        assert_eq!(later.count(), BURST as usize);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        for sum in 0..u64::try_from(REMEMBERED).unwrap() * 3 {
            assert!(recorded.is_news(sum, now) && recorded.may_warn(sum, now));
        }
        assert!(recorded.words.len() <= REMEMBERED && recorded.objects.len() <= REMEMBERED);
    }

    #[test]
    fn an_event_that_was_not_written_is_news_again() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        for _ in 0..BURST * 2 {
            assert!(recorded.is_news(1, now) && recorded.may_warn(2, now));
            recorded.forget(1, Some(2));
        }
    }
}
