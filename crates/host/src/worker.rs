//! Does the work of a command in a second process, the worker.
//!
//! A process that waits in the kernel for a frozen file system, a dead disk or a dead server cannot be ended, and would
//! never get to the pools that answer. So the first process only watches. If the worker gets stuck at a pool, another
//! worker does the same work without that pool.

pub use crate::responsive::Access;

use crate::{
    deadline::{Deadline, Pause},
    exec::family,
    responsive::leftover_note,
    sys::{ending::EndingSignals, fork::fork},
};
use flexvol_sdk::{
    Error, Result, memory,
    stuck::{StuckDetector, TICK, Threads, stuck_error, unresponsive_error},
};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::Path,
    process,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Time that a killed worker gets to end.
const DEATH: Duration = Duration::from_secs(1);

/// In a worker, where it says at which pool it works, and what is known of pools before it began.
static WORKER: OnceLock<(File, Vec<Silent>)> = OnceLock::new();

/// A pool at which a worker got stuck.
#[derive(Clone, Debug)]
struct Silent {
    pool: String,
    left: Option<String>,
}

/// Says that this process works at a pool from now on, and how. Every use of a pool begins with it, and a use of another
/// one ends it. Without effect in a process that is no worker. While a worker that got stuck there is left, whoever comes
/// later with the same access to the pool's place is told at once that it does not answer: here for writing, and in
/// [`completes_in_child`](crate::responsive::completes_in_child) for reading.
///
/// # Errors
/// [`TimedOut`](flexvol_sdk::ErrorKind::TimedOut) for a pool at which an earlier worker got stuck: of this command, or of
/// any that wrote there.
pub fn at(pool: &str, place: Option<&Path>, access: Access) -> Result<()> {
    let Some((says, before)) = WORKER.get() else {
        return Ok(());
    };
    if let Some(silent) = before.iter().find(|silent| silent.pool == pool) {
        return Err(silent.error());
    }
    if access == Access::Write
        && let Some(place) = place
        && let Some(process) = leftover_note(place, access).process()
    {
        let left = format!("process {process} of an earlier command still waits there");
        return Err(silent_error(Some(left)));
    }
    say(says, pool, place, access)
}

/// Says that this process works at no pool any more.
pub fn nowhere() {
    if let Some((says, _)) = WORKER.get()
        && let Err(error) = say(says, "", None, Access::Read)
    {
        log::debug!("{}", error.report());
    }
}

fn say(says: &File, pool: &str, place: Option<&Path>, access: Access) -> Result<()> {
    let mut text = vec![u8::from(access == Access::Write)];
    text.extend(pool.as_bytes());
    if let Some(place) = place {
        text.push(0);
        text.extend(place.as_os_str().as_bytes());
    }
    says.set_len(0)
        .and_then(|()| says.write_all_at(&text, 0))
        .map_err(|error| Error::system("say at which pool this process works", error))
}

/// Runs `work`, which returns an exit code, in a worker, and again without each pool at which it got stuck. Returns the
/// exit code of the last worker. Its output reaches the streams of this process, but a worker that is stuck does not
/// have them, so that nobody who reads them to their end waits for it.
///
/// Work that changes something must find what it did before, and print what it need not do again when it is done.
///
/// A signal that ends this process ends the worker first, so that what is left of it is noted.
///
/// # Errors
/// When a worker is stuck elsewhere than at a pool, or standard output takes no more.
pub fn run(work: impl FnOnce() -> u8) -> Result<u8> {
    let mut silent: Vec<Silent> = Vec::new();
    let signals = EndingSignals::block();
    loop {
        let process = match Process::start() {
            Ok(Started::First(process)) => process,
            Ok(Started::Worker(place, done)) => {
                // Never set before, because a worker starts no worker.
                let _ = WORKER.set((place, silent));
                let code = work();
                let _ = io::stdout().flush();
                // The exit of this process may wait for the kernel too. The work must not be repeated then.
                let _ = done.write_all_at(&[code], 0);
                process::exit(code.into())
            }
            // It may work; only nobody watches it.
            Err(error) => {
                log::warn!("nobody watches whether the kernel answers: {error}");
                drop(signals);
                return Ok(work());
            }
        };
        match process.end(&signals)? {
            End::Code(code) => return Ok(code),
            End::Signal(signal) => {
                drop(signals);
                return Ok(Ended::Signal(signal).code());
            }
            End::Stuck(new) if silent.iter().any(|old| old.pool == new.pool) => {
                return Err(because(stuck_error(), new.left));
            }
            End::Stuck(new) if new.pool.is_empty() => return Err(because(stuck_error(), new.left)),
            End::Stuck(new) => silent.push(new),
        }
    }
}

impl Silent {
    fn error(&self) -> Error {
        silent_error(self.left.clone())
    }
}

fn silent_error(left: Option<String>) -> Error {
    because(
        unresponsive_error("the pool does not answer".to_owned()),
        left,
    )
}

fn because(error: Error, left: Option<String>) -> Error {
    match left {
        Some(left) => error.because(left),
        None => error,
    }
}

enum Started {
    First(Process),
    Worker(File, File),
}

enum Ended {
    Code(u8),
    Signal(i32),
}

impl Ended {
    /// Returns the worker's exit code. A signal that ended the worker ends this process, so that the caller is told.
    fn code(self) -> u8 {
        match self {
            Ended::Code(code) => code,
            Ended::Signal(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process(getpid(), signal);
                }
                u8::try_from(128 + signal).unwrap_or(1)
            }
        }
    }
}

enum End {
    Code(u8),
    Stuck(Silent),
    /// This process was told to end.
    Signal(i32),
}

/// The worker, as seen by the first process.
struct Process {
    pid: Pid,
    /// Where it says at which pool it works.
    place: File,
    /// Its exit code, once its work is done.
    done: File,
    output: [Output; 2],
}

impl Process {
    fn start() -> io::Result<Started> {
        let [place, done, out, err] = [c"place", c"done", c"output", c"errors"].map(memory::file);
        let (place, done, out, err) = (place?, done?, out?, err?);
        let Some(pid) = fork()? else {
            let given = nix::unistd::dup2_stdout(&out).and(nix::unistd::dup2_stderr(&err));
            if given.is_err() {
                process::exit(1)
            }
            return Ok(Started::Worker(place, done));
        };
        Ok(Started::First(Process {
            pid: Pid::from_raw(pid).ok_or(Errno::INVAL)?,
            place,
            done,
            output: [Output::of(out), Output::of(err)],
        }))
    }

    /// Waits until the worker ends or is stuck, or this process is told to end, and passes on what the worker prints.
    fn end(mut self, signals: &EndingSignals) -> Result<End> {
        let (mut detector, mut next) = (StuckDetector::default(), Instant::now() + TICK);
        let mut pause = Pause::default();
        let mut told = Ok(());
        loop {
            let ended = self.ended();
            // An error must not end this process now, because that would kill the worker in the middle of its work.
            let passed = self.pass_on();
            told = told.and(passed);
            if let Some(ended) = ended {
                return told.map(|()| End::Code(ended.code()));
            }
            if let Some(signal) = signals.next() {
                return Ok(match self.give_up() {
                    Ok(End::Code(code)) => End::Code(code),
                    _ => End::Signal(signal),
                });
            }
            if Instant::now() >= next {
                next = Instant::now() + TICK;
                if detector.is_stuck(Threads::of(self.pid.as_raw_nonzero().get().unsigned_abs())) {
                    return self.give_up();
                }
            }
            pause.sleep();
        }
    }

    /// Returns how the worker ended, once it has.
    fn ended(&self) -> Option<Ended> {
        match waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some((_, status))) => {
                let code = status.exit_status().map(u8::try_from);
                Some(match code {
                    Some(Ok(code)) => Ended::Code(code),
                    _ => Ended::Signal(status.terminating_signal().unwrap_or_default()),
                })
            }
            Err(_) => Some(Ended::Code(1)),
        }
    }

    /// Kills the worker, and so what it forked. One that waits for the kernel stays until the kernel answers it, and is
    /// noted.
    fn give_up(mut self) -> Result<End> {
        let worker = self.pid.as_raw_nonzero().get().unsigned_abs();
        // Listed while they have a parent.
        let family = family(worker).unwrap_or_default();
        let _ = kill_process(self.pid, Signal::KILL);
        let waits = |process: &&u32| Threads::of(**process).is_some_and(|it| it.is_uninterruptible);
        let mut death = Deadline::after(DEATH);
        let mut is_left = true;
        while (is_left || family.iter().any(|it| waits(&it))) && death.pause() {
            is_left = is_left && self.ended().is_none();
        }
        let told = self.pass_on();
        if let Ok(&[code]) = read(&self.done, 0).as_deref() {
            return told.map(|()| End::Code(code));
        }
        let left = match is_left {
            true => Some(worker),
            false => family.iter().find(waits).copied(),
        };
        let said = read(&self.place, 0).unwrap_or_default();
        let access = match said.first() {
            Some(1) => Access::Write,
            _ => Access::Read,
        };
        let mut said = said
            .get(1..)
            .unwrap_or_default()
            .splitn(2, |byte| *byte == 0);
        let pool = said.next().unwrap_or_default();
        if let (Some(left), Some(place)) = (left, said.next()) {
            leftover_note(Path::new(OsStr::from_bytes(place)), access).record(left);
        }
        told.map(|()| {
            End::Stuck(Silent {
                pool: String::from_utf8_lossy(pool).into_owned(),
                left: left.map(what_waits),
            })
        })
    }

    fn pass_on(&mut self) -> Result<()> {
        let [out, err] = &mut self.output;
        // If standard error is closed, nobody can be told.
        let _ = err.pass_on(&mut io::stderr());
        match out.pass_on(&mut io::stdout()) {
            // A closed pipe is no error: its reader has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::system("write to standard output", error))
            }
            _ => Ok(()),
        }
    }
}

fn what_waits(process: u32) -> String {
    let waits = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    let place = match waits.len() {
        0 | 1 => "an unknown place",
        _ => waits.as_str(),
    };
    format!("process {process} stays until the kernel answers it, in {place}")
}

/// What a worker has printed.
struct Output {
    file: File,
    passed: u64,
}

impl Output {
    fn of(file: File) -> Output {
        Output { file, passed: 0 }
    }

    fn pass_on(&mut self, to: &mut dyn Write) -> io::Result<()> {
        let new = read(&self.file, self.passed)?;
        self.passed += new.len() as u64;
        to.write_all(&new)?;
        to.flush()
    }
}

fn read(file: &File, from: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().saturating_sub(from);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
}
