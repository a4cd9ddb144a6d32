//! Programs this crate cannot do without: mkfs, e2fsck, resize2fs, debugfs, lvm.

mod find;
mod hanging;
mod scope;

use crate::{deadline::Deadline, lock, sys};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result, stillness::stuck};
use hanging::Watch;
use rustix::{
    fs::{FallocateFlags, MemfdFlags},
    process::{Pid, Signal},
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::BorrowedFd,
        unix::{fs::FileExt, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Where programs are looked for, in this order. `PATH` belongs to whoever started the driver.
const PLACES: &str = "/var/lib/flexvol/bin:/usr/sbin:/sbin:/usr/bin:/bin";

/// What is kept of each of a program's two outputs unless more is asked for.
const OUTPUT_LIMIT: Bytes = Bytes(64 << 10);

/// What a shell runs that keeps descriptors. The last command of all it would become itself.
const KEEP: &str = "\"$@\"; exit $?";

/// How long a killed program may take to go; one that waits for a dead disk takes longer.
const DEATH: Duration = Duration::from_secs(5);

/// A program on this node.
#[derive(Clone, Debug)]
pub struct Tool {
    path: PathBuf,
    environment: Vec<(&'static str, String)>,
    longest_output: Bytes,
    /// It closes what it inherits.
    closes: bool,
}

/// What [`Tool::run`] does when the time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// Kill the program and what it started.
    Kill,
    /// Leave it alone: it must not be cut, and goes on with the lock it holds. Where systemd manages
    /// the node, one that holds something also outlives the unit that this process belongs to.
    Leave,
}

/// How a program may run.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The time it has.
    pub deadline: Duration,
    /// What happens then.
    pub at_deadline: AtDeadline,
    /// What the program keeps open together with this process, and longer if this one dies: the
    /// volume's lock, and the device it works on. A loop device that nobody keeps open is given
    /// to the next volume, which an orphan would then write to.
    pub hold: &'a [BorrowedFd<'a>],
}

/// What a program that ended left behind.
#[derive(Debug)]
pub struct Output {
    /// The program's file name.
    pub program: OsString,
    /// How it ended.
    pub status: ExitStatus,
    /// The beginning of its standard output: 64 KiB, or as much as was asked for.
    pub stdout: Vec<u8>,
    /// The same of its standard error.
    pub stderr: Vec<u8>,
}

impl Tool {
    fn new(path: PathBuf) -> Self {
        Tool {
            path,
            environment: Vec::new(),
            longest_output: OUTPUT_LIMIT,
            closes: false,
        }
    }

    /// The same program with one more variable in its environment.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// The same program, of whose outputs that much is kept.
    #[must_use]
    pub fn with_longest_output(self, longest_output: Bytes) -> Self {
        Tool {
            longest_output,
            ..self
        }
    }

    /// The same program, known to close the descriptors it inherits: a shell waits for it and keeps
    /// what it is to hold. Its end by a signal is then told as a shell does, by the exit status 128
    /// and its number.
    #[must_use]
    pub fn that_closes_descriptors(self) -> Self {
        Tool {
            closes: true,
            ..self
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the program to its end, whatever its exit status.
    ///
    /// It gets these arguments, `PATH`, `LC_ALL=C` and what [`Tool::with_variable`] said, an empty standard input, `/` as its
    /// directory, 077 as its umask, a session of its own, and no descriptor but its three and
    /// those it is to hold. What it started itself is not waited for.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] at the deadline, or before where the kernel has let none of the program's processes move
    /// for half a minute; then [`AtDeadline`] says what becomes of it, too. Otherwise why it could not be started.
    pub fn run(&self, arguments: &[&OsStr], limits: &Limits<'_>) -> Result<Output> {
        if self.closes && !limits.hold.is_empty() {
            let keeper = Tool {
                environment: self.environment.clone(),
                longest_output: self.longest_output,
                ..Tool::find("sh")?
            };
            let mut words: Vec<&OsStr> = ["-c", KEEP, "sh"].map(OsStr::new).to_vec();
            words.push(self.path.as_os_str());
            words.extend(arguments);
            let mut output = keeper.run(&words, limits)?;
            output.program = self.path.file_name().unwrap_or_default().to_owned();
            return Ok(output);
        }
        if limits.at_deadline == AtDeadline::Leave
            && !limits.hold.is_empty()
            && let Some((asks, mut words)) = scope::around(self)
        {
            words.extend(arguments);
            match self.start(asks.path(), &words, limits, scope::ended_before)? {
                Ended::Ran(output) => return Ok(output),
                // The manager is busy with itself, or being replaced.
                Ended::Never(output) => log::warn!(
                    "{} runs without a scope, and is cut if its unit is stopped: {}",
                    self.path.display(),
                    String::from_utf8_lossy(&output.stderr).trim()
                ),
            }
        }
        match self.start(&self.path, arguments, limits, |_| Some(false))? {
            Ended::Ran(output) | Ended::Never(output) => Ok(output),
        }
    }

    /// Starts `program`, which is this one or becomes it, and waits for its end. `never` says of one
    /// that has ended whether it did so before it became this one.
    fn start(
        &self,
        program: &Path,
        arguments: &[&OsStr],
        limits: &Limits<'_>,
        never: fn(&Child) -> Option<bool>,
    ) -> Result<Ended> {
        let name = self.path.file_name().unwrap_or_default();
        let shown = name.display();
        let failed = |error: io::Error| Error::system(&format!("run {shown}"), error);
        let started = Instant::now();
        // Files in memory, not pipes: nothing must read them for the program to go on, it cannot
        // die of a broken pipe when it is left alone, and whoever inherits them delays nobody.
        let (stdout, stderr) = (capture().map_err(failed)?, capture().map_err(failed)?);
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PLACES)
            .env("LC_ALL", "C")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().map_err(failed)?)
            .stderr(stderr.try_clone().map_err(failed)?);
        sys::child::isolate(&mut command, limits.hold).map_err(failed)?;
        let child = match limits.hold.is_empty() {
            true => command.spawn(),
            false => lock::share(|| command.spawn()),
        };
        let mut child = child.map_err(failed)?;

        let mut deadline = Deadline::after(limits.deadline);
        let mut watch = Watch::begin();
        let (never, status) = loop {
            // Before it is waited for: afterwards nothing is known of it.
            if let Some(never) = never(&child)
                && let Some(status) = child.try_wait().map_err(failed)?
            {
                break (never, status);
            }
            discard_excess(&stdout, self.longest_output);
            discard_excess(&stderr, self.longest_output);
            let error = if watch.sees_hanging(child.id()) {
                log::warn!("process {} stays until the kernel answers it", child.id());
                stuck()
            } else if !deadline.pause() {
                over(limits)
            } else {
                continue;
            };
            give_up(child, limits);
            return Err(error.because(format!("{arguments:?}")));
        };
        log::debug!(
            "{} {arguments:?}: {status} after {} ms",
            program.display(),
            started.elapsed().as_millis()
        );
        let output = Output {
            program: name.to_owned(),
            status,
            stdout: captured(&stdout, self.longest_output).map_err(failed)?,
            stderr: captured(&stderr, self.longest_output).map_err(failed)?,
        };
        Ok(match never {
            true => Ended::Never(output),
            false => Ended::Ran(output),
        })
    }
}

/// How a child ended.
enum Ended {
    /// As the program.
    Ran(Output),
    /// Before it became the program.
    Never(Output),
}

impl Output {
    /// Checks that the program says it succeeded. That is necessary, not sufficient: what it was
    /// to do must be measured.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`]; `doing` names what was tried ("make the file system"). What the
    /// program wrote goes to the log only.
    pub fn success(self, doing: &str) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let ending = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown ending".to_owned(),
        };
        let said = if self.stderr.is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        Err(Error::new(
            ErrorKind::Storage,
            format!(
                "cannot {doing}: {} failed ({ending})",
                self.program.display()
            ),
        )
        .because(String::from_utf8_lossy(said).trim().to_owned()))
    }
}

/// What is said when the time is over.
fn over(limits: &Limits<'_>) -> Error {
    let seconds = limits.deadline.as_secs();
    let what = match limits.at_deadline {
        AtDeadline::Leave => {
            format!("the operation goes on in the background after {seconds} s; try again")
        }
        AtDeadline::Kill => {
            format!("the operation was stopped because it did not end within {seconds} s")
        }
    };
    Error::new(ErrorKind::TimedOut, what)
}

fn give_up(mut child: Child, limits: &Limits<'_>) {
    if limits.at_deadline == AtDeadline::Leave {
        return;
    }
    // The child leads a session, so its group has its number and cannot be anybody else's as long
    // as it was not waited for.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        && let Err(error) = rustix::process::kill_process_group(pid, Signal::KILL)
    {
        log::warn!("cannot kill process group {}: {error}", child.id());
    }
    let mut death = Deadline::after(DEATH);
    while matches!(child.try_wait(), Ok(None)) && death.pause() {}
}

fn capture() -> io::Result<File> {
    let file = rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

/// Frees the memory of what will not be kept.
fn discard_excess(output: &File, longest: Bytes) {
    let excess = output
        .metadata()
        .map_or(0, |m| m.len().saturating_sub(longest.0));
    if excess > 0 {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(output, flags, longest.0, excess) {
            log::debug!("cannot discard a program's output: {error}");
        }
    }
}

fn captured(output: &File, longest: Bytes) -> io::Result<Vec<u8>> {
    let length = output.metadata()?.len().min(longest.0);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    output.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
