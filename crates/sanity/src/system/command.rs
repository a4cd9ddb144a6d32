//! Runs, signals and ends programs: the driver, and commands of the vendor and the system. No wait exceeds its
//! deadline. No process group is signalled after its leader was reaped, because the kernel may reuse the
//! number.

use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use std::{
    ffi::OsStr,
    io::Read,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// The search path of services on a node with systemd.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long output may stay open after the driver's end before it is reported.
pub const LINGER: Duration = Duration::from_millis(500);

/// The environment variable of a worker: its guard's pid and the path of its journal.
pub const WORKER: &str = "FLEXVOL_SANITY_WORKER";

/// Timeout of a command of the vendor or the system.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How long a killed process may take to end. One that blocks in the kernel is left behind.
const LAST: Duration = Duration::from_secs(10);

/// Runs one of the vendor's commands and returns what it printed.
///
/// # Errors
/// With its output when it fails or takes longer than five minutes.
pub fn hook(command: &[String], variables: &[(&str, &str)]) -> Result<String> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    let mut line = Command::new(program);
    line.args(arguments)
        .envs(variables.iter().copied())
        .env_remove(WORKER);
    printed(&mut line, &command.join(" "))
}

/// Runs a program of the system and returns what it printed.
///
/// # Errors
/// With its output when it fails or takes longer than five minutes.
pub fn tool(name: &str, arguments: &[&OsStr]) -> Result<String> {
    let mut command = Command::new(name);
    command.args(arguments).env("PATH", PATH).env("LC_ALL", "C");
    printed(&mut command, &format!("{name} {arguments:?}"))
}

/// Runs a program of the system and returns exit code and output. No code if it had to be killed.
///
/// # Errors
/// When it cannot be started.
pub fn code(name: &str, arguments: &[&OsStr]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(name);
    command.args(arguments).env("PATH", PATH).env("LC_ALL", "C");
    let ran = supervise(&mut command, TIMEOUT, None).with_context(|| format!("run {name}"))?;
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    Ok((ran.status.and_then(|status| status.code()), printed))
}

fn printed(command: &mut Command, name: &str) -> Result<String> {
    let ran = supervise(command, TIMEOUT, None).with_context(|| format!("run {name}"))?;
    let Some(status) = ran.status else {
        bail!("{name}: no end in {} s", TIMEOUT.as_secs());
    };
    let words = String::from_utf8_lossy(&ran.stderr);
    ensure!(status.success(), "{name}: {status}: {}", words.trim());
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// The receivers of a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalTo {
    Process,
    Group,
}

/// The result of a program.
#[derive(Debug)]
pub struct Ran {
    /// None if it had to be killed.
    pub status: Option<ExitStatus>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub took: Duration,
    /// How long its output stayed open after its end.
    pub lingered: Duration,
    /// The output was still open at the deadline.
    pub open: bool,
}

pub fn supervise(
    command: &mut Command,
    deadline: Duration,
    signal: Option<(Duration, Signal, SignalTo)>,
) -> Result<Ran> {
    command
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = start(command)?;
    let stdout = Stream::of(child.stdout.take().context("take standard output")?);
    let stderr = Stream::of(child.stderr.take().context("take standard error")?);
    let end = started + deadline;
    let in_time = ends(&child, started, end, signal).context("wait for its end")?;
    let ended = Instant::now();
    let open = !(stdout.closed_by(end) && stderr.closed_by(end));
    let lingered = ended.elapsed();
    if open || !in_time {
        kill_group(&child);
        // A process that left the group keeps its pipe open; nothing more is read from it.
        let soon = Instant::now() + LINGER;
        stdout.closed_by(soon);
        stderr.closed_by(soon);
    }
    let status = reaped(&mut child)?.filter(|_| in_time);
    Ok(Ran {
        status,
        stdout: stdout.bytes(),
        stderr: stderr.bytes(),
        took: ended - started,
        lingered,
        open,
    })
}

/// Whether a program is installed.
pub fn has_tool(name: &str) -> bool {
    PATH.split(':')
        .any(|directory| Path::new(directory).join(name).is_file())
}

/// Starts a program. Retries on ETXTBSY: a file that was just written may still be open in a child of another
/// thread between fork and exec.
pub fn start(command: &mut Command) -> std::io::Result<Child> {
    let mut left = 100;
    loop {
        match command.spawn() {
            Err(error) if error.raw_os_error() == Some(nix::libc::ETXTBSY) && left > 0 => {
                left -= 1;
                thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

pub fn number(child: &Child) -> Pid {
    // The kernel's limit of pids is far below.
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// Kills the process group of a child, which must not have been reaped yet.
pub fn kill_group(child: &Child) {
    // It may have ended by itself.
    let _ = killpg(number(child), Signal::SIGKILL);
}

/// Whether the child has ended. Does not reap it.
pub fn has_ended(child: &Child) -> nix::Result<bool> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::Pid(number(child)), look) {
            Ok(WaitStatus::StillAlive) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

pub fn reaped(child: &mut Child) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + LAST;
    loop {
        let status = child.try_wait().context("wait for what has ended")?;
        if status.is_some() || Instant::now() > end {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the child's end and signals it meanwhile. Returns false if `end` came first.
fn ends(
    child: &Child,
    started: Instant,
    end: Instant,
    mut signal: Option<(Duration, Signal, SignalTo)>,
) -> nix::Result<bool> {
    let mut pause = Duration::from_micros(200);
    loop {
        if has_ended(child)? {
            return Ok(true);
        }
        let now = Instant::now();
        if let Some((after, which, to)) = signal
            && now >= started + after
        {
            let _ = match to {
                SignalTo::Process => kill(number(child), which),
                SignalTo::Group => killpg(number(child), which),
            };
            signal = None;
        }
        if now >= end {
            return Ok(false);
        }
        let until = signal.map_or(end, |(after, ..)| (started + after).min(end));
        thread::sleep(pause.min(until.saturating_duration_since(now)));
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// The output of one descriptor, read by a thread of its own.
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    closed: mpsc::Receiver<()>,
}

impl Stream {
    fn of(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let (close, closed) = mpsc::channel();
        let into = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut block = [0; 8192];
            while let Ok(read @ 1..) = from.read(&mut block) {
                let mut bytes = into.lock().unwrap_or_else(PoisonError::into_inner);
                // The output of a driver that never stops writing is truncated.
                if bytes.len() < 1 << 24 {
                    bytes.extend(&block[..read]);
                }
            }
            // The receiver may be gone.
            let _ = close.send(());
        });
        Stream { bytes, closed }
    }

    fn closed_by(&self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        !matches!(
            self.closed.recv_timeout(left),
            Err(mpsc::RecvTimeoutError::Timeout)
        )
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_say_what_they_printed_or_why_they_failed() {
        let say = |script: &str| {
            hook(
                &["/bin/sh", "-c", script].map(str::to_owned),
                &[("WHAT", "x")],
            )
        };
        assert_eq!(say("echo $WHAT").unwrap(), "x\n");
        assert!(format!("{:#}", say("echo no >&2; false").unwrap_err()).contains("no"));
    }
}
