//! Removing a directory with everything in it, and nothing else.

use crate::confine;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{AtFlags, Dir, FileType, OFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    os::fd::AsFd,
};

/// How many file systems within the file system (Btrfs subvolumes, quota projects) may lie in one
/// another. Directories cannot be moved out of these, so each costs descriptors.
const DEEPEST: u32 = 32;

/// How many passes over a directory may get nowhere, as when a process keeps writing into it or an
/// NFS client keeps the files that are open.
const MOST_IN_VAIN: u32 = 16;

/// Removes the directory `name` of `parent`; one that is not there is removed already.
///
/// Whoever wrote the tree is not trusted: no link is followed, nothing mounted is entered, and a
/// tree of any depth takes two descriptors, because directories that are found deep down are
/// moved up to the top before they are looked into. Cut anywhere, a repetition goes on.
///
/// # Errors
/// [`ErrorKind::Busy`] while something is mounted in the tree; otherwise what the system calls
/// say. What could be removed before is gone.
pub(crate) fn remove(parent: &File, name: &str) -> Result<()> {
    let top = match confine::open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.map_err(failed)?,
    };
    empty(&top, DEEPEST).map_err(failed)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

fn failed(error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::XDEV | Errno::BUSY) => Error::new(
            ErrorKind::Busy,
            "cannot remove the volume: something is mounted inside it; unmount that first",
        )
        .because(error),
        _ => Error::system("remove the volume's files", error),
    }
}

/// Removes what is in `top`. Directories that come up meanwhile are met in a later pass.
fn empty(top: &File, deepest: u32) -> io::Result<()> {
    let (mut lifted, mut in_vain) = (0, 0);
    while in_vain < MOST_IN_VAIN {
        let entries = entries(top)?;
        if entries.is_empty() {
            return Ok(());
        }
        in_vain += 1;
        for (name, kind) in entries {
            if kind != FileType::Directory {
                unlink(top, &name)?;
            } else if remove_directory(top, &name, &mut lifted, deepest)? {
                in_vain = 0;
            }
        }
    }
    Err(Errno::NOTEMPTY.into())
}

/// False: it is still there, because somebody writes into it.
fn remove_directory(top: &File, name: &CStr, lifted: &mut u64, deepest: u32) -> io::Result<bool> {
    if remove_empty(top, name)? {
        return Ok(true);
    }
    let Some(directory) = open(top, name)? else {
        return Ok(true);
    };
    let before = *lifted;
    for (name, kind) in entries(&directory)? {
        if kind != FileType::Directory {
            unlink(&directory, &name)?;
        } else if !lift(&directory, &name, top, lifted)?
            && let Some(inner) = open(&directory, &name)?
        {
            empty(&inner, deepest.checked_sub(1).ok_or(Errno::MLINK)?)?;
            remove_empty(&directory, &name)?;
        }
    }
    Ok(remove_empty(top, name)? || *lifted > before)
}

/// False: it is not empty. What is no directory any more is left to the next pass.
fn remove_empty(parent: &File, name: &CStr) -> io::Result<bool> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Moves a directory up to `top` under a name of ours; `false` where it cannot leave its own.
fn lift(directory: &File, name: &CStr, top: &File, lifted: &mut u64) -> io::Result<bool> {
    loop {
        *lifted += 1;
        let to = format!(".lifted-{lifted}");
        match rustix::fs::renameat(directory, name, top, to) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::XDEV) => return Ok(false),
            // Taken: by whoever wrote the tree, or by a removal that was cut.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn unlink(directory: &File, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // It is a directory by now: the next pass sees that.
        Err(Errno::ISDIR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// `None`: it is gone, or was replaced by something that is no directory.
fn open(directory: &File, name: &CStr) -> io::Result<Option<File>> {
    match confine::open_entry(directory, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(error),
        },
    }
}

/// All entries, read before any is removed: what a removal does to a directory that is being read
/// differs between file systems.
fn entries(directory: &File) -> io::Result<Vec<(CString, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
                match stat {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink, path::Path};

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_tree_goes_and_what_it_links_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let parent = File::open(dir.path()).unwrap();
        let other = dir.path().join("other");
        fs::create_dir_all(other.join("sub")).unwrap();
        fs::write(other.join("sub/file"), "kept").unwrap();
        let tree = dir.path().join("tree");
        for sub in ["a/b/c", "a/b/d/e", ".lifted-1/x", "empty"] {
            fs::create_dir_all(tree.join(sub)).unwrap();
            fs::write(tree.join(sub).join("file"), "gone").unwrap();
        }
        fs::write(tree.join(".lifted-2"), "a file in the way").unwrap();
        for (at, link) in ["up", "a/up", "a/b/c/up"].iter().enumerate() {
            symlink("../".repeat(at + 1) + "other", tree.join(link)).unwrap();
            symlink(&other, tree.join(format!("{link}-absolute"))).unwrap();
        }
        remove(&parent, "tree").unwrap();
        assert_eq!(names(dir.path()), ["other"]);
        assert_eq!(fs::read(other.join("sub/file")).unwrap(), b"kept");
        remove(&parent, "tree").unwrap();
    }

    #[test]
    fn depth_costs_neither_stack_nor_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let parent = File::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let mut at = File::open(dir.path().join("tree")).unwrap();
        // Far longer than any path may be.
        for _ in 0..2500 {
            rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).unwrap();
            at = open(&at, c"d").unwrap().unwrap();
        }
        drop(at);
        remove(&parent, "tree").unwrap();
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn only_a_directory_of_the_parent_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let parent = File::open(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join("other/sub")).unwrap();
        symlink("other", dir.path().join("link")).unwrap();
        for name in ["link", "other/sub", "..", "."] {
            assert!(remove(&parent, name).is_err(), "{name}");
        }
        assert_eq!(names(dir.path()), ["link", "other"]);
        assert_eq!(names(&dir.path().join("other")), ["sub"]);
    }
}
