//! A driver's `main` function.

use crate::{
    Callout, Capabilities, DriverStatus, Error, Open,
    answer::{self, Outcome},
    driver::{Failure, Reason},
    log::{Conclusion, Exec, Log},
    scrub::Scrubber,
};
use std::{
    env,
    ffi::OsString,
    fmt, fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

mod process;
mod reply;
mod usage;
mod watch;

pub use watch::Fork;

/// Answers the exec of this process. This is a driver's whole `main`.
///
/// ```no_run
/// # use flexvol_sdk::{Capabilities, Driver, run};
/// # use std::process::ExitCode;
/// struct Disk;
/// impl Driver for Disk {}
///
/// fn main() -> ExitCode {
///     run(Capabilities::local(), &|| Ok(Box::new(Disk)))
/// }
/// ```
pub fn run(capabilities: Capabilities, open: Open<'_>) -> ExitCode {
    Program::new(capabilities).run(open)
}

/// A driver with settings for how it answers; [`run`](crate::run()) is the short form.
#[derive(Clone, Debug)]
pub struct Program {
    capabilities: Capabilities,
    init_line: Option<PathBuf>,
    configuration: Option<PathBuf>,
    fork: Option<Fork>,
}

/// The parts of the process that an exec uses, so that tests can run whole drivers in one process.
pub struct Environment<'a> {
    /// The driver's name in the log.
    pub program: &'a str,
    /// The arguments after the executable's own name.
    pub arguments: &'a [OsString],
    /// Receives the reply, in one write.
    pub output: &'a mut dyn Write,
    /// Returns the current time.
    pub clock: &'a dyn Fn() -> SystemTime,
    /// Receives events.
    pub log: &'a Log,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl Program {
    /// Makes a driver with these capabilities.
    #[must_use]
    pub fn new(capabilities: Capabilities) -> Self {
        Program {
            capabilities,
            init_line: None,
            configuration: None,
            fork: None,
        }
    }

    /// Answers even if the kernel blocks the driver for ever. A second process does the work; if it has not moved
    /// for half a minute, the first one answers Failure. Success is answered only if the second process said so.
    #[must_use]
    pub fn watched(mut self, fork: Fork) -> Self {
        self.fork = Some(fork);
        self
    }

    /// Answers `init` with the line in this file, if there is one. Kubelet is then told what was verified when the
    /// driver was installed, even if the configuration has changed since. A file without such a line is ignored.
    #[must_use]
    pub fn init_line(mut self, path: impl Into<PathBuf>) -> Self {
        self.init_line = Some(path.into());
        self
    }

    /// Names the file with the driver's configuration. A [watched](Program::watched) call that left a process behind
    /// is answered Failure while that process exists, but not once this file has changed: the driver may use other
    /// disks then.
    #[must_use]
    pub fn configured_by(mut self, path: impl Into<PathBuf>) -> Self {
        self.configuration = Some(path.into());
        self
    }

    /// Answers the exec of this process.
    ///
    /// Before the driver's code runs, the real standard output becomes a private descriptor that children do not
    /// inherit, and descriptors 1 and 2 lead to /dev/null. The umask is 077. Core files are disabled by the soft
    /// limit, which children inherit, because arguments may hold secrets. Records of the `log` crate go to the
    /// node's [`Log`]. `init` needs none of this and gets none.
    ///
    /// A person at a terminal who gives no arguments, or `--help`, is told what the driver is and which callouts there
    /// are.
    ///
    /// If any thread panics, the exec answers Failure and ends, whether panics unwind or abort.
    ///
    /// Once `open` was called, the exec has two more seconds to finish after SIGTERM; then Failure is answered in
    /// its place. SIGTERM kills `isattached` and, unless [watched](Program::watched), `capacity` at once, because
    /// they only read. Child processes inherit the blocked signal, so that a service manager which stops the caller
    /// kills them only after its own timeout.
    pub fn run(&self, open: Open<'_>) -> ExitCode {
        let mut argv = env::args_os();
        let executable = argv.next().unwrap_or_default();
        let argv: Vec<OsString> = argv.collect();
        if is_init(&argv) {
            let line = self.init_reply();
            let written = nix::unistd::write(io::stdout(), line.as_bytes());
            return ExitCode::from(u8::from(written != Ok(line.len())));
        }
        if usage::is_asked_for(&argv) && io::stdout().is_terminal() {
            let name = Path::new(&executable).file_name().unwrap_or_default();
            let written = io::stdout().write_all(usage::text(&name.to_string_lossy()).as_bytes());
            return ExitCode::from(u8::from(written.is_err()));
        }
        process::serve(self, &executable, &argv, open)
    }

    /// Answers one exec inside this process and returns the exit code. Does the same as [`Program::run`], except
    /// for descriptors, umask, limits, panic hook and signals. Logs up to `log::set_max_level`, or, if that is not
    /// set, changes and failures.
    ///
    /// ```
    /// # use flexvol_sdk::{Capabilities, Driver, Environment, Log, Program};
    /// # use std::time::SystemTime;
    /// # struct Disk;
    /// # impl Driver for Disk {}
    /// let mut output = Vec::new();
    /// let code = Program::new(Capabilities::default()).run_in(
    ///     &mut Environment {
    ///         program: "disk",
    ///         arguments: &["unmount", "/mnt"].map(Into::into),
    ///         output: &mut output,
    ///         clock: &|| SystemTime::UNIX_EPOCH,
    ///         log: &Log::nowhere(),
    ///     },
    ///     &|| Ok(Box::new(Disk)),
    /// )?;
    /// assert_eq!(output, b"{\"status\":\"Not supported\"}\n");
    /// assert_eq!(code, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the reply cannot be written.
    pub fn run_in(&self, environment: &mut Environment<'_>, open: Open<'_>) -> io::Result<u8> {
        if is_init(environment.arguments) {
            environment.output.write_all(self.init_reply().as_bytes())?;
            return Ok(0);
        }
        if log::max_level() == log::LevelFilter::Off {
            log::set_max_level(log::LevelFilter::Info);
        }
        let reply = self.conduct(environment, open);
        environment.output.write_all(reply.to_line().as_bytes())?;
        Ok(reply.exit_code(environment.arguments))
    }

    fn init_reply(&self) -> String {
        let prepared = self
            .init_line
            .as_ref()
            .and_then(|path| fs::read_to_string(path).ok());
        prepared
            .filter(|line| {
                line.starts_with(r#"{"status":"Success","#)
                    && line.ends_with("}\n")
                    && line.lines().count() == 1
            })
            .unwrap_or_else(|| DriverStatus::initialized(self.capabilities).to_line())
    }

    /// Does everything between arguments and reply, and logs the event.
    fn conduct(&self, environment: &Environment<'_>, open: Open<'_>) -> DriverStatus {
        let Environment {
            program,
            arguments,
            clock,
            log,
            ..
        } = *environment;
        let name = Callout::NAMES
            .into_iter()
            .find(|name| arguments.first().is_some_and(|first| first == name))
            .unwrap_or("unknown");
        let mut exec = Exec::new(program.to_owned(), name, clock());
        exec.scrubber = Scrubber::of(arguments);
        log.begin(exec);
        let callout = answer::read(arguments);
        if let Ok(callout) = &callout {
            if let Callout::Mount(request) = callout {
                log.learn(request.secrets.values());
            }
            let subject = callout.subject().map(|subject| subject.into_owned());
            log.describe(subject);
        }
        let outcome =
            callout.and_then(|callout| answer::perform(self.capabilities, open, &callout));
        conclude(&outcome, log, clock())
    }
}

/// Logs the event of an outcome and returns the reply.
fn conclude(outcome: &Outcome, log: &Log, ended: SystemTime) -> DriverStatus {
    let mut reply = answer::reply(outcome);
    let error = error_of(outcome);
    let detail = error.map(Error::report).unwrap_or_default();
    let id = log.conclude(&Conclusion {
        outcome: reply.status,
        kind: error.map(Error::kind),
        detail: &detail,
        ended,
    });
    if let Some(message) = &mut reply.message {
        let has_more = *message != detail;
        *message = log.clean(message);
        if let Some(id) = id.filter(|_| has_more) {
            message.push_str(&format!(" (log id {id})"));
        }
    }
    reply
}

fn is_init(argv: &[OsString]) -> bool {
    matches!(argv, [name] if name == "init")
}

fn error_of(outcome: &Outcome) -> Option<&Error> {
    match outcome {
        Err(Failure(Reason::Failed(error))) => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
