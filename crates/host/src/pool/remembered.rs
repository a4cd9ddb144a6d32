//! The pool id that the node remembers for a path.
//!
//! If a data disk is missing, its mount point shows the directory below. That can be a pool too, created before the
//! disk was mounted or while it was missing. It would have none of the node's volumes, and new ones would be created on
//! the wrong disk. A pool in memory has a new id after each boot and is not remembered.

use super::PoolId;
use crate::{
    remembered::{Record, Words},
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
/// counts, which is on the root's file system. The other one is for nodes where `/etc` is read-only or is made anew at
/// each boot, and for records of before `/etc` had any.
const DIRECTORIES: [&str; 2] = ["/etc/flexvol/directories", "/var/lib/flexvol/directories"];

/// Maximum length of a record's name. File systems allow 255 bytes.
const LONGEST_NAME: usize = 200;

const WORDS: Words<'_> = Words {
    another: "the pool is another one than the node had at its path: the node's has",
    disks: "is the disk of the pool mounted",
    // The path is not for pod events.
    again: "`flexvol pool init` with its path and --replace",
};

/// `f_type` of tmpfs and ramfs (linux/magic.h): file systems in memory.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Checks that the pool is the one that the node remembers at the path. The first one is remembered.
pub(super) fn expect(path: &Path, root: &File, found: PoolId) -> Result<()> {
    let record = record(path)?;
    let is_recorded = record.expect(found, &WORDS)?;
    // The first use, for example after an upgrade. Best effort: a failure is only logged.
    if !is_recorded
        && let Err(error) = is_in_memory(root).and_then(|is_in_memory| match is_in_memory {
            true => Ok(()),
            false => record.keep_first(found),
        })
    {
        log::debug!("the node does not remember its pool: {}", error.report());
    }
    Ok(())
}

/// Whether the node remembers another pool at the path than the one that is there, or its record is damaged.
pub(super) fn is_another(path: &Path, found: PoolId) -> bool {
    record(path)
        .and_then(|record| record.expect(found, &WORDS))
        .is_err()
}

/// Whether all records of the pool are on its own file system, and that is not the root's: while its disk is missing
/// the node does not remember it.
pub(super) fn goes_with(path: &Path, root: &File) -> bool {
    let device = |path: PathBuf| Some(fs::metadata(path).ok()?.dev());
    let own = root.metadata().ok().map(|root| root.dev());
    let Ok(record) = record(path) else {
        return false;
    };
    let mut places = record.paths().filter_map(device).peekable();
    own != device("/".into()) && places.peek().is_some() && places.all(|place| Some(place) == own)
}

/// Checks that a pool made at this path does not replace another remembered one.
pub(super) fn expect_not_replacing(path: &Path, found: Option<PoolId>) -> Result<()> {
    let shown = path.display();
    let again = format!("`flexvol pool init {shown} --replace`");
    let known = record(path)?.read().map_err(|error| {
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
    match is_in_memory(root)? {
        true => record(path)?.forget(),
        false => record(path)?.keep(id),
    }
}

fn is_in_memory(root: &File) -> Result<bool> {
    let found = rustix::fs::fstatfs(root)
        .map_err(|error| Error::system("ask for the pool's file system", error))?;
    Ok(IN_MEMORY.contains(&found.f_type))
}

fn record(path: &Path) -> Result<Record> {
    let path =
        path::absolute(path).map_err(|error| Error::system("tell the pool's path", error))?;
    // Removes a trailing slash.
    let path: PathBuf = path.components().collect();
    Ok(Record::at(&DIRECTORIES, name_of(&path)))
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
        let recorded = |path: &str| record(Path::new(path)).unwrap().paths().next();
        assert_eq!(recorded("/srv/pool/"), recorded("/srv//pool"));
        let long = "/a".repeat(150);
        assert!(name(&long).len() < 40 && name(&long) != name(&(long.clone() + "b")));
    }
}
