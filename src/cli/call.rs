//! `flexvol call`: runs a callout for a user.

mod explain;
mod record;

use super::{installed_driver::InstalledDriver, print_bytes};
use crate::installed::Installed;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use flexvol_storage::{
    host::exec::{AtDeadline, Limits, Output, Tool},
    sdk::{self, ErrorKind},
};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Timeout of a callout, longer than any should take. Only one caller in Kubernetes sets a limit.
const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// Run a callout as Kubernetes does, and explain it
///
/// The driver's reply goes to standard output as it is, and standard error tells what was asked
/// and how kubelet takes the answer. The exit code is the driver's. A callout is waited for up to
/// 15 minutes; one that takes longer goes on by itself.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n  flexvol call init\n  flexvol call --record calls.jsonl -- unmount DIR\n\n",
    "Exit status: that of the driver, 1 if it cannot be run, 2 wrong usage",
))]
pub struct Call {
    #[command(flatten)]
    driver: InstalledDriver,

    /// Append the call and the reply to a file, as one line of JSON without secrets
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Who calls, for the record
    #[arg(
        long,
        value_name = "NAME",
        default_value = "flexvol call",
        hide = true,
        requires = "record"
    )]
    caller: String,

    /// The callout and its arguments: init, or mount DIR JSON; a wrong one is explained
    #[arg(
        value_name = "CALLOUT",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    argv: Vec<OsString>,
}

impl Call {
    pub fn run(self, here: &Installed) -> Result<u8> {
        let installed = self.driver.installed(here)?;
        self.call(&installed, DEADLINE)
    }

    fn call(&self, installed: &Installed, deadline: Duration) -> Result<u8> {
        let executable =
            std::path::absolute(installed.executable()).context("find the executable")?;
        tell(&explain::question(&executable, &self.argv));
        let started = Instant::now();
        let outcome = self.perform(&executable, deadline);
        let took = started.elapsed();
        let output = match outcome {
            Ok(output) => output,
            Err(error) => {
                // The driver was called, but its answer is unknown yet.
                let recorded = match error.kind() {
                    ErrorKind::TimedOut => self.record(installed, b"", took),
                    _ => Ok(()),
                };
                // The error's cause contains the arguments, which may hold secrets.
                let ran = format!("run {}: {error}", executable.display());
                return Err(match recorded {
                    Ok(()) => anyhow!(ran),
                    Err(record) => record.context(ran),
                });
            }
        };
        print_bytes(&output.stdout)?;
        let code = exit_code(&output);
        tell(&explain::answer(&output, code, took));
        self.record(installed, &output.stdout, took)?;
        Ok(code)
    }

    fn perform(&self, executable: &Path, deadline: Duration) -> sdk::Result<Output> {
        let argv: Vec<&OsStr> = self.argv.iter().map(OsString::as_os_str).collect();
        let limits = Limits {
            deadline,
            at_deadline: AtDeadline::Leave,
            inherit: &[],
        };
        Tool::at(executable)?.run(&argv, &limits)
    }

    fn record(&self, driver: &Installed, reply: &[u8], took: Duration) -> Result<()> {
        let Some(file) = &self.record else {
            return Ok(());
        };
        let (caller, name) = (&self.caller, driver.name());
        record::append(file, caller, name, &self.argv, reply, took)
            .with_context(|| format!("record the call in {}", file.display()))
    }
}

/// Returns the exit code as a shell does: the code, or 128 plus the number of the signal.
fn exit_code(output: &Output) -> u8 {
    let signal = || output.status.signal().map(|signal| 128 + signal);
    let code = output.status.code().or_else(signal).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn tell(lines: &[String]) {
    let mut stderr = io::stderr();
    for line in lines {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(stderr, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};
    use std::fs;

    #[test]
    fn a_call_that_hangs_is_recorded_and_tells_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("calls");
        let json = r#"{"kubernetes.io/secret/k":"aHVudGVyMg=="}"#;
        let words = ["call", "--record", file.to_str().unwrap(), "--"];
        let argv = ["-c", "sleep 60", "sh", json];
        let command = Call::augment_args(Command::new("call"));
        let matches = command.get_matches_from(words.into_iter().chain(argv));
        let call = Call::from_arg_matches(&matches).unwrap();
        let shell = Installed::at(Path::new("/bin/sh"));
        let error = call.call(&shell, Duration::from_millis(20)).unwrap_err();
        let told = crate::cli::report(&error);
        assert!(told.contains("in the background"), "{told}");
        let recorded = fs::read_to_string(&file).unwrap();
        assert!(recorded.contains("sleep 60"), "{recorded}");
        for text in [told, recorded] {
            assert!(!text.contains("aHVudGVyMg"), "{text}");
        }
    }
}
