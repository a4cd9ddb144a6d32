//! File systems with a server, such as NFS and FUSE. An access to one may hang for ever if its server is gone.

use super::{Mount, read};
use flexvol_sdk::Result;
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Types of fs/nfs, fs/smb, fs/ceph, fs/9p, fs/afs, fs/autofs. FUSE has a subtype for each server.
const REMOTE: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "autofs"];

/// Lifetime of the cached table: callers ask for a thousand devices in a row, and a table has thousands of mounts.
const FRESH: Duration = Duration::from_secs(1);

impl Mount {
    pub(crate) fn is_remote(&self) -> bool {
        REMOTE.contains(&self.filesystem.as_str()) || self.filesystem.starts_with("fuse")
    }
}

/// Mount points in the kernel's order, each with whether its file system has a server.
struct Table {
    mounts: Vec<(PathBuf, bool)>,
    read: Instant,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Whether a path is on a file system with a server. The path must contain no links, like the kernel's path of an open
/// file. It is not accessed.
///
/// # Errors
/// As [`read`].
pub(crate) fn is_on_remote(path: &Path) -> Result<bool> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = table.take().filter(|table| table.read.elapsed() < FRESH);
    let fresh = match fresh {
        Some(fresh) => fresh,
        None => Table::read()?,
    };
    Ok(table.insert(fresh).is_on_remote(path))
}

impl Table {
    fn read() -> Result<Table> {
        let mounts = read()?.into_iter();
        let mounts = mounts.map(|mount| {
            let is_remote = mount.is_remote();
            (mount.mount_point, is_remote)
        });
        Ok(Table {
            mounts: mounts.collect(),
            read: Instant::now(),
        })
    }

    fn is_on_remote(&self, path: &Path) -> bool {
        let mut remote = self.mounts.iter().filter(|(_, is_remote)| *is_remote);
        if !remote.any(|(place, _)| path.starts_with(place)) {
            return false;
        }
        // The deepest mount point has the path, and of several mounts there the last one.
        let above = self.mounts.iter();
        let above = above.filter(|(place, _)| path.starts_with(place));
        let holds = above.max_by_key(|(place, _)| place.as_os_str().len());
        holds.is_some_and(|(_, is_remote)| *is_remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_and_of_those_the_last_has_a_path() {
        let mounts = [
            ("/", true),
            ("/local", false),
            ("/local/served", true),
            ("/hidden", true),
            ("/hidden", false),
        ];
        let mounts = mounts.map(|(place, is_remote)| (PathBuf::from(place), is_remote));
        let table = Table {
            mounts: mounts.into(),
            read: Instant::now(),
        };
        for (path, is_remote) in [
            ("/image", true),
            ("/local/image", false),
            ("/localimage", true),
            ("/local/served/image (deleted)", true),
            ("/hidden/image", false),
        ] {
            assert_eq!(table.is_on_remote(Path::new(path)), is_remote, "{path}");
        }
    }
}
