//! Whether the kernel lets a process run.

use std::fs;

/// How often the threads of a process went to sleep or were put aside; `None` while one of them runs
/// or was stopped by somebody. Work that is slow moves all the time; who waits for a frozen file system,
/// a dead disk or a dead server does not, or once a minute.
#[must_use]
pub fn moves(process: i32) -> Option<u64> {
    let mut moves = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        moves += moves_in(&status)?;
    }
    Some(moves)
}

/// The same of one thread's `status` (fs/proc/array.c, `task_state` and `task_context_switch_counts`).
fn moves_in(status: &str) -> Option<u64> {
    let fields = |wanted: &'static str| {
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = lines.find(|(name, _)| *name == wanted)?;
        Some(value.trim())
    };
    if !fields("State")?.starts_with(['S', 'D', 'Z', 'X', 'I']) {
        return None;
    }
    let count = |name| fields(name)?.parse::<u64>().ok();
    Some(count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_moves_while_it_runs_or_its_switches_are_counted() {
        let status = |state: &str, switches: u64| {
            format!(
                "Name:\tloop\nUmask:\t0077\nState:\t{state}\nThreads:\t1\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t2\n"
            )
        };
        assert_eq!(moves_in(&status("D (disk sleep)", 7)), Some(9));
        assert_eq!(moves_in(&status("S (sleeping)", 0)), Some(2));
        for moving in ["R (running)", "T (stopped)", "t (tracing stop)"] {
            assert_eq!(moves_in(&status(moving, 7)), None, "{moving}");
        }
        assert_eq!(moves_in("State:\tD (disk sleep)\n"), None);
    }
}
