//! Becoming a driver: the agent starts itself anew, this enters the host's mounts, and becomes the
//! program it was told. A process with threads could not enter another mount namespace.

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

/// Does not return if it succeeds. For a driver that is not there it answers as a driver does.
///
/// # Errors
/// When the agent is gone, the namespace cannot be entered, or the program not be started.
pub fn enter(agent: u32, mounts: Option<&Path>, program: &[OsString]) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("end with the agent")?;
    // The signal comes only for what dies from now on.
    ensure!(parent_id() == agent, "the agent has ended");
    if let Some(mounts) = mounts {
        let namespace = File::open(mounts)
            .with_context(|| format!("open the mount namespace {}", mounts.display()))?;
        setns(namespace, CloneFlags::CLONE_NEWNS).context("enter the host's mounts")?;
    }
    let (program, arguments) = program.split_first().context("no program is named")?;
    let error = Command::new(program).args(arguments).exec();
    // Not an interpreter that it names.
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
