//! For tests: a process that ends before or after one of its writes, as if somebody had killed it.

use crate::log;
use std::{
    env, process,
    sync::atomic::{AtomicU64, Ordering},
};

/// Where to end: `before:3` or `after:3`.
const VARIABLE: &str = "FLEXVOL_CONTROLLER_END";

#[derive(Debug)]
pub struct Cut {
    before: bool,
    at: u64,
    begun: AtomicU64,
}

impl Cut {
    pub fn of_environment() -> Option<Self> {
        Cut::read(&env::var(VARIABLE).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let (when, at) = text.split_once(':')?;
        let before = match when {
            "before" => true,
            "after" => false,
            _ => return None,
        };
        Some(Cut {
            before,
            at: at.parse().ok()?,
            begun: AtomicU64::new(0),
        })
    }

    /// Says the number of a write that is about to be sent, and returns it.
    pub fn begin(&self) -> u64 {
        let write = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        log::info("writes", &[("number", &write.to_string())]);
        self.end_at(write, true);
        write
    }

    pub fn answered(&self, write: u64) {
        self.end_at(write, false);
    }

    fn end_at(&self, write: u64, before: bool) {
        if (self.before, self.at) == (before, write) {
            process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_at_which_write_to_end() {
        let read = |text| Cut::read(text).map(|cut| (cut.before, cut.at));
        assert_eq!(read("before:3"), Some((true, 3)));
        assert_eq!(read("after:12"), Some((false, 12)));
        for nothing in ["", "3", "after:", "within:3", "after:x"] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }
}
