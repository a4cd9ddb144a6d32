//! Becoming a driver: the agent starts itself anew, this enters the host's mounts, and becomes the
//! program it was told. A process with threads could not enter another mount namespace.

use anyhow::{Context, Result, ensure};
use nix::{
    sched::{CloneFlags, setns},
    sys::{prctl::set_pdeathsig, signal::Signal},
};
use std::{
    ffi::OsString,
    fs::File,
    os::unix::process::{CommandExt, parent_id},
    path::Path,
    process::Command,
};

/// Does not return if it succeeds.
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
    Err(error).with_context(|| format!("start {}", program.display()))
}
