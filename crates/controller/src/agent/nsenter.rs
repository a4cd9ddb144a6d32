//! Entry point of driver calls: the agent runs itself anew, enters the host's mount namespace, and execs the driver. A
//! process with threads could not enter another mount namespace.

use anyhow::{Context, Result, ensure};
use nix::{
    sched::{CloneFlags, setns},
    sys::{prctl::set_pdeathsig, signal::Signal},
};
use serde_json::json;
use std::{
    ffi::OsString,
    fs::File,
    io::{ErrorKind, Write, stdout},
    os::unix::process::{CommandExt, parent_id},
    path::Path,
    process::Command,
};

/// Enters the namespace and execs the program. Returns only on errors, or after it has replied for a missing driver.
///
/// # Errors
/// When the agent is gone, or the namespace or the program fails.
pub fn enter(agent: u32, mounts: Option<&Path>, program: &[OsString]) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("end with the agent")?;
    // The kernel sends the signal only for deaths after the call.
    ensure!(parent_id() == agent, "the agent has ended");
    if let Some(mounts) = mounts {
        let namespace = File::open(mounts)
            .with_context(|| format!("open the mount namespace {}", mounts.display()))?;
        setns(namespace, CloneFlags::CLONE_NEWNS).context("enter the host's mounts")?;
    }
    let (program, arguments) = program.split_first().context("no program is named")?;
    let error = Command::new(program).args(arguments).exec();
    // Unless the missing file is the interpreter of a script.
    if error.kind() == ErrorKind::NotFound && !Path::new(program).exists() {
        let place = Path::new(program).parent().and_then(Path::file_name);
        let driver = place.unwrap_or(program).display().to_string();
        let message = format!(
            "driver {} is not installed; install it",
            driver.replacen('~', "/", 1)
        );
        let reply = json!({"status": "Failure", "message": message, "errorClass": "retryable"});
        return writeln!(stdout(), "{reply}").context("say that the driver is not installed");
    }
    Err(error).with_context(|| format!("start {}", program.display()))
}
