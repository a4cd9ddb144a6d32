//! Looking at what may never answer.

use crate::{
    deadline::Pause,
    sys::fork::{fork, leave},
};
use flexvol_sdk::stillness::Threads;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};
use std::{
    fs::OpenOptions,
    io,
    time::{Duration, Instant},
};

/// How long a look may wait in the kernel without being let run. A disk that spins up answers in that time.
const SILENCE: Duration = Duration::from_secs(10);

/// So often, at least, work that is slow is let run in that time. Who waits behind others that wait for the
/// same is woken when one of them gives up.
const FEW: u64 = 3;

/// How long what was killed may take to go, if it goes.
const DEATH: Duration = Duration::from_secs(1);

/// Runs a look in a second process, and says whether it came to its end: a thread that waits in the kernel for a
/// dead server or a dead disk cannot be ended. False once the kernel has hardly let the process run for ten
/// seconds; what is slow and moves is waited for. The process stays until the kernel answers it.
///
/// What the look finds is lost; who wants it looks again.
///
/// # Errors
/// When there is no second process, as for [`fork()`].
pub fn answers(look: &dyn Fn()) -> io::Result<bool> {
    let Some(process) = fork()? else {
        // Who reads what this program writes must not wait for a process that was left behind.
        if mute().is_ok() {
            look();
        }
        leave()
    };
    let pid = Pid::from_raw(process).ok_or(Errno::INVAL)?;
    let (mut seen, mut since) = (0, Instant::now());
    let mut pause = Pause::default();
    while !has_ended(pid)? {
        let threads = Threads::of(process.unsigned_abs());
        let moves = threads.map(|threads| threads.moves);
        if moves.is_none_or(|moves| moves >= seen + FEW) {
            (seen, since) = (moves.unwrap_or(seen), Instant::now());
        } else if since.elapsed() >= SILENCE {
            let _ = kill_process(pid, Signal::KILL);
            let death = Instant::now() + DEATH;
            while !has_ended(pid)? && Instant::now() < death {
                pause.sleep();
            }
            return Ok(false);
        }
        pause.sleep();
    }
    Ok(true)
}

fn has_ended(process: Pid) -> io::Result<bool> {
    match waitpid(Some(process), WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.is_some()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the standard streams from this process.
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
