//! Waiting for what cannot be waited for: polling with growing pauses, up to a point in time.

use std::{
    thread,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Deadline {
    end: Instant,
    pause: Duration,
}

impl Deadline {
    pub(crate) fn after(time: Duration) -> Self {
        Deadline {
            end: Instant::now() + time,
            pause: FIRST_PAUSE,
        }
    }

    /// Sleeps, longer each time; false, without sleeping, once the time is over.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}
