//! What an exec does to its own process before a driver's code may run.

use super::{
    Environment, Program, conclude,
    reply::Reply,
    watch::{self, End, Fork, GRACE},
};
use crate::{DriverStatus, Error, ErrorKind, Open, limits, log::Log};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SigSet, Signal},
    stat::{Mode, umask},
};
use std::{
    ffi::OsString,
    io::{self, Write},
    panic,
    process::{self, ExitCode},
    sync::{Arc, Once},
    thread,
    time::SystemTime,
};

/// The watcher calls nothing deep.
const STACK: usize = 128 << 10;

static LOG: Log = Log::system();

pub(super) fn serve(
    program: &Program,
    name: &str,
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
    limits::outlive();
    limits::lay_down_protection();
    let reply = Arc::new(reply);
    answer_panic(&reply, arguments);
    let watched = Once::new();
    let open = || {
        // A thread costs a tenth of a short exec, and these only look: a caller that ends them
        // loses nothing.
        let looks = |name: &OsString| {
            name == "isattached" || (name == "capacity" && program.fork.is_none())
        };
        if !arguments.first().is_some_and(looks) {
            watched.call_once(|| match program.fork {
                Some(fork) => work_apart(fork, &reply, arguments),
                None => answer_sigterm(&reply, arguments),
            });
        }
        open()
    };
    let mut environment = Environment {
        program: name,
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

/// The arguments of an exec have secrets in them, and its memory goes into a core file. What the driver
/// starts may still raise the limit.
fn leave_no_core() {
    let limited = getrlimit(Resource::RLIMIT_CORE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_CORE, 0, most));
    if let Err(error) = limited {
        log::warn!("cannot limit core files: {error}");
    }
}

/// Answers in the place of an exec that panics. A hook runs whether panics unwind or abort.
fn answer_panic(reply: &Arc<Reply>, arguments: &[OsString]) {
    let reply = Arc::clone(reply);
    let arguments = arguments.to_vec();
    panic::set_hook(Box::new(move |panic| {
        let error = Error::new(ErrorKind::Bug, "the driver panicked").because(panic.to_string());
        // What panicked while it was logging would wait for itself.
        let log = if LOG.is_busy() { &Log::nowhere() } else { &LOG };
        answer_instead(&reply, error, log, &arguments);
    }));
}

/// Returns in a second process, which does the work; this one answers when that has ended, or cannot.
fn work_apart(fork: Fork, reply: &Arc<Reply>, arguments: &[OsString]) {
    if let Some(error) = watch::left_behind(arguments) {
        return answer_instead(reply, error, &LOG, arguments);
    }
    match watch::start(fork, reply, arguments) {
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

/// Answers in the place of an exec that was told to stop and does not end by itself. A handler
/// would need `unsafe` and could do next to nothing; a thread that waits for the signal can.
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

/// Ends the exec with this failure, unless it has answered and is ending by itself.
fn answer_instead(reply: &Reply, error: Error, log: &Log, arguments: &[OsString]) {
    // Locked until the end: who comes second must not end the exec before the reply is written.
    let mut stdout = reply.lock();
    let Some(stdout) = stdout.as_mut() else {
        return;
    };
    let failure = conclude(&Err(error.into()), log, SystemTime::now());
    let _ = stdout.write_all(failure.to_line().as_bytes());
    process::exit(failure.exit_code(arguments).into());
}
