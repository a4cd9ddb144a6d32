//! Preparation of the process, before the driver's code runs.

use super::{
    Environment, Program, conclude,
    reply::Reply,
    watch::{self, End, Fork, GRACE},
};
use crate::{DriverStatus, Error, ErrorKind, Open, leftover::LeftoverNote, limits, log::Log};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SigSet, Signal},
    stat::{Mode, umask},
};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    panic,
    path::Path,
    process::{self, ExitCode},
    sync::{Arc, Once},
    thread,
    time::SystemTime,
};

/// Stack size of the thread that waits for SIGTERM, which makes no deep calls.
const STACK: usize = 128 << 10;

static LOG: Log = Log::system();

pub(super) fn serve(
    program: &Program,
    executable: &OsStr,
    arguments: &[OsString],
    open: Open<'_>,
) -> ExitCode {
    let reply = match Reply::take_stdout() {
        Ok(reply) => reply,
        Err(error) => {
            let failure = DriverStatus::failure(&Error::system("open /dev/null", error));
            let _ = io::stdout().write_all(failure.to_line().as_bytes());
            return ExitCode::from(failure.exit_code(arguments));
        }
    };
    umask(Mode::from_bits_truncate(0o077));
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
    leave_no_core();
    limits::survive_file_size_limit();
    limits::drop_oom_protection();
    let reply = Arc::new(reply);
    answer_panic(&reply, arguments);
    let watched = Once::new();
    let open = || {
        // Starting a thread costs a tenth of a short exec. These callouts only read, so a caller that kills them
        // loses nothing.
        let looks = |name: &OsString| {
            name == "isattached" || (name == "capacity" && program.fork.is_none())
        };
        if !arguments.first().is_some_and(looks) {
            watched.call_once(|| match program.fork {
                Some(fork) => {
                    let configuration = program.configuration.as_deref();
                    let left = watch::leftover_note(executable, configuration, arguments);
                    work_apart(fork, &reply, left, arguments);
                }
                None => answer_sigterm(&reply, arguments),
            });
        }
        open()
    };
    let name = Path::new(executable).file_name().unwrap_or_default();
    let mut environment = Environment {
        program: &name.to_string_lossy(),
        arguments,
        output: &mut &*reply,
        clock: &SystemTime::now,
        log: &LOG,
    };
    match program.run_in(&mut environment, &open) {
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Disables core files, because the arguments in this process's memory may hold secrets. Child processes may raise
/// the limit again.
fn leave_no_core() {
    let limited = getrlimit(Resource::RLIMIT_CORE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_CORE, 0, most));
    if let Err(error) = limited {
        log::warn!("cannot limit core files: {error}");
    }
}

/// Installs a hook that answers for an exec that panics. Hooks run whether panics unwind or abort.
fn answer_panic(reply: &Arc<Reply>, arguments: &[OsString]) {
    let reply = Arc::clone(reply);
    let arguments = arguments.to_vec();
    panic::set_hook(Box::new(move |panic| {
        let error = Error::new(ErrorKind::Bug, "the driver panicked").because(panic.to_string());
        // If the panic happened while logging, this thread holds the log's lock and would deadlock.
        let log = if LOG.is_busy() { &Log::nowhere() } else { &LOG };
        answer_instead(&reply, error, log, &arguments);
    }));
}

/// Returns in a second process, which does the work. The first process answers when the second one has ended or is
/// stuck, and never returns.
fn work_apart(fork: Fork, reply: &Arc<Reply>, left: LeftoverNote, arguments: &[OsString]) {
    if let Some(process) = left.process() {
        return answer_instead(reply, watch::still_there(&process), &LOG, arguments);
    }
    match watch::start(fork, reply, left) {
        Ok(None) => {}
        Ok(Some(worker)) => match worker.end() {
            End::Answered(line, code) => {
                let written = (&**reply).write_all(&line);
                process::exit(written.map_or(1, |()| code.into()));
            }
            End::Instead(error) => answer_instead(reply, error, &LOG, arguments),
        },
        Err(error) => {
            log::warn!("nobody watches whether the kernel answers: {error}");
            answer_sigterm(reply, arguments);
        }
    }
}

/// Answers for an exec that received SIGTERM and does not end by itself. Uses a thread, because a signal handler
/// would need `unsafe` and could do very little.
fn answer_sigterm(reply: &Arc<Reply>, arguments: &[OsString]) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    if signals.thread_block().is_err() {
        return;
    }
    let reply = Arc::clone(reply);
    let arguments = arguments.to_vec();
    let watcher = move || {
        if signals.wait().is_err() {
            return;
        }
        thread::sleep(GRACE);
        let error = Error::new(
            ErrorKind::TimedOut,
            "the driver was told to stop before it was done; the next call continues",
        );
        answer_instead(&reply, error, &LOG, &arguments);
    };
    let spawned = thread::Builder::new().stack_size(STACK).spawn(watcher);
    if spawned.is_err() {
        let _ = signals.thread_unblock();
    }
}

/// Ends the exec with this failure, unless it has answered already and is about to end.
fn answer_instead(reply: &Reply, error: Error, log: &Log, arguments: &[OsString]) {
    if reply.is_given() {
        return;
    }
    // Without the lock, because a panic here is answered too, and would wait for itself.
    let failure = conclude(&Err(error.into()), log, SystemTime::now());
    // The lock is held until exit, so that a second thread cannot exit before the reply is written.
    let mut stdout = reply.lock();
    let Some(stdout) = stdout.as_mut() else {
        return;
    };
    let _ = stdout.write_all(failure.to_line().as_bytes());
    process::exit(failure.exit_code(arguments).into());
}
