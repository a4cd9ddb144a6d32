//! Detects a child program that hangs in the kernel.
//!
//! This process polls while it waits for the child, so it never looks stuck to whoever watches only this process.

use flexvol_sdk::stuck::{StuckDetector, TICK, Threads};
use std::{fs, time::Instant};

/// Periodic check of a child program.
pub(super) struct Watch {
    next: Instant,
    detector: StuckDetector,
}

impl Watch {
    pub(super) fn begin() -> Self {
        Watch {
            next: Instant::now() + TICK,
            detector: StuckDetector::default(),
        }
    }

    /// Whether this child hangs. The caller polls.
    pub(super) fn sees_hanging(&mut self, child: u32) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + TICK;
        // Only waiting for the kernel counts. A program that waits for another process, for example for a lock of LVM,
        // may use its whole time.
        let waiting = family_threads(child).filter(|threads| threads.is_uninterruptible);
        self.detector.is_stuck(waiting)
    }
}

/// Says what a child and its descendants do: "lvm waits in flock_lock_inode_wait", a function of the kernel.
pub(super) fn waits(child: u32) -> String {
    let mut all = String::new();
    for process in family(child).unwrap_or_else(|| vec![child]) {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}"));
        let (Ok(program), Ok(place)) = (read("comm"), read("wchan")) else {
            continue;
        };
        let separator = if all.is_empty() { "" } else { ", " };
        // The kernel writes 0 for a process that runs.
        let (verb, place) = match place.as_str() {
            "0" | "" => ("runs", ""),
            place => ("waits in ", place),
        };
        all += &format!("{separator}{} {verb}{place}", program.trim_end());
    }
    all
}

/// Combined thread states of a process and its descendants, because the child may be a shell that waits for the
/// program. `None` while one of them runs, or when the descendants cannot be listed.
fn family_threads(child: u32) -> Option<Threads> {
    let mut all = Threads::default();
    for process in family(child)? {
        all = all.and(Threads::of(process)?);
    }
    Some(all)
}

/// Returns a process and its descendants, or `None` when they cannot be listed.
pub(crate) fn family(process: u32) -> Option<Vec<u32>> {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(process) = family.get(next) {
        for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
            // Needs `CONFIG_PROC_CHILDREN`, which distributions set.
            let children = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
            family.extend(
                children
                    .split_whitespace()
                    .map_while(|it| it.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    Some(family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read,
        process::{Command, Stdio},
        thread,
        time::Duration,
    };

    #[test]
    fn all_that_a_program_started_is_looked_at_and_waiting_for_each_other_is_no_hanging() {
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3<&0; sh -c 'echo; read end <&3; exit' & wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut byte = [0];
        let mut said = shell.stdout.take().unwrap();
        said.read_exact(&mut byte).unwrap();
        let seen = (0..1000).find_map(|_| {
            thread::sleep(Duration::from_millis(1));
            Some((Threads::of(shell.id())?, family_threads(shell.id())?))
        });
        let mut watch = Watch::begin();
        watch.next = Instant::now();
        let hangs = watch.sees_hanging(shell.id());
        // Ends the input that both processes wait for.
        drop(shell.stdin.take());
        shell.wait().unwrap();
        let (alone, all) = seen.unwrap();
        assert!(all.context_switches > alone.context_switches && !all.is_uninterruptible && !hangs);
        assert_eq!(family_threads(shell.id()), None);
    }
}
