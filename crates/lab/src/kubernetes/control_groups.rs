//! Control groups of a node's containers.
//!
//! They belong to the host: a real machine loses them with its power, but this node's remain when its processes end.
//! Kubelet spends three seconds on each group without a container before it does anything for a pod, and nothing else
//! would remove them.

use super::{node::wait_until, paths::Home};
use anyhow::{Context, Result};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

const ALL: &str = "/sys/fs/cgroup";

/// Directory in the node with an entry for each container known to containerd, named like its groups.
const CONTAINERS: &str = "/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io";

/// Removes the groups of a stopped node's containers.
///
/// # Errors
/// When the groups cannot be listed, or still have processes after 30 seconds.
pub fn remove(home: &Home) -> Result<()> {
    let known = match fs::read_dir(home.file(CONTAINERS)) {
        Ok(known) => known,
        // The node was stopped before its first container.
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
    // Other groups may vanish at any time.
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
