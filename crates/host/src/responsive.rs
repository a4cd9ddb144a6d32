//! Runs checks that may never return because the kernel waits for a dead disk or server.

use crate::{
    deadline::Pause,
    mount,
    sys::fork::{fork, leave},
};
use flexvol_sdk::{leftover::LeftoverNote, stuck::Threads};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};
use std::{
    fs::OpenOptions,
    io,
    path::Path,
    time::{Duration, Instant},
};

/// Time that a check may wait in the kernel without being scheduled. A disk that spins up answers within that time.
const SILENCE: Duration = Duration::from_secs(10);

/// Fewest context switches within [`SILENCE`] that count as progress. A thread that queues behind others for the same
/// resource wakes whenever one of them gives up, so a single wakeup does not count.
const MIN_SWITCHES: u64 = 3;

/// Time to wait for a killed process to exit, if it exits at all.
const DEATH: Duration = Duration::from_secs(1);

/// What is done at a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only looking.
    Read,
    /// What may change something.
    Write,
}

/// Runs `check`, which looks into the place of a pool, in a child process and returns whether it completed.
///
/// A child, because a thread that waits in the kernel for a dead server or disk cannot be ended. Returns false once the
/// kernel has hardly scheduled the child for ten seconds; slow work that progresses is waited for. The child stays
/// until the kernel answers it, and until then the same place does not answer anybody: a second child would only stay
/// beside it. The findings of `check` are lost; a caller that needs them repeats it.
///
/// # Errors
/// When the child cannot be created, as for [`fork()`].
pub fn completes_in_child(place: Option<&Path>, check: &dyn Fn()) -> io::Result<bool> {
    let left = place.map(|place| leftover_note(place, Access::Read));
    if left.as_ref().and_then(LeftoverNote::process).is_some() {
        return Ok(false);
    }
    let Some(process) = fork()? else {
        // A process that reads this program's output to its end must not wait for an abandoned child.
        if mute().is_ok() {
            check();
        }
        leave()
    };
    let pid = Pid::from_raw(process).ok_or(Errno::INVAL)?;
    let (mut seen, mut since) = (0, Instant::now());
    let mut pause = Pause::default();
    while !has_ended(pid)? {
        let threads = Threads::of(process.unsigned_abs());
        let switches = threads.map(|threads| threads.context_switches);
        if switches.is_none_or(|switches| switches >= seen + MIN_SWITCHES) {
            (seen, since) = (switches.unwrap_or(seen), Instant::now());
        } else if since.elapsed() >= SILENCE {
            let _ = kill_process(pid, Signal::KILL);
            let death = Instant::now() + DEATH;
            while !has_ended(pid)? && Instant::now() < death {
                pause.sleep();
            }
            if let Some(left) = &left {
                left.record(process.unsigned_abs());
            }
            return Ok(false);
        }
        pause.sleep();
    }
    Ok(true)
}

/// Returns the note of a process with this access to a place. The number of the file system keeps the directory of another
/// disk, mounted there in place of a dead one, from counting as dead too. While the process waits, no other file system
/// gets that number.
///
/// Reading waits for less than writing: a frozen file system can be read. So what waits with the one access says nothing
/// about the other.
pub(crate) fn leftover_note(place: &Path, access: Access) -> LeftoverNote {
    let mount = mount::holding(place, None).ok().flatten();
    LeftoverNote::of((access, mount.map(|mount| mount.number), place))
}

fn has_ended(process: Pid) -> io::Result<bool> {
    match waitpid(Some(process), WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.is_some()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Redirects the standard streams of this process to /dev/null.
fn mute() -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}
