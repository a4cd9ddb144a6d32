//! The pool id that the node remembers for a path.
//!
//! If a data disk is missing, its mount point shows the directory below. That can be a pool too, created before the
//! disk was mounted or while it was missing. It would have none of the node's volumes, and new ones would be created on
//! the wrong disk. A pool in memory has a new id after each boot and is not remembered.

use super::PoolId;
use crate::{
    remembered::{Record, Root, Words, is_in_memory},
    volume_id::half_digest,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fmt::Write,
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{self, Path, PathBuf},
};

/// Directories that survive reboots. Each contains a file for each path. A pool's disk may be mounted on
/// `/var/lib/flexvol`, or above it; then the record there is missing together with the pool. So the one in `/etc`
/// counts, which is on the root's file system. The other one is for nodes where `/etc` is read-only or in memory, and for
/// records of before `/etc` had any.
const DIRECTORIES: [&str; 2] = ["/etc/flexvol/directories", "/var/lib/flexvol/directories"];

/// Maximum length of a record's name. File systems allow 255 bytes.
const LONGEST_NAME: usize = 200;

const WORDS: Words<'_> = Words {
    another: "the pool is another one than the node had at its path: the node's has",
    disks: "is the disk of the pool mounted",
    // The path is not for pod events.
    again: "`flexvol pool init` with its path and --replace",
};

/// Checks that the pool is the one that the node remembers at the path. The first one is remembered.
pub(super) fn expect(path: &Path, root: &File, found: PoolId) -> Result<()> {
    let record = record(path, root)?;
    let is_recorded = record.expect(found, &WORDS)?;
    // The first use, for example after an upgrade. Best effort: a failure is only logged.
    if !is_recorded
        && let Err(error) = is_temporary(root).and_then(|is_temporary| match is_temporary {
            true => Ok(()),
            false => record.keep_first(found),
        })
    {
        log::debug!("the node does not remember its pool: {}", error.report());
    }
    Ok(())
}

/// Whether the node remembers another pool at the path than the one that is there, or its record is damaged.
pub(super) fn is_another(path: &Path, root: &File, found: PoolId) -> bool {
    record(path, root)
        .and_then(|record| record.expect(found, &WORDS))
        .is_err()
}

/// Returns what the node's records of the path say, if they contradict each other.
pub(super) fn contradiction(path: &Path, root: &File) -> Option<String> {
    record(path, root).ok()?.contradiction()
}

/// Whether all records of the pool that survive a reboot are on its own file system, and that is not the root's: while
/// its disk is missing the node does not remember it.
pub(super) fn goes_with(path: &Path, root: &File) -> bool {
    let device = |path: PathBuf| Some(fs::metadata(path).ok()?.dev());
    let own = root.metadata().ok().map(|root| root.dev());
    let Ok(record) = record(path, root) else {
        return false;
    };
    let mut places = record.surviving().filter_map(device).peekable();
    own != device("/".into()) && places.peek().is_some() && places.all(|place| Some(place) == own)
}

/// Checks that a pool made at this path does not replace another remembered one.
pub(super) fn expect_not_replacing(path: &Path, root: &File, found: Option<PoolId>) -> Result<()> {
    let shown = path.display();
    let again = format!("`flexvol pool init {shown} --replace`");
    let known = record(path, root)?.read(found).map_err(|error| {
        let what = format!("{error}; where the directory is the node's pool, {again}");
        Error::new(error.kind(), what).because(error.report())
    })?;
    let is = match (known, found) {
        (None, _) => return Ok(()),
        (Some(known), Some(found)) if known == found => return Ok(()),
        (_, Some(found)) => format!("is the pool with the id {found}"),
        (_, None) => "is no pool".to_owned(),
    };
    let known = known.map(|known| known.to_string()).unwrap_or_default();
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "the node's pool at this path has the id {known}, and the directory that is there {is}; mount the disk of the pool, or where it is gone for good: {again} forgets it, and its volumes"
        ),
    ))
}

/// Remembers this pool at the path from now on.
pub(super) fn keep(path: &Path, root: &File, id: PoolId) -> Result<()> {
    match is_temporary(root)? {
        true => record(path, root)?.forget(),
        false => record(path, root)?.keep(id),
    }
}

fn is_temporary(root: &File) -> Result<bool> {
    is_in_memory(root).map_err(|error| Error::system("ask for the pool's file system", error))
}

fn record<'a>(path: &Path, root: &'a File) -> Result<Record<'a>> {
    let path =
        path::absolute(path).map_err(|error| Error::system("tell the pool's path", error))?;
    // Removes a trailing slash.
    let path: PathBuf = path.components().collect();
    let name = name_of(&path);
    let root = Root { path, opened: root };
    Ok(Record::at(&DIRECTORIES, name, Some(root)))
}

/// Encodes a path as a file name: legible, and unique for each path.
fn name_of(path: &Path) -> String {
    let mut name = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            name.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(name, "%{byte:02x}");
        }
    }
    if name.len() > LONGEST_NAME {
        name = "%%".to_owned();
        for byte in half_digest(&[path.as_os_str().as_bytes()]) {
            let _ = write!(name, "{byte:02x}");
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_a_name_of_its_own_that_people_can_read() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("/srv/my-pool.1"), "%2fsrv%2fmy-pool.1");
        assert_eq!(name("/a%2fb"), "%2fa%252fb");
        assert_ne!(name("/a/b"), name("/a%2fb"));
        let opened = File::open("/").unwrap();
        let recorded = |path: &str| record(Path::new(path), &opened).unwrap().paths().next();
        assert_eq!(recorded("/srv/pool/"), recorded("/srv//pool"));
        let long = "/a".repeat(150);
        assert!(name(&long).len() < 40 && name(&long) != name(&(long.clone() + "b")));
    }
}
