//! Failpoint for tests: the process aborts before or after one of its writes, as if it was killed.

use crate::support::log;
use std::{
    env, process,
    sync::atomic::{AtomicU64, Ordering},
};

/// Environment variable with the failpoint: `before:3` or `after:3`.
const VARIABLE: &str = "FLEXVOL_CONTROLLER_END";

#[derive(Debug)]
pub struct Failpoint {
    moment: Moment,
    at: u64,
    begun: AtomicU64,
}

/// The moment relative to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before,
    After,
}

impl Failpoint {
    pub fn from_environment() -> Option<Self> {
        Failpoint::read(&env::var(VARIABLE).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let (when, at) = text.split_once(':')?;
        let moment = match when {
            "before" => Moment::Before,
            "after" => Moment::After,
            _ => return None,
        };
        Some(Failpoint {
            moment,
            at: at.parse().ok()?,
            begun: AtomicU64::new(0),
        })
    }

    /// Logs and returns the number of a write that is about to be sent.
    pub fn begin(&self) -> u64 {
        let write = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        log::info("writes", &[("number", &write.to_string())]);
        self.end_at(write, Moment::Before);
        write
    }

    pub fn answered(&self, write: u64) {
        self.end_at(write, Moment::After);
    }

    fn end_at(&self, write: u64, moment: Moment) {
        if (self.moment, self.at) == (moment, write) {
            process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_at_which_write_to_end() {
        let read = |text| Failpoint::read(text).map(|point| (point.moment, point.at));
        assert_eq!(read("before:3"), Some((Moment::Before, 3)));
        assert_eq!(read("after:12"), Some((Moment::After, 12)));
        for nothing in ["", "3", "after:", "within:3", "after:x"] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }
}
