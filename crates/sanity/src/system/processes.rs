//! The processes of the machine, as `/proc` has them.

use super::mounts;
use anyhow::{Context, Result};
use std::{fs, path::Path};

/// A process, as far as one needs it to know whose it is.
#[derive(Debug)]
pub struct Process {
    pub id: i32,
    pub parent: i32,
}

impl Process {
    /// Whether this directory is a mount to it.
    pub fn sees_mount_at(&self, point: &Path) -> bool {
        // It may just have gone.
        let seen = mounts::of_process(self.id).unwrap_or_default();
        seen.iter().any(|mount| mount.point == point)
    }
}

/// The numbers of the processes that are such.
pub fn find(which: impl Fn(&Process) -> bool) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list the processes")? {
        let name = entry.context("list the processes")?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may just have gone. The name of the program is in parentheses, and may have some too.
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
