//! For which volumes the scheduler was asked for another node, and when it may be asked again: it does not
//! know what nodes lack, and may choose the same one each time.

use crate::runtime::backoff::Backoff;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long the scheduler's next choice is given.
const PAUSE: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(300),
};

/// After so long a volume is not the same case any more.
const FORGET: Duration = Duration::from_secs(900);

/// When, and how often in a row, by name of the volume.
#[derive(Debug, Default)]
pub(crate) struct Reschedules(Mutex<HashMap<String, (Instant, u32)>>);

impl Reschedules {
    /// How long the scheduler must not be asked for this volume, if it was asked lately.
    pub fn pause(&self, name: &str) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, times) = *all.get(name)?;
        let left = PAUSE.after(times).checked_sub(when.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// For how long this volume is the same case yet, if the scheduler was asked.
    pub fn lasts(&self, name: &str) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, _) = all.get(name)?;
        let left = FORGET.checked_sub(when.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// The scheduler was asked.
    pub fn asked(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (when, _)| when.elapsed() < FORGET);
        let times = all.get(name).map_or(0, |(_, times)| *times);
        all.insert(name.to_owned(), (Instant::now(), times.saturating_add(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_scheduler_is_asked_ever_more_rarely_for_the_same_volume() {
        let asked = Reschedules::default();
        assert_eq!(asked.pause("a"), None);
        for seconds in [5, 10, 20, 40] {
            asked.asked("a");
            assert_eq!(asked.pause("b"), None);
            assert_eq!(asked.pause("a"), Some(Duration::from_secs(seconds)));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(asked.pause("a"), None);
        }
        assert!(asked.lasts("a").is_some());
        tokio::time::advance(FORGET).await;
        assert_eq!((asked.lasts("a"), asked.lasts("b")), (None, None));
        asked.asked("b");
        asked.asked("a");
        assert_eq!(asked.pause("a"), Some(Duration::from_secs(5)));
    }
}
