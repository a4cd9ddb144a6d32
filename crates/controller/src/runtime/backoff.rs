//! How long to wait for what failed, or may never change: twice as long each time.

use std::time::Duration;

/// A growing pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// At first; twice as long each further time.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Backoff {
    /// After failures of one volume or set.
    pub const FAILURES: Self = Backoff {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(300),
    };

    /// How long after so many times, from one on.
    #[must_use]
    pub fn after(self, times: u32) -> Duration {
        let doubled = 1u32 << times.saturating_sub(1).min(20);
        self.first.saturating_mul(doubled).min(self.longest)
    }
}
