//! Locks of processes that were killed and that the kernel does not let go.
//!
//! Who waits for a frozen file system, a dead disk or a dead server ends only when that answers. What
//! he waits for is all he still does, but until then nothing else may be begun on the volume. Only
//! unmounting goes on beside him: the lock's file gets another name, by which he is found as long as
//! he is there.

use super::{DIRECTORY, same_file, wait};
use crate::deadline::Deadline;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::process::Signal;
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long the kernel may not let an ending process move. Unmounting and letting go of a device take
/// time, and much of it, but he moves meanwhile.
const GRACE: Duration = Duration::from_secs(3);

/// `PF_EXITING`, include/linux/sched.h.
const EXITING: u64 = 4;

/// Looks at the holder of a lock while somebody waits for it.
#[derive(Default)]
pub(super) struct Look {
    since: Option<(Leaving, Instant)>,
}

/// A process that will never run its program again.
#[derive(PartialEq, Eq)]
struct Leaving {
    process: String,
    /// How often it began to wait or was put aside.
    moves: Vec<String>,
}

impl Look {
    /// Whether this process, which holds the lock, will never run its program again, and the kernel has
    /// not let it move for a while.
    pub(super) fn is_left(&mut self, holder: &str) -> bool {
        let now = leaving(holder);
        match (&self.since, now) {
            (Some((before, since)), Some(now)) if *before == now => since.elapsed() >= GRACE,
            (_, now) => {
                self.since = now.map(|now| (now, Instant::now()));
                false
            }
        }
    }
}

fn leaving(process: &str) -> Option<Leaving> {
    let read = |name| fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
    let status = read("status");
    let moves = status.lines().filter(|line| line.contains("ctxt_switches"));
    (is_killed(&status) || is_exiting(&read("stat"))).then(|| Leaving {
        process: process.to_owned(),
        moves: moves.map(str::to_owned).collect(),
    })
}

/// Whether SIGKILL waits for a process with this `status` (fs/proc/array.c, `task_sig`).
fn is_killed(status: &str) -> bool {
    let kill = 1_u64 << (Signal::KILL.as_raw() - 1);
    status
        .lines()
        .filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))
        })
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|pending| pending & kill != 0)
}

/// The same of one that has begun to end, by its `stat`: the flags are the seventh field after the
/// name, which may have anything in it.
fn is_exiting(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let flags = fields.and_then(|fields| fields.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// What is said of a lock that such a process holds.
pub(super) fn still_there(process: &str) -> Error {
    let waits = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    Error::new(
        ErrorKind::TimedOut,
        "an earlier call still waits for the kernel: a file system is frozen (thaw it with fsfreeze -u), or a disk or a server is silent; look into the kernel's log on the node",
    )
    .because(format!("process {process} was killed and stays, in {waits}"))
}

fn name(path: &Path) -> PathBuf {
    path.with_extension("left")
}

/// Gives the lock's file another name, so that the lock can be taken although `process` has it. At
/// most one process is left behind so.
pub(super) fn set_aside(path: &Path, file: &File, process: &str) -> Result<()> {
    let failed = |error: io::Error| Error::system("set a lock aside", error);
    // Two of those who unmount: the second one would set aside the lock of the first one.
    let directory = File::open(DIRECTORY).map_err(failed)?;
    let mut deadline = Deadline::after(GRACE);
    wait(&directory, &mut deadline, "another process takes locks")?;
    if !same_file(path, file).map_err(failed)? {
        return Ok(());
    }
    expect_gone(path)?;
    log::warn!("unmounting beside process {process}, which the kernel does not let go");
    fs::rename(path, name(path)).map_err(failed)
}

/// Refuses while the kernel has not let go a process beside which the volume was unmounted.
pub(super) fn expect_gone(path: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::system("look for what was left behind", error);
    let name = name(path);
    let file = match File::open(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        },
        Err(TryLockError::WouldBlock) => Err(still_there(
            &super::holder_of(&file).unwrap_or_else(|| "of an unknown number".to_owned()),
        )),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_is_told_from_one_with_other_signals() {
        let status = |own: &str, shared: &str| {
            format!("Threads:\t1\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0000000000000100\n")
        };
        let [none, kill, term] = ["0000000000000000", "0000000000000100", "0000000000004000"];
        assert!(is_killed(&status(kill, none)) && is_killed(&status(none, kill)));
        assert!(!is_killed(&status(none, none)) && !is_killed(&status(term, term)));
        assert!(!is_killed(""));
    }

    #[test]
    fn an_ending_process_is_told_by_its_flags() {
        let stat = |flags: u64| format!("7 (a) b)) D 1 7 7 0 -1 {flags} 5 0 0 0");
        assert!(is_exiting(&stat(0x40_0004)) && !is_exiting(&stat(0x40_0000)));
        assert!(!is_exiting("") && !is_exiting("7 (loop) D 1"));
    }
}
