//! An exec that answers although its work does not end.
//!
//! Who waits in the kernel for a frozen file system, a dead disk or a dead server cannot be ended, and
//! neither can any thread beside him: kubelet would wait with him for ever. So the work is done by a
//! second process, and the first one, for which kubelet waits, only watches it. What it watches is
//! whether the kernel ever let the worker run: work that is slow moves all the time.

use super::reply::Reply;
use crate::{
    Error, ErrorKind,
    stillness::{Stillness, TICK, Threads, silent, stuck},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long an exec that was told to stop may still take. Kubelet sends SIGTERM when
/// `waitforattach` took ten minutes, and SIGKILL ten seconds later.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Goes on in two processes, of which the second is killed when the first one ends. `None` in the
/// second one; in the first one the id of the second. A crate without `unsafe` has no such function;
/// `flexvol_host::fork` is one.
pub type Fork = fn() -> io::Result<Option<i32>>;

/// What was left behind is noted here, so that a repetition of its call does not wait beside it.
const LEFT: &str = "/run/flexvol/left";

/// How long what was killed may take to go, if it goes.
const DEATH: Duration = Duration::from_secs(1);

/// The process that does the work, as the first one sees it.
pub(super) struct Worker {
    pid: Pid,
    signals: SignalFd,
    answer: File,
    note: PathBuf,
}

/// How the worker ended.
pub(super) enum End {
    /// It answered with this line and this exit code.
    Answered(Vec<u8>, u8),
    /// The first process must answer.
    Instead(Error),
}

/// Starts a worker. `None` in the worker, whose answer goes to the first process from now on.
pub(super) fn start(
    fork: Fork,
    reply: &Reply,
    arguments: &[OsString],
) -> io::Result<Option<Worker>> {
    let answer = File::from(memfd_create(c"answer", MFdFlags::MFD_CLOEXEC)?);
    let [ends, told] = [Signal::SIGCHLD, Signal::SIGTERM].map(|signal| {
        let mut set = SigSet::empty();
        set.add(signal);
        set
    });
    let mut both = ends;
    both.add(Signal::SIGTERM);
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&both, flags)?;
    both.thread_block()?;
    let forked = fork();
    match forked {
        Ok(Some(pid)) => Ok(Some(Worker {
            pid: Pid::from_raw(pid),
            signals,
            answer,
            note: note_of(arguments),
        })),
        Ok(None) => {
            // SIGTERM is for the first process.
            ends.thread_unblock()?;
            reply.replace(answer);
            Ok(None)
        }
        Err(error) => {
            ends.thread_unblock()?;
            told.thread_unblock()?;
            Err(error)
        }
    }
}

impl Worker {
    /// Waits until the worker ends, is told to stop, or is stuck.
    pub(super) fn end(mut self) -> End {
        let mut stillness = Stillness::default();
        let mut stop = None;
        loop {
            if let Some(end) = self.ended() {
                return end;
            }
            let timeout = stop.map_or(TICK, |stop: Instant| {
                stop.saturating_duration_since(Instant::now())
            });
            if timeout.is_zero() {
                return self.give_up(Error::new(
                    ErrorKind::TimedOut,
                    "the driver was told to stop before it was done; the next call continues",
                ));
            }
            let signals = PollFd::new(self.signals.as_fd(), PollFlags::POLLIN);
            let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
            match poll(&mut [signals], timeout) {
                Ok(0) if stop.is_none() && stillness.is_stuck(self.threads()) => {
                    return self.give_up(stuck());
                }
                Ok(_) => {}
                // Should the kernel refuse even this, the worker is still waited for.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
            while let Ok(Some(signal)) = self.signals.read_signal() {
                if signal.ssi_signo == Signal::SIGTERM as u32 {
                    stop.get_or_insert_with(|| Instant::now() + GRACE);
                }
            }
        }
    }

    fn threads(&self) -> Option<Threads> {
        Threads::of(self.pid.as_raw().cast_unsigned())
    }

    fn ended(&mut self) -> Option<End> {
        let killed = || {
            Error::new(
                ErrorKind::TimedOut,
                "the driver was killed before it was done; the next call continues",
            )
        };
        Some(match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => return None,
            Ok(WaitStatus::Exited(_, code)) => match (self.read(), u8::try_from(code)) {
                (Ok(line), Ok(code)) if !line.is_empty() => End::Answered(line, code),
                _ => End::Instead(killed()),
            },
            Ok(_) => End::Instead(killed()),
            Err(error) => {
                let _ = kill(self.pid, Signal::SIGKILL);
                End::Instead(killed().because(error.to_string()))
            }
        })
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let length = self.answer.metadata()?.len();
        let mut line = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.answer.read_exact_at(&mut line, 0)?;
        Ok(line)
    }

    fn note(&self) -> io::Result<()> {
        let process = self.pid.to_string();
        let Some(began) = began_of(&process) else {
            return Ok(());
        };
        fs::create_dir_all(LEFT)?;
        fs::write(&self.note, format!("{process} {began}"))
    }

    /// Who waits in the kernel does one thing more when that answers, and then ends.
    fn give_up(mut self, error: Error) -> End {
        let _ = kill(self.pid, Signal::SIGKILL);
        let death = Instant::now() + DEATH;
        while Instant::now() < death {
            match self.ended() {
                Some(answered @ End::Answered(..)) => return answered,
                Some(End::Instead(_)) => return End::Instead(error),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        let waits = fs::read_to_string(format!("/proc/{}/wchan", self.pid)).unwrap_or_default();
        let left = format!(
            "process {} stays until the kernel answers it, in {}",
            self.pid,
            if waits.len() > 1 {
                &waits
            } else {
                "an unknown place"
            }
        );
        log::warn!("{left}");
        if let Err(error) = self.note() {
            log::warn!("a repetition of the call will wait, too: {error}");
        }
        End::Instead(error.because(left))
    }
}

/// The worker that an earlier call with these arguments left behind, while it is there. What is noted
/// of others that have gone is removed.
pub(super) fn left_behind(arguments: &[OsString]) -> Option<Error> {
    let mut found = None;
    for note in fs::read_dir(LEFT).ok()?.flatten() {
        let text = fs::read_to_string(note.path()).unwrap_or_default();
        let (process, began) = text.split_once(' ').unwrap_or_default();
        if began_of(process).is_none_or(|now| now != began) {
            let _ = fs::remove_file(note.path());
        } else if note.path() == note_of(arguments) {
            found = Some(process.to_owned());
        }
    }
    let error = silent("the kernel has not answered an earlier call".to_owned());
    found.map(|process| error.because(format!("process {process} is still there")))
}

/// Where it is noted what a call with these arguments left behind. What comes with a secret is told by
/// its directory alone.
fn note_of(arguments: &[OsString]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    for argument in arguments {
        let has_secret = argument.to_string_lossy().contains("kubernetes.io/secret");
        (!has_secret).then_some(argument).hash(&mut hasher);
    }
    Path::new(LEFT).join(format!("{:016x}", hasher.finish()))
}

/// When a process began that has not ended, by which it is told from a later one of its number: the
/// 20th field after the name of its `stat`, of which the first is its state (fs/proc/array.c,
/// `do_task_stat`).
fn began_of(process: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    if fields.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    fields.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_no_part_of_what_is_noted() {
        let note = |text: &[&str]| note_of(&text.iter().map(Into::into).collect::<Vec<_>>());
        let secret = |value: &str| format!(r#"{{"kubernetes.io/secret/key":"{value}"}}"#);
        let [one, other] = ["MQ==", "Mg=="].map(secret);
        assert_eq!(note(&["mount", "/a", &one]), note(&["mount", "/a", &other]));
        assert_ne!(note(&["mount", "/a", &one]), note(&["mount", "/b", &one]));
        assert_ne!(note(&["unmount", "/a"]), note(&["unmountdevice", "/a"]));
    }

    #[test]
    fn a_process_is_told_by_when_it_began() {
        let own = began_of(&Pid::this().to_string()).unwrap();
        assert!(own.parse::<u64>().unwrap() > 0);
        assert_eq!(began_of("no-process"), None);
    }
}
