//! Detection of stuck processes. Slow work is scheduled again and again; a process that waits in the kernel for a
//! frozen file system, a dead disk or a dead server is not.

use crate::{Error, ErrorKind};
use std::{fs, time::Duration};

/// Interval between two looks at the processes.
pub const TICK: Duration = Duration::from_secs(5);

/// Number of looks in a row without movement after which processes count as stuck. Where the kernel warns of hung
/// tasks, a thread that waits for a disk wakes about once a minute (`blk_wait_io` in block/blk.h), so the looks
/// must end before that.
const STILL: u32 = 6;

/// The activity of the threads of some processes, none of which is running at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// Number of context switches until now.
    pub context_switches: u64,
    /// At least one thread waits in the kernel uninterruptibly (state `D`).
    pub is_uninterruptible: bool,
}

impl Threads {
    /// Reads the activity of a process's threads; `None` while one of them runs or was stopped by a signal.
    #[must_use]
    pub fn of(process: u32) -> Option<Threads> {
        let mut threads = Threads::default();
        for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
            let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            threads = threads.and(Threads::in_status(&status)?);
        }
        Some(threads)
    }

    /// Combines the activity of two sets of threads.
    #[must_use]
    pub fn and(self, others: Threads) -> Threads {
        Threads {
            context_switches: self.context_switches + others.context_switches,
            is_uninterruptible: self.is_uninterruptible || others.is_uninterruptible,
        }
    }

    /// Reads the activity of one thread from its `status` (fs/proc/array.c, `task_state` and
    /// `task_context_switch_counts`).
    fn in_status(status: &str) -> Option<Threads> {
        let fields = |wanted: &'static str| {
            let mut lines = status.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(name, _)| *name == wanted)?;
            Some(value.trim())
        };
        let state = fields("State")?;
        if !state.starts_with(['S', 'D', 'Z', 'X', 'I']) {
            return None;
        }
        let count = |name| fields(name)?.parse::<u64>().ok();
        Some(Threads {
            context_switches: count("voluntary_ctxt_switches")?
                + count("nonvoluntary_ctxt_switches")?,
            is_uninterruptible: state.starts_with('D'),
        })
    }
}

/// Counts for how many looks the threads have not moved.
#[derive(Debug, Default)]
pub struct StuckDetector {
    context_switches: Option<u64>,
    still: u32,
}

impl StuckDetector {
    /// Takes one more look, a [`TICK`] after the last one. Returns whether the threads have been still for so long
    /// that nobody should wait for them any more.
    pub fn is_stuck(&mut self, seen: Option<Threads>) -> bool {
        let context_switches = seen.map(|threads| threads.context_switches);
        let moved = context_switches.is_none() || context_switches != self.context_switches;
        self.still = if moved { 0 } else { self.still + 1 };
        self.context_switches = context_switches;
        self.still >= STILL
    }
}

/// The error for an operation whose process is stuck.
#[must_use]
pub fn stuck_error() -> Error {
    let seconds = (TICK * STILL).as_secs();
    unresponsive_error(format!("the kernel did not answer within {seconds} s"))
}

/// An error about something that waits for the kernel, with advice for the administrator.
#[must_use]
pub fn unresponsive_error(what: String) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        what + ": a file system is frozen (thaw it with fsfreeze -u), or a disk or a server is silent; look into the kernel's log on the node",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_moves_while_it_runs_or_its_switches_are_counted() {
        let status = |state: &str, switches: u64| {
            Threads::in_status(&format!(
                "Name:\tloop\nUmask:\t0077\nState:\t{state}\nThreads:\t1\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t2\n"
            ))
        };
        let still = |context_switches, is_uninterruptible| {
            Some(Threads {
                context_switches,
                is_uninterruptible,
            })
        };
        assert_eq!(status("D (disk sleep)", 7), still(9, true));
        assert_eq!(status("S (sleeping)", 0), still(2, false));
        for moving in ["R (running)", "T (stopped)", "t (tracing stop)"] {
            assert_eq!(status(moving, 7), None, "{moving}");
        }
        assert_eq!(Threads::in_status("State:\tD (disk sleep)\n"), None);
    }

    #[test]
    fn only_who_never_moves_is_stuck() {
        let at = |context_switches| {
            Some(Threads {
                context_switches,
                is_uninterruptible: true,
            })
        };
        let mut detector = StuckDetector::default();
        let looks = [at(1), at(1), None, at(1), at(1), at(1), at(1), at(1), at(2)];
        assert!(looks.iter().all(|look| !detector.is_stuck(*look)));
        assert!((0..5).all(|_| !detector.is_stuck(at(2))));
        assert!(detector.is_stuck(at(2)));
        // A process that looks at itself is running.
        let own = std::process::id();
        let mut detector = StuckDetector::default();
        assert!((0..10).all(|_| !detector.is_stuck(Threads::of(own))));
    }
}
