//! `flexvol call`: a callout, run for a person.

mod explain;
mod record;

use super::{print_bytes, which::Which};
use crate::installed::Installed;
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::host::exec::{AtDeadline, Limits, Output, Tool};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// No caller of Kubernetes but one sets a limit; this one is longer than any callout should take.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// Run a callout as Kubernetes does, and explain it
///
/// The driver's reply goes to standard output as it is, and standard error tells what was asked
/// and how kubelet takes the answer. The exit code is the driver's. A callout is waited for up to
/// 15 minutes; one that takes longer goes on by itself.
#[derive(Debug, Args)]
pub struct Call {
    #[command(flatten)]
    which: Which,

    /// Append the call and the reply to a file, as one line of JSON without secrets
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Who calls, for the record
    #[arg(
        long,
        value_name = "NAME",
        default_value = "flexvol call",
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
    pub fn run(self, here: &Installed) -> Result<ExitCode> {
        let installed = self.which.installed(here)?;
        let executable =
            std::path::absolute(installed.executable()).context("find the executable")?;
        tell(&explain::question(&executable, &self.argv));
        let argv: Vec<&OsStr> = self.argv.iter().map(OsString::as_os_str).collect();
        let limits = Limits {
            deadline: DEADLINE,
            at_deadline: AtDeadline::Leave,
            hold: &[],
        };
        let started = Instant::now();
        let output = Tool::at(&executable)
            .and_then(|driver| driver.run(&argv, &limits))
            .with_context(|| format!("run {}", executable.display()))?;
        let took = started.elapsed();
        print_bytes(&output.stdout)?;
        let code = exit_code(&output);
        tell(&explain::answer(&output, code, took));
        if let Some(file) = &self.record {
            record::append(
                file,
                &self.caller,
                installed.name(),
                &self.argv,
                &output.stdout,
                took,
            )
            .with_context(|| format!("record the call in {}", file.display()))?;
        }
        Ok(ExitCode::from(code))
    }
}

/// As a shell has it: the code, or 128 and the number of the signal.
fn exit_code(output: &Output) -> u8 {
    let signal = || output.status.signal().map(|signal| 128 + signal);
    let code = output.status.code().or_else(signal).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn tell(lines: &[String]) {
    let mut stderr = io::stderr();
    for line in lines {
        // Nothing is left to tell it to when standard error is closed.
        let _ = writeln!(stderr, "{line}");
    }
}
