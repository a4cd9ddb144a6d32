//! The control groups of a node's containers.
//!
//! They are the machine's: a machine that loses its power has none afterwards, but the node's stay
//! when its processes end. Kubelet takes three seconds for each that it finds without a container
//! before it does anything for a pod, and nobody else would ever remove them.

use super::{node::wait_until, paths::Home};
use anyhow::{Context, Result};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

const ALL: &str = "/sys/fs/cgroup";

/// In the node: a directory for each container that containerd knows, named as its groups are.
const CONTAINERS: &str = "/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io";

/// Removes the groups of the containers of a node that has ended.
///
/// # Errors
/// When they cannot be listed, or still have processes after half a minute.
pub fn remove(home: &Home) -> Result<()> {
    let known = match fs::read_dir(home.file(CONTAINERS)) {
        Ok(known) => known,
        // The node ended before its first container.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context("list the node's containers"),
    };
    let mut names = Vec::new();
    for container in known {
        names.push(container.context("list the node's containers")?.file_name());
    }
    let mut groups = Vec::new();
    find(Path::new(ALL), &names, &mut groups);
    wait_until(
        "the control groups to be empty",
        Duration::from_secs(30),
        || {
            groups.retain(|group| match fs::remove_dir(group) {
                Ok(()) => false,
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            });
            Ok(groups.is_empty())
        },
    )
}

fn find(dir: &Path, names: &[OsString], found: &mut Vec<PathBuf>) {
    // Groups of others come and go.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if names.contains(&entry.file_name()) {
            found.push(entry.path());
        } else {
            find(&entry.path(), names, found);
        }
    }
}
