//! Runs programs in systemd scopes of their own.
//!
//! When a systemd unit is stopped or restarted, all of its processes are killed (`KillMode=control-group`): stopping
//! kubelet would interrupt `lvextend` midway. A program that must not be interrupted therefore gets its own unit, a
//! scope. `systemd-run` asks systemd for the scope and then *becomes* the program, with the same pid, file descriptors
//! and session.

use super::Tool;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::{ffi::OsStr, fs, path::Path, process::Child};

/// Exists where systemd manages the node: `sd_booted(3)` checks for this directory.
const BOOTED: &str = "/run/systemd/system";

/// Arguments of `systemd-run` before the program. `--collect`, since systemd 236, unloads the unit even if the program
/// fails.
const ASK: [&str; 4] = ["--scope", "--quiet", "--collect", "--"];

/// Name of the process until it has become the program.
const NAME: &str = "systemd-run";

/// The program that runs `tool` in a scope, and the arguments that precede those of `tool`. `None` where systemd does
/// not manage the node.
pub(super) fn systemd_run_command(tool: &Tool) -> Option<(Tool, Vec<&OsStr>)> {
    if !Path::new(BOOTED).is_dir() {
        return None;
    }
    match Tool::find(NAME) {
        Ok(asks) => {
            let words = ASK.iter().map(OsStr::new).chain([tool.path.as_os_str()]);
            Some((asks, words.collect()))
        }
        Err(error) => {
            log::warn!("programs are cut when their unit is stopped: {error}");
            None
        }
    }
}

/// Whether this child exited before it became the program; `None` while it runs. The name of a process stays readable
/// until the process is reaped.
pub(super) fn exited_before_exec(child: &Child) -> Option<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw)?;
    match waitid(WaitId::Pid(pid), look) {
        Ok(None) => None,
        // Reaping the child will report the error.
        Err(_) => Some(false),
        Ok(Some(_)) => {
            let name = fs::read_to_string(format!("/proc/{}/comm", child.id()));
            Some(name.is_ok_and(|name| name.trim_end() == NAME))
        }
    }
}
