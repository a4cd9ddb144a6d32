//! What a driver had no room for, whatever it says of its capacity.

use crate::runtime::backoff::Backoff;
use flexvol_sdk::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// How long a driver that had no room is not asked again.
const PAUSE: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// A driver had no room.
#[derive(Debug)]
pub(super) struct CapacityBackoff {
    /// For this size, or more.
    size: Bytes,
    /// When, and how often in a row.
    since: Instant,
    times: u32,
}

impl CapacityBackoff {
    /// A driver has no room for this size, and had none `before`. What was so long ago does not count.
    pub fn now(size: Bytes, before: Option<CapacityBackoff>) -> Self {
        let before = before.filter(|before| !before.is_long_ago());
        CapacityBackoff {
            size: before.as_ref().map_or(size, |before| before.size.min(size)),
            since: Instant::now(),
            times: before.map_or(1, |before| before.times.saturating_add(1)),
        }
    }

    /// Whether there was no room for this size.
    pub fn forbids(&self, size: Bytes) -> bool {
        size >= self.size
    }

    /// The largest volume that may be had, while more is not asked for.
    pub fn largest(&self) -> Option<Bytes> {
        self.pauses().then(|| Bytes(self.size.0.saturating_sub(1)))
    }

    /// Whether it is not asked.
    pub fn pauses(&self) -> bool {
        self.since.elapsed() < self.pause()
    }

    /// Whether it counts no more.
    pub fn is_long_ago(&self) -> bool {
        self.since.elapsed() >= self.pause() + PAUSE.longest
    }

    /// When it was asked last.
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
