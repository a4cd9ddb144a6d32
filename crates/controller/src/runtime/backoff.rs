//! Exponential backoff for failures, and for conditions that may never change.

use std::time::Duration;

/// An exponential backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The first pause. It doubles each time.
    pub first: Duration,
    /// The maximum pause.
    pub longest: Duration,
}

impl Backoff {
    /// Backoff after failures of one volume or stateful set.
    pub const FAILURES: Self = Backoff {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(300),
    };

    /// Returns the pause after this many times, beginning with one.
    #[must_use]
    pub fn after(self, times: u32) -> Duration {
        let doubled = 1u32 << times.saturating_sub(1).min(20);
        self.first.saturating_mul(doubled).min(self.longest)
    }
}
