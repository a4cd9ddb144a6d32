//! Whether processes move: work that is slow moves all the time, and who waits in the kernel for a frozen file
//! system, a dead disk or a dead server does not.

use crate::{Error, ErrorKind};
use std::{fs, time::Duration};

/// So often it is looked whether processes move.
pub const TICK: Duration = Duration::from_secs(5);

/// So many looks in a row at who did not move say that he is stuck. Where a kernel warns of
/// hung tasks, who waits for a disk wakes once a minute for that (`blk_wait_io` in block/blk.h).
const STILL: u32 = 6;

/// What the threads of some processes did until now, while none of them runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// How often they went to sleep or were put aside.
    pub moves: u64,
    /// At least one waits for the kernel, and for nobody's signal.
    pub waits: bool,
}

impl Threads {
    /// Those of a process; `None` while one of them runs or was stopped by somebody.
    #[must_use]
    pub fn of(process: u32) -> Option<Threads> {
        let mut threads = Threads::default();
        for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
            let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            threads = threads.and(Threads::in_status(&status)?);
        }
        Some(threads)
    }

    /// These and others.
    #[must_use]
    pub fn and(self, others: Threads) -> Threads {
        Threads {
            moves: self.moves + others.moves,
            waits: self.waits || others.waits,
        }
    }

    /// The same of one thread's `status` (fs/proc/array.c, `task_state` and `task_context_switch_counts`).
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
            moves: count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?,
            waits: state.starts_with('D'),
        })
    }
}

/// For how long nobody moved.
#[derive(Debug, Default)]
pub struct Stillness {
    moves: Option<u64>,
    still: u32,
}

impl Stillness {
    /// Hears of one look more, a [`TICK`] after the last one, and tells whether the kernel has not answered for so
    /// long that it is not waited for.
    pub fn is_stuck(&mut self, seen: Option<Threads>) -> bool {
        let moves = seen.map(|threads| threads.moves);
        let moved = moves.is_none() || moves != self.moves;
        self.still = if moved { 0 } else { self.still + 1 };
        self.moves = moves;
        self.still >= STILL
    }
}

/// What is answered then.
#[must_use]
pub fn stuck() -> Error {
    let seconds = (TICK * STILL).as_secs();
    silent(format!("the kernel did not answer within {seconds} s"))
}

/// That something waits for the kernel, and what a person does then.
#[must_use]
pub fn silent(what: String) -> Error {
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
        let still = |moves, waits| Some(Threads { moves, waits });
        assert_eq!(status("D (disk sleep)", 7), still(9, true));
        assert_eq!(status("S (sleeping)", 0), still(2, false));
        for moving in ["R (running)", "T (stopped)", "t (tracing stop)"] {
            assert_eq!(status(moving, 7), None, "{moving}");
        }
        assert_eq!(Threads::in_status("State:\tD (disk sleep)\n"), None);
    }

    #[test]
    fn only_who_never_moves_is_stuck() {
        let at = |moves| Some(Threads { moves, waits: true });
        let mut stillness = Stillness::default();
        let looks = [at(1), at(1), None, at(1), at(1), at(1), at(1), at(1), at(2)];
        assert!(looks.iter().all(|look| !stillness.is_stuck(*look)));
        assert!((0..5).all(|_| !stillness.is_stuck(at(2))));
        assert!(stillness.is_stuck(at(2)));
        // Whoever looks at himself runs.
        let own = std::process::id();
        let mut stillness = Stillness::default();
        assert!((0..10).all(|_| !stillness.is_stuck(Threads::of(own))));
    }
}
