//! Answers an exec whose work never ends.
//!
//! A process that waits in the kernel for a frozen file system, a dead disk or a dead server cannot be killed, and
//! its other threads cannot end it either: kubelet would wait for ever too. So a second process, the worker, does
//! the work, and the first one, for which kubelet waits, only watches it. The worker is stuck if the kernel has not
//! scheduled it for some time; slow work is scheduled again and again.

use super::reply::Reply;
use crate::{
    Error, ErrorKind,
    leftover::LeftoverNote,
    memory,
    stuck::{StuckDetector, TICK, Threads, stuck_error, unresponsive_error},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Time that an exec may still take after SIGTERM. Kubelet sends SIGTERM when `waitforattach` took ten minutes, and
/// SIGKILL ten seconds later.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Forks this process. Returns the child's id in the parent and `None` in the child, which is killed when the
/// parent ends. Needs `unsafe`, which this crate forbids; `flexvol_host::fork` is one.
pub type Fork = fn() -> io::Result<Option<i32>>;

/// Time that a killed worker gets to end.
const DEATH: Duration = Duration::from_secs(1);

/// The process that does the work, as seen by the first process.
pub(super) struct Worker {
    pid: Pid,
    signals: SignalFd,
    answer: File,
    left: LeftoverNote,
}

/// How the worker ended.
pub(super) enum End {
    /// The worker answered with this line and this exit code.
    Answered(Vec<u8>, u8),
    /// The first process must answer with this error.
    Instead(Error),
}

/// Starts a worker. Returns `None` in the worker, whose reply then goes to the first process.
pub(super) fn start(fork: Fork, reply: &Reply, left: LeftoverNote) -> io::Result<Option<Worker>> {
    let answer = memory::file(c"answer")?;
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
            left,
        })),
        Ok(None) => {
            // SIGTERM stays blocked in the worker: the first process handles it.
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
    /// Waits until the worker ends, is stuck, or does not end in time after SIGTERM.
    pub(super) fn end(mut self) -> End {
        let mut detector = StuckDetector::default();
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
                Ok(0) if stop.is_none() && detector.is_stuck(self.threads()) => {
                    return self.give_up(stuck_error());
                }
                Ok(_) => {}
                // If the kernel refuses `poll`, wait for the worker without it.
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

    /// Kills a stuck worker. If it does not end within [`DEATH`], leaves it behind with a note: it ends once the
    /// kernel answers it.
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
        self.left.record(self.pid.as_raw().cast_unsigned());
        End::Instead(error.because(left))
    }
}

/// Returns the note of a worker for this call. Without the executable and the configuration, by their names and the
/// configuration's state, a dead pool of one driver would stop the others, and a pool that was moved away from a dead
/// disk. An argument with a secret does not count, so the directory alone identifies such a call.
pub(super) fn leftover_note(
    executable: &OsStr,
    configuration: Option<&Path>,
    arguments: &[OsString],
) -> LeftoverNote {
    let state = configuration.and_then(|path| fs::metadata(path).ok());
    let state = state.map(|it| (it.dev(), it.ino(), it.ctime(), it.ctime_nsec()));
    let arguments = arguments.iter().map(|argument| {
        let has_secret = argument.to_string_lossy().contains("kubernetes.io/secret");
        (!has_secret).then_some(argument)
    });
    LeftoverNote::of((executable, state, arguments.collect::<Vec<_>>()))
}

/// Returns the error for a call whose earlier worker, `process`, still exists.
pub(super) fn still_there(process: &str) -> Error {
    unresponsive_error("the kernel has not answered an earlier call".to_owned())
        .because(format!("process {process} is still there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_by_all_but_its_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = directory.path().join(".disk.toml");
        let note = |executable: &str, text: &[&str]| {
            let arguments: Vec<_> = text.iter().map(Into::into).collect();
            let left = leftover_note(executable.as_ref(), Some(&configuration), &arguments);
            format!("{left:?}")
        };
        let secret = |value: &str| format!(r#"{{"kubernetes.io/secret/key":"{value}"}}"#);
        let [one, other] = ["MQ==", "Mg=="].map(secret);
        let call = |executable| note(executable, &["mount", "/a", &one]);
        let mount = call("/a~disk/disk");
        assert_eq!(mount, note("/a~disk/disk", &["mount", "/a", &other]));
        assert_ne!(mount, note("/a~disk/disk", &["mount", "/b", &one]));
        assert_ne!(mount, note("/a~disk/disk", &["mount", "/a"]));
        assert_ne!(mount, call("/b~disk/disk"));
        fs::write(&configuration, "").unwrap();
        let configured = call("/a~disk/disk");
        assert_ne!(mount, configured);
        assert_eq!(configured, call("/a~disk/disk"));
        // As `install` does it.
        let next = directory.path().join("next");
        fs::write(&next, "").unwrap();
        fs::rename(&next, &configuration).unwrap();
        assert_ne!(configured, call("/a~disk/disk"));
    }
}
