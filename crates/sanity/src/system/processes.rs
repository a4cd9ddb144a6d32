//! The processes of the machine, from `/proc`.

use super::mounts;
use anyhow::{Context, Result};
use std::{fs, path::Path};

/// A process, with the attributes that tell who started it.
#[derive(Debug)]
pub struct Process {
    pub id: i32,
    pub parent: i32,
}

impl Process {
    /// Whether this directory is a mount point in the process's mount namespace.
    pub fn sees_mount_at(&self, point: &Path) -> bool {
        // It may have ended meanwhile.
        let seen = mounts::of_process(self.id).unwrap_or_default();
        seen.iter().any(|mount| mount.point == point)
    }
}

/// Returns the pids of the matching processes.
pub fn find(which: impl Fn(&Process) -> bool) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list the processes")? {
        let name = entry.context("list the processes")?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may have ended meanwhile. The program's name is in parentheses, and may contain some.
        let stat = fs::read(format!("/proc/{id}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let parent = fields.split_whitespace().nth(1);
        let Some(parent) = parent.and_then(|field| field.parse().ok()) else {
            continue;
        };
        if which(&Process { id, parent }) {
            found.push(id);
        }
    }
    Ok(found)
}
