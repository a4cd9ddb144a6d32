//! Runs the programs that this crate depends on: mkfs, e2fsck, resize2fs, debugfs, lvm.

mod find;
mod hanging;
mod scope;

use crate::{deadline::Deadline, lock, sys};
use flexvol_sdk::{
    Bytes, Error, ErrorKind, Result,
    leftover::LeftoverNote,
    memory,
    stuck::{stuck_error, unresponsive_error},
};
use hanging::Watch;
pub(crate) use hanging::family;
use rustix::{
    fs::FallocateFlags,
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

/// Directories searched for programs, in this order. `PATH` belongs to whoever started the driver.
const PLACES: &str = "/var/lib/flexvol/bin:/usr/sbin:/sbin:/usr/bin:/bin";

/// Bytes kept of each of a program's two outputs, unless the caller asks for more.
const OUTPUT_LIMIT: Bytes = Bytes(64 << 10);

/// Shell script that keeps file descriptors open around a program. A shell would exec its last command instead of
/// forking, hence the `exit`.
const KEEP: &str = "\"$@\"; exit $?";

/// Time to wait for a killed program to exit. A program that waits for a dead disk takes longer.
const DEATH: Duration = Duration::from_secs(5);

/// A program on this node.
#[derive(Clone, Debug)]
pub struct Tool {
    path: PathBuf,
    environment: Vec<(&'static str, String)>,
    longest_output: Bytes,
    /// The program closes the file descriptors that it inherits.
    closes_fds: bool,
    left: Option<LeftoverNote>,
}

/// What [`Tool::run`] does with the program at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// Kill the program and what it started.
    Kill,
    /// Leave the program running, with the lock it holds, because it must not be interrupted. Where systemd manages the
    /// node, a program that holds descriptors also outlives the unit that this process belongs to.
    Leave,
}

/// Limits on the run of a program.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Time that the program may take.
    pub deadline: Duration,
    /// What happens at the deadline.
    pub at_deadline: AtDeadline,
    /// File descriptors that the program inherits: the volume's lock, and the device it works on. They stay open if
    /// this process dies first. Otherwise the loop device, once unused, would be given to the next volume, and the
    /// orphaned program would write to that.
    pub inherit: &'a [BorrowedFd<'a>],
}

/// Writes arguments as a shell takes them.
pub(crate) fn as_typed(arguments: &[&OsStr]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let words = arguments.iter().map(|argument| {
        let text = argument.to_string_lossy();
        match !text.is_empty() && text.chars().all(plain) {
            true => text.into_owned(),
            false => format!("'{}'", text.replace('\'', r"'\''")),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Result of a program that has exited.
#[derive(Debug)]
pub struct Output {
    /// The program's file name.
    pub program: OsString,
    /// How it ended.
    pub status: ExitStatus,
    /// The first 64 KiB of its standard output, or as much as the caller asked for.
    pub stdout: Vec<u8>,
    /// As much of its standard error.
    pub stderr: Vec<u8>,
}

impl Tool {
    fn new(path: PathBuf) -> Self {
        Tool {
            path,
            environment: Vec::new(),
            longest_output: OUTPUT_LIMIT,
            closes_fds: false,
            left: None,
        }
    }

    /// Adds a variable to the program's environment.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Sets how many bytes of each output are kept.
    #[must_use]
    pub fn with_longest_output(self, longest_output: Bytes) -> Self {
        Tool {
            longest_output,
            ..self
        }
    }

    /// Declares that the program closes the file descriptors it inherits.
    ///
    /// [`Tool::run`] then starts a shell that holds the descriptors and waits for the program. A program that died by a
    /// signal is reported as shells do: exit status 128 plus the signal's number.
    #[must_use]
    pub fn closing_inherited_fds(self) -> Self {
        Tool {
            closes_fds: true,
            ..self
        }
    }

    /// Starts no second program beside one that was killed with the same note and stays, because the kernel does not
    /// answer it.
    #[must_use]
    pub fn noted(self, left: LeftoverNote) -> Self {
        Tool {
            left: Some(left),
            ..self
        }
    }

    /// Absolute path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the program until it exits, whatever its exit status.
    ///
    /// The program gets these arguments, `PATH`, `LC_ALL=C`, the variables of [`Tool::with_variable`], an empty
    /// standard input, `/` as its directory, 077 as its umask, a session of its own, and no file descriptors but the
    /// standard three and those of [`Limits::inherit`]. Processes that the program starts are not waited for.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] at the deadline, or earlier when the kernel has let none of the program's processes run
    /// for half a minute; [`AtDeadline`] applies in both cases. Also as long as a program stays that [`Tool::noted`]
    /// knows. Otherwise the reason why the program could not be started.
    pub fn run(&self, arguments: &[&OsStr], limits: &Limits<'_>) -> Result<Output> {
        if self.closes_fds && !limits.inherit.is_empty() {
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
            && !limits.inherit.is_empty()
            && let Some((asks, mut words)) = scope::systemd_run_command(self)
        {
            words.extend(arguments);
            match self.start(asks.path(), &words, limits, scope::exited_before_exec)? {
                Exit::AfterExec(output) => return Ok(output),
                // systemd is reloading, or being replaced.
                Exit::BeforeExec(output) => log::warn!(
                    "{} runs without a scope, and is cut if its unit is stopped: {}",
                    self.path.display(),
                    String::from_utf8_lossy(&output.stderr).trim()
                ),
            }
        }
        match self.start(&self.path, arguments, limits, |_| Some(false))? {
            Exit::AfterExec(output) | Exit::BeforeExec(output) => Ok(output),
        }
    }

    /// Starts `program`, which is this tool or execs it later, and waits for its exit. `is_before_exec` tells of a child
    /// that has exited whether it exited before it became this tool, and returns `None` while the child runs.
    fn start(
        &self,
        program: &Path,
        arguments: &[&OsStr],
        limits: &Limits<'_>,
        is_before_exec: fn(&Child) -> Option<bool>,
    ) -> Result<Exit> {
        let name = self.path.file_name().unwrap_or_default();
        let shown = name.display();
        let failed = |error: io::Error| Error::system(&format!("run {shown}"), error);
        if let Some(process) = self.left.as_ref().and_then(LeftoverNote::process) {
            return Err(unresponsive_error(format!(
                "the kernel has not answered an earlier {shown}"
            ))
            .because(format!("process {process} is still there")));
        }
        let started = Instant::now();
        // Memory files instead of pipes: the program never blocks on a full pipe, cannot die of a broken pipe after
        // `AtDeadline::Leave`, and descendants that inherit the outputs do not delay this process.
        let capture = || memory::file(c"output").map_err(failed);
        let (stdout, stderr) = (capture()?, capture()?);
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
        sys::child::isolate(&mut command, limits.inherit).map_err(failed)?;
        let child = match limits.inherit.is_empty() {
            true => command.spawn(),
            false => lock::share(|| command.spawn()),
        };
        let mut child = child.map_err(failed)?;

        let mut deadline = Deadline::after(limits.deadline);
        let mut watch = Watch::begin();
        let (is_before_exec, status) = loop {
            // Asked before the child is reaped: afterwards nothing is known about it.
            if let Some(is_before_exec) = is_before_exec(&child)
                && let Some(status) = child.try_wait().map_err(failed)?
            {
                break (is_before_exec, status);
            }
            discard_excess(&stdout, self.longest_output);
            discard_excess(&stderr, self.longest_output);
            let error = if watch.sees_hanging(child.id()) {
                log::warn!("process {} stays until the kernel answers it", child.id());
                stuck_error()
            } else if !deadline.pause() {
                deadline_error(limits, &hanging::waits(child.id()))
            } else {
                continue;
            };
            self.give_up(child, limits);
            return Err(error.because(as_typed(arguments)));
        };
        log::debug!(
            "{} {}: {status} after {} ms",
            program.display(),
            as_typed(arguments),
            started.elapsed().as_millis()
        );
        let output = Output {
            program: name.to_owned(),
            status,
            stdout: captured(&stdout, self.longest_output).map_err(failed)?,
            stderr: captured(&stderr, self.longest_output).map_err(failed)?,
        };
        Ok(match is_before_exec {
            true => Exit::BeforeExec(output),
            false => Exit::AfterExec(output),
        })
    }

    fn give_up(&self, mut child: Child, limits: &Limits<'_>) {
        if limits.at_deadline == AtDeadline::Leave {
            return;
        }
        // The child leads a session, so its process group has its pid as id. The kernel cannot reuse that id before the
        // child is reaped.
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            && let Err(error) = rustix::process::kill_process_group(pid, Signal::KILL)
        {
            log::warn!("cannot kill process group {}: {error}", child.id());
        }
        let mut death = Deadline::after(DEATH);
        while matches!(child.try_wait(), Ok(None)) && death.pause() {}
        if let Some(left) = &self.left {
            left.record(child.id());
        }
    }
}

/// How a child process ended.
enum Exit {
    /// As the program that was to be run.
    AfterExec(Output),
    /// Before it executed the program.
    BeforeExec(Output),
}

impl Output {
    /// Checks that the exit status is zero. That is necessary, not sufficient: the caller must measure what the program
    /// was to do.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`]; `doing` names what was tried ("make the file system"). The program's output goes to the
    /// log only.
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

/// Error for a program that reached its deadline.
fn deadline_error(limits: &Limits<'_>, waits: &str) -> Error {
    let seconds = limits.deadline.as_secs();
    let what = match limits.at_deadline {
        AtDeadline::Leave => {
            format!("the operation goes on in the background after {seconds} s; try again")
        }
        AtDeadline::Kill => {
            format!("the operation was stopped because it did not end within {seconds} s ({waits})")
        }
    };
    Error::new(ErrorKind::TimedOut, what)
}

/// Frees the memory of output beyond the limit.
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
