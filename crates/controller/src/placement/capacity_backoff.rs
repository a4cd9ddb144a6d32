//! Backoff after a driver lacked capacity, whatever capacity it reports.

use crate::runtime::backoff::Backoff;
use flexvol_sdk::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before a driver that lacked capacity is asked again.
const PAUSE: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// A driver's lack of capacity.
#[derive(Debug)]
pub(super) struct CapacityBackoff {
    /// The smallest size that failed.
    size: Bytes,
    /// The last failure, and the number of consecutive ones.
    since: Instant,
    times: u32,
}

impl CapacityBackoff {
    /// Creates or continues a backoff after a failure at this size. One that is long ago counts as none.
    pub fn now(size: Bytes, before: Option<CapacityBackoff>) -> Self {
        let before = before.filter(|before| !before.is_long_ago());
        CapacityBackoff {
            size: before.as_ref().map_or(size, |before| before.size.min(size)),
            since: Instant::now(),
            times: before.map_or(1, |before| before.times.saturating_add(1)),
        }
    }

    /// Whether this size, or a smaller one, failed.
    pub fn forbids(&self, size: Bytes) -> bool {
        size >= self.size
    }

    /// The largest size that may succeed, during the pause.
    pub fn largest(&self) -> Option<Bytes> {
        self.pauses().then(|| Bytes(self.size.0.saturating_sub(1)))
    }

    /// Whether the pause lasts.
    pub fn pauses(&self) -> bool {
        self.lasts(PAUSE)
    }

    /// Whether a pause of another length after these failures lasts.
    pub fn lasts(&self, pause: Backoff) -> bool {
        self.since.elapsed() < pause.after(self.times)
    }

    /// Whether the failure is too long ago to count.
    pub fn is_long_ago(&self) -> bool {
        self.since.elapsed() >= self.pause() + PAUSE.longest
    }

    /// The number of consecutive failures.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// The time of the last failure.
    pub fn since(&self) -> Instant {
        self.since
    }

    fn pause(&self) -> Duration {
        PAUSE.after(self.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_long_ago_does_not_count() {
        let first = CapacityBackoff::now(Bytes(5), None);
        tokio::time::advance(Duration::from_secs(60 + 3599)).await;
        let second = CapacityBackoff::now(Bytes(9), Some(first));
        assert_eq!((second.size, second.times), (Bytes(5), 2));
        tokio::time::advance(Duration::from_secs(120 + 3600)).await;
        let third = CapacityBackoff::now(Bytes(9), Some(second));
        assert_eq!((third.size, third.times), (Bytes(9), 1));
        assert_eq!(third.largest(), Some(Bytes(8)));
    }
}
