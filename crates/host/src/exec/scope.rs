//! Where systemd manages the node, whoever stops or restarts a unit ends all of its processes
//! (`KillMode=control-group`): stopping kubelet would cut a `lvextend` in two. A program that must not
//! be cut gets a unit of its own, a scope, which `systemd-run` makes: it asks the manager for one
//! and then *becomes* the program, with the same number, descriptors and session.

use super::Tool;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::{ffi::OsStr, fs, path::Path, process::Child};

/// Whether systemd manages the node: `sd_booted(3)` looks for this directory.
const BOOTED: &str = "/run/systemd/system";

/// What asks for the scope. `--collect`, of systemd 236, forgets the unit also if the program fails.
const ASK: [&str; 4] = ["--scope", "--quiet", "--collect", "--"];

/// The name of the process until it has become the program.
const NAME: &str = "systemd-run";

/// The program and the words before those of `tool`, which then runs in a scope; `None` where
/// systemd does not manage the node.
pub(super) fn around(tool: &Tool) -> Option<(Tool, Vec<&OsStr>)> {
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

/// Whether this child, if it has ended, did so before it became the program: the name of a process
/// stays with it until somebody waited for it.
pub(super) fn ended_before(child: &Child) -> Option<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw)?;
    match waitid(WaitId::Pid(pid), look) {
        Ok(None) => None,
        // Waiting for it tells what is wrong.
        Err(_) => Some(false),
        Ok(Some(_)) => {
            let name = fs::read_to_string(format!("/proc/{}/comm", child.id()));
            Some(name.is_ok_and(|name| name.trim_end() == NAME))
        }
    }
}
