//! Volumes for which the scheduler was asked for another node, with backoff: the scheduler does not know what nodes
//! lack, and may select the same one each time.

use crate::runtime::backoff::Backoff;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Backoff for the scheduler's next selection.
const PAUSE: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(300),
};

/// Time after which an entry expires.
const FORGET: Duration = Duration::from_secs(900);

/// Time and number of consecutive requests, by the volume's name.
#[derive(Debug, Default)]
pub(crate) struct Reschedules(Mutex<HashMap<String, (Instant, u32)>>);

impl Reschedules {
    /// Returns the rest of the pause before the scheduler may be asked again for this volume.
    pub fn pause(&self, name: &str) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, times) = *all.get(name)?;
        let left = PAUSE.after(times).checked_sub(when.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// Returns the rest of this volume's entry's lifetime, if the scheduler was asked.
    pub fn remaining(&self, name: &str) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, _) = all.get(name)?;
        let left = FORGET.checked_sub(when.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// Records a request to the scheduler.
    pub fn record(&self, name: &str) {
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
            asked.record("a");
            assert_eq!(asked.pause("b"), None);
            assert_eq!(asked.pause("a"), Some(Duration::from_secs(seconds)));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(asked.pause("a"), None);
        }
        assert!(asked.remaining("a").is_some());
        tokio::time::advance(FORGET).await;
        assert_eq!((asked.remaining("a"), asked.remaining("b")), (None, None));
        asked.record("b");
        asked.record("a");
        assert_eq!(asked.pause("a"), Some(Duration::from_secs(5)));
    }
}
