//! A run is two processes: the worker, which runs the checks, and its guard, which starts and outlives it. The
//! guard handles Ctrl-C and SIGTERM, ends the worker and everything that the driver started, and undoes what
//! the journal says was made. If the guard is killed, the kernel kills the worker, and the next run undoes the
//! rest from the journal.

use crate::{
    bench::teardown,
    callout::argument::Options,
    config::Config,
    journal::{self, record::Header},
    redact::printable,
    run::Run,
    system::{self, cleanup, command::WORKER, mount_namespace, mounts, processes},
};
use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    fcntl::Flock,
    mount::MsFlags,
    sys::{
        prctl::{set_child_subreaper, set_pdeathsig},
        signal::{SigSet, SigmaskHow, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid, getppid},
};
use std::{
    env,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, ExitCode, Stdio, exit},
    thread,
    time::{Duration, Instant},
};

/// How long killed processes may take to end.
const GOING: Duration = Duration::from_secs(10);

/// How long an interrupted run may take to report what it found so far.
const REPORTING: Duration = Duration::from_secs(5);

/// Returns the path of the journal in a worker, and none in any other process.
///
/// # Errors
/// When the guard has already ended.
pub fn worker() -> Result<Option<PathBuf>> {
    let Some(value) = env::var_os(WORKER) else {
        return Ok(None);
    };
    let value = value.to_string_lossy().into_owned();
    let (guard, journal) = value
        .split_once(' ')
        .context("who watches over this run?")?;
    set_pdeathsig(Signal::SIGKILL).context("end with the guard")?;
    ensure!(getppid().to_string() == guard, "the guard has gone");
    // The guard blocked the signals, and every driver would inherit that.
    SigSet::all()
        .thread_unblock()
        .context("take signals again")?;
    Ok(Some(journal.into()))
}

/// In a worker, runs `report` once the guard asks the run to end, and ends the process.
pub fn when_interrupted(report: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        // The guard writes nothing. It closes the input, because a signal's handler could not print.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        report();
        exit(1);
    });
}

/// Prints a message to stderr. Errors are ignored: cleanup must not depend on a reader.
pub fn say(words: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(words));
}

/// Starts the program again as a worker, and watches it.
///
/// # Errors
/// When it cannot be started, or when what it made cannot be undone.
pub fn watch(header: &Header, secrets: &Options, journals: &Path, keep: bool) -> Result<ExitCode> {
    let signals: SigSet = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGCHLD,
    ]
    .into_iter()
    .collect();
    signals
        .thread_swap_mask(SigmaskHow::SIG_BLOCK)
        .context("take signals")?;
    set_child_subreaper(true).context("adopt what drivers leave")?;
    let (path, lock) = journal::begin(journals, header)?;
    let code = place(header).and_then(|()| watched(&signals, &path, keep));
    let undone = undo(&path, lock, secrets);
    undone.and(code)
}

/// Makes the tester's own directory, and a mount namespace in which it is a mount point.
fn place(header: &Header) -> Result<()> {
    system::make_directory(&header.scratch).context("make the tester's directory")?;
    if system::is_root() && !header.shared {
        mount_namespace::unshare_mounts()?;
        mount_namespace::mount_memory(&header.scratch, MsFlags::empty())?;
    }
    Ok(())
}

fn watched(signals: &SigSet, journal: &Path, keep: bool) -> Result<ExitCode> {
    let mut worker = Command::new("/proc/self/exe")
        .args(env::args_os().skip(1))
        .env(WORKER, format!("{} {}", getpid(), journal.display()))
        .stdin(Stdio::piped())
        // Ctrl-C must reach the guard only.
        .process_group(0)
        .spawn()
        .context("start the run")?;
    let input = worker.stdin.take();
    let worker = Pid::from_raw(i32::try_from(worker.id()).context("know the run's process")?);
    let code = loop {
        let signal = signals.wait().context("wait for the run")?;
        if signal != Signal::SIGCHLD {
            return interrupted(worker, input, signal);
        }
        if let Some(code) = reaped(worker)? {
            break code;
        }
    };
    if keep {
        say(&format!(
            "kept, until Ctrl-C: nsenter --mount --target {} ls {}",
            getpid(),
            journal::read(journal)?.header.scratch.display()
        ));
        while signals.wait().context("wait for a signal")? == Signal::SIGCHLD {
            reaped(worker)?;
        }
    }
    Ok(code)
}

/// Ends the run, after it has reported what it found so far.
fn interrupted(worker: Pid, input: Option<ChildStdin>, signal: Signal) -> Result<ExitCode> {
    drop(input);
    if !ends(worker, REPORTING)? {
        match kill(worker, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => bail!("end the run: {error}"),
        }
        ends(worker, GOING)?;
    }
    say(&format!("flexvol-sanity: {signal}: undoing what was made"));
    // The exit code that a shell reports.
    Ok(ExitCode::from(
        u8::try_from(128 + signal as i32).unwrap_or(128),
    ))
}

/// Waits for the worker's end. Returns false if it takes longer.
fn ends(worker: Pid, time: Duration) -> Result<bool> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if reaped(worker)?.is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

/// Reaps all children that have ended. Returns the exit code of the worker if it is among them.
fn reaped(worker: Pid) -> Result<Option<ExitCode>> {
    let mut code = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) if pid == worker => {
                code = Some(ExitCode::from(u8::try_from(status).unwrap_or(2)));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == worker => {
                say(&format!("flexvol-sanity: the run was ended by {signal}"));
                code = Some(ExitCode::from(2));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(code),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("wait for the run"),
        }
    }
}

/// Ends everything that the run started, undoes what it made, and removes its directory and journal.
fn undo(path: &Path, lock: Flock<File>, secrets: &Options) -> Result<()> {
    let read = journal::read(path)?;
    end_children()?;
    let scratch = read.header.scratch.clone();
    let is_mounted = !read.header.shared && !mounts::at(&scratch)?.is_empty();
    let tag = read.header.tag.clone();
    let undone = teardown::undo_all(&Run::from_journal(&read, secrets.clone()), &read.made);
    let run = undone.and(cleanup::clear_loops_of(&tag));
    if scratch.exists() {
        cleanup::clear(&scratch)?;
        if is_mounted {
            cleanup::unmount(&scratch)?;
        }
        cleanup::remove(&scratch)?;
    }
    run.with_context(|| format!("undo what was made; it is in {}", path.display()))?;
    fs::remove_file(path).context("remove the journal")?;
    drop(lock);
    // Fails if the directory has journals of other runs.
    let _ = path.parent().map(fs::remove_dir);
    Ok(())
}

/// Undoes what abandoned runs made: those that were killed together with their guards. Reports what cannot be
/// undone; the next run tries that again.
pub fn undo_abandoned(executable: &Path, config: &Config, journals: &Path) -> Result<()> {
    for (path, lock) in journal::abandoned(journals)? {
        let outcome = journal::read(&path).and_then(|read| {
            end_those_with(&read.header.scratch)?;
            // A secret is used only for the driver and the volume for which it was given.
            let is_for_it = read.header.executable == executable
                && read.header.config.options == config.options;
            let secrets = is_for_it.then(|| config.secrets.clone());
            undo(&path, lock, &secrets.unwrap_or_default())
        });
        say(&match outcome {
            Ok(()) => "flexvol-sanity: undid what an interrupted run had made".to_owned(),
            Err(error) => format!(
                "flexvol-sanity: an interrupted run is not undone: {error:#}; put its driver and secrets back, or remove {} and leave what it made",
                path.display()
            ),
        });
    }
    Ok(())
}

/// Kills what the run started and has outlived it. The kernel has reparented these processes to the guard.
fn end_children() -> Result<()> {
    let end = Instant::now() + GOING;
    loop {
        let children = processes::find(|process| process.parent == getpid().as_raw())?;
        if children.is_empty() {
            return Ok(());
        }
        for child in children {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        reaped(Pid::from_raw(0))?;
        ensure!(Instant::now() < end, "what the driver started does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills the processes that see the directory as a mount point. Only those started by that run can.
fn end_those_with(scratch: &Path) -> Result<()> {
    let end = Instant::now() + GOING;
    loop {
        let own = getpid().as_raw();
        let found = processes::find(|process| process.id != own && process.sees_mount_at(scratch))?;
        if found.is_empty() {
            return Ok(());
        }
        for process in found {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        ensure!(Instant::now() < end, "what the driver started does not end");
        thread::sleep(Duration::from_millis(20));
    }
}
