//! Polling with growing pauses, up to a deadline, for events that the kernel does not announce.

use std::{
    thread,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Backoff: each sleep is longer than the one before.
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Pause(FIRST_PAUSE)
    }
}

impl Pause {
    pub(crate) fn sleep(&mut self) {
        self.sleep_at_most(LONGEST_PAUSE);
    }

    fn sleep_at_most(&mut self, left: Duration) {
        thread::sleep(self.0.min(left));
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

pub(crate) struct Deadline {
    end: Instant,
    pause: Pause,
}

impl Deadline {
    pub(crate) fn after(time: Duration) -> Self {
        Deadline {
            end: Instant::now() + time,
            pause: Pause::default(),
        }
    }

    /// Sleeps, longer each time. Returns false, without sleeping, after the deadline.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        self.pause.sleep_at_most(left);
        true
    }
}
