//! A driver's whole `main`.

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
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

mod process;
mod reply;
mod watch;

pub use watch::Fork;

/// Answers the exec of this process: a driver's whole `main`.
///
/// ```no_run
/// # use flexvol_sdk::{Capabilities, Driver, run};
/// # use std::process::ExitCode;
/// struct Disk;
/// impl Driver for Disk {}
///
/// fn main() -> ExitCode {
///     let capabilities = Capabilities { attach: false, ..Capabilities::default() };
///     run(capabilities, &|| Ok(Box::new(Disk)))
/// }
/// ```
pub fn run(capabilities: Capabilities, open: Open<'_>) -> ExitCode {
    Program::new(capabilities).run(open)
}

/// A driver and how it answers; [`run`](crate::run()) is the short form.
#[derive(Clone, Debug)]
pub struct Program {
    capabilities: Capabilities,
    init_line: Option<PathBuf>,
    fork: Option<Fork>,
}

/// What an exec gets from its process, for tests of whole drivers in one process.
pub struct Environment<'a> {
    /// What the driver is called in the log.
    pub program: &'a str,
    /// The arguments after the executable's own name.
    pub arguments: &'a [OsString],
    /// Takes the reply, in one write.
    pub output: &'a mut dyn Write,
    /// The time.
    pub clock: &'a dyn Fn() -> SystemTime,
    /// Where events go.
    pub log: &'a Log,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl Program {
    /// A driver with these capabilities.
    #[must_use]
    pub fn new(capabilities: Capabilities) -> Self {
        Program {
            capabilities,
            init_line: None,
            fork: None,
        }
    }

    /// Answers also when the kernel does not: the work is done in a second process, and Failure is
    /// answered when that has not moved for half a minute. Nothing but the answer of the second one
    /// says that something was done.
    #[must_use]
    pub fn watched(mut self, fork: Fork) -> Self {
        self.fork = Some(fork);
        self
    }

    /// Answers `init` with the line in this file where there is one: what was verified when the
    /// driver was installed stays what kubelet is told, whatever the configuration has become.
    /// Of a file that holds no such line nothing is used.
    #[must_use]
    pub fn init_line(mut self, path: impl Into<PathBuf>) -> Self {
        self.init_line = Some(path.into());
        self
    }

    /// Answers the exec of this process.
    ///
    /// Before the driver's code runs, the real standard output becomes a private descriptor that
    /// no child inherits, descriptors 1 and 2 lead to /dev/null, the umask is 077, a crash leaves no
    /// core file (arguments may hold secrets; the soft limit, which children inherit), and records of
    /// the `log` crate go to the node's [`Log`]. A panic of any thread is answered Failure and
    /// ends the exec, whether the driver was built to unwind or to abort. From the moment `open` is called SIGTERM lets
    /// the exec end by itself for two more seconds and then answers Failure in its place; but it
    /// just ends `isattached` and, unless it is [watched](Program::watched), `capacity`, which only look. Programs the driver starts
    /// inherit the blocked signal, so a service manager that stops the caller cuts them no
    /// sooner than its own time limit. `init` needs none of this and gets none.
    pub fn run(&self, open: Open<'_>) -> ExitCode {
        let mut argv = env::args_os();
        let program = argv.next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default();
        let argv: Vec<OsString> = argv.collect();
        if is_init(&argv) {
            let line = self.init_reply();
            let written = nix::unistd::write(io::stdout(), line.as_bytes());
            return ExitCode::from(u8::from(written != Ok(line.len())));
        }
        process::serve(self, &program.to_string_lossy(), &argv, open)
    }

    /// Answers one exec inside this process and returns the exit code: what [`Program::run`]
    /// does, less descriptors, umask, limit, panic hook and signals. What is logged is up to
    /// `log::set_max_level` here too; unless it was set, changes and failures are.
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

    /// Everything between the arguments and the reply, and the event that tells of it.
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

/// The reply to an outcome, once the log has the event that tells of it.
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
