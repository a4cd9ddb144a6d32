//! Removes a directory with everything in it, and nothing else.

#[cfg(test)]
mod tests;

use crate::{
    fs::{confine, immutable, subvolume},
    random,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::AsFd,
    ptr,
    time::{Duration, Instant},
};

/// Depth to which directories that cannot be moved (those of other quota projects, encrypted ones without their key)
/// are removed recursively, at the cost of file descriptors. Deeper ones are removed by [`Removal::remove_bottom_up`].
const DEEPEST: u32 = 32;

/// Passes over a directory without progress before the removal gives up: an NFS client keeps open files under other
/// names.
const MOST_IN_VAIN: u32 = 16;

/// Removes the directory `name` of `parent`. A missing directory counts as removed. The tree's content is not trusted:
/// no link is followed and no mount point is entered. A tree of any depth or width takes two file descriptors and
/// little memory, because nested directories are moved to the top before they are emptied. An interrupted removal can
/// be repeated.
///
/// # Errors
/// [`ErrorKind::Busy`] while something is mounted in the tree, [`ErrorKind::TimedOut`] after `time`; otherwise the
/// errors of the system calls. What could be removed before is gone.
pub(crate) fn remove(parent: &File, name: &str, time: Duration) -> Result<()> {
    let directory = match confine::open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.map_err(failed)?,
    };
    let emptied = empty(&directory, time);
    // An empty directory can be removed even where it cannot be listed.
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => emptied.and(Err(failed(error.into()))),
    }
}

/// Removes everything in a directory, as [`remove`] does.
///
/// # Errors
/// As for [`remove`].
pub(crate) fn empty(top: &File, time: Duration) -> Result<()> {
    // Shortened, because short names take less room.
    let moved_up = u128::from_ne_bytes(random::bytes()?) >> 96;
    let mut removal = Removal {
        end: Instant::now() + time,
        moved_up,
        root: top,
    };
    removal.empty(top, DEEPEST).map_err(failed)
}

fn failed(error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::XDEV | Errno::BUSY) => Error::new(
            ErrorKind::Busy,
            "cannot remove the volume: something is mounted inside it; unmount that first",
        )
        .because(error),
        Some(Errno::TIMEDOUT) => Error::new(
            ErrorKind::TimedOut,
            "the volume's files are still being removed; the next call goes on with it",
        ),
        _ => Error::system("remove the volume's files", error),
    }
}

struct Removal<'a> {
    end: Instant,
    /// Directory whose content is removed.
    root: &'a File,
    /// Number in the last name tried for a directory that is moved up. Its start is random: a pod that writes into the
    /// tree could otherwise have taken millions of names.
    moved_up: u128,
}

impl Removal<'_> {
    /// Removes the content of `top`. File systems differ in what they list of a directory that changes, so it is read
    /// until nothing is left.
    fn empty(&mut self, top: &File, deepest: u32) -> io::Result<()> {
        for _ in 0..MOST_IN_VAIN {
            while self.pass(top, deepest)? {}
            if is_empty(top)? {
                return Ok(());
            }
        }
        Err(Errno::NOTEMPTY.into())
    }

    /// Goes through `top` once. Returns whether directories became fewer or less deep.
    fn pass(&mut self, top: &File, deepest: u32) -> io::Result<bool> {
        let mut progress = false;
        for entry in Dir::read_from(top)? {
            let entry = entry?;
            match self.kind(top, &entry)? {
                Some(FileType::Directory) => {
                    progress |= self.remove_directory(top, entry.file_name(), deepest)?;
                }
                Some(_) => unlink(top, entry.file_name())?,
                None => {}
            }
        }
        Ok(progress)
    }

    /// Removes a directory, or makes it smaller. False: no progress, because another process writes into it.
    fn remove_directory(&mut self, top: &File, name: &CStr, deepest: u32) -> io::Result<bool> {
        if remove_empty(top, name)? {
            return Ok(true);
        }
        let Some(directory) = open(top, name)? else {
            return Ok(true);
        };
        if subvolume::is_one(&directory)? {
            if subvolume::remove(top, name, &directory)? {
                return Ok(true);
            }
            // Its content cannot be moved out of it, so it must not lie deep itself.
            if !ptr::eq(top, self.root) && self.move_up(top, name, self.root)? {
                return Ok(true);
            }
        }
        let before = self.moved_up;
        let mut progress = false;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            match self.kind(&directory, &entry)? {
                None => {}
                Some(FileType::Directory) => {
                    if !self.move_up(&directory, name, top)?
                        && let Some(inner) = open(&directory, name)?
                    {
                        // A read-only subvolume cannot be moved. It is removed here, or made writable and moved.
                        if subvolume::is_one(&inner)? {
                            progress |= subvolume::remove(&directory, name, &inner)?
                                || self.move_up(&directory, name, top)?;
                            continue;
                        }
                        match deepest.checked_sub(1) {
                            Some(deepest) => self.empty(&inner, deepest)?,
                            None => self.remove_bottom_up(inner)?,
                        }
                        remove_empty(&directory, name)?;
                    }
                }
                Some(_) => unlink(&directory, name)?,
            }
        }
        Ok(remove_empty(top, name)? || progress || self.moved_up != before)
    }

    /// Removes the content of `top` from the deepest directory up, with two descriptors and without moving anything. If
    /// another process moves a directory meanwhile, `..` leads elsewhere; the rest is then left to the next pass.
    fn remove_bottom_up(&mut self, top: File) -> io::Result<()> {
        let mut above = Vec::new();
        let mut at = top;
        loop {
            if let Some(inner) = self.first_full(&at)? {
                above.push(identity(&at)?);
                at = inner;
                continue;
            }
            let Some(expected) = above.pop() else {
                return Ok(());
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = File::from(rustix::fs::openat(&at, "..", flags, Mode::empty())?);
            if identity(&parent)? != expected {
                return Ok(());
            }
            at = parent;
        }
    }

    /// Removes entries of a directory until it finds a subdirectory that is not empty, and returns that.
    fn first_full(&self, directory: &File) -> io::Result<Option<File>> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            match self.kind(directory, &entry)? {
                None => {}
                Some(FileType::Directory) if remove_empty(directory, name)? => {}
                Some(FileType::Directory) => match open(directory, name)? {
                    None => {}
                    found => return Ok(found),
                },
                Some(_) => unlink(directory, name)?,
            }
        }
        Ok(None)
    }

    /// Returns the type of an entry; `None` for an entry that is not to be removed. Fails with ETIMEDOUT after the
    /// deadline.
    fn kind(&self, directory: &File, entry: &DirEntry) -> io::Result<Option<FileType>> {
        self.expect_time()?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(None);
        }
        match entry.file_type() {
            FileType::Unknown => {
                match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
                    Err(Errno::NOENT) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            kind => Ok(Some(kind)),
        }
    }

    fn expect_time(&self) -> io::Result<()> {
        match Instant::now() >= self.end {
            true => Err(Errno::TIMEDOUT.into()),
            false => Ok(()),
        }
    }

    /// Moves a directory up to `top` under a name of the driver; `false` where it cannot be moved.
    fn move_up(&mut self, directory: &File, name: &CStr, top: &File) -> io::Result<bool> {
        loop {
            self.moved_up = self.moved_up.wrapping_add(1);
            let to = format!(".lifted-{}", self.moved_up);
            match insist(directory, name, || {
                rustix::fs::renameat(directory, name, top, &to)
            }) {
                Ok(()) | Err(Errno::NOENT) => return Ok(true),
                // The directory is of another project or subvolume, or a read-only subvolume; or `top` has no room for
                // another name, or cannot have another directory, while removing its content in place makes room; or it
                // is encrypted and its key is not loaded: such a name can be removed but not renamed
                // (`fscrypt_prepare_rename`).
                Err(
                    Errno::XDEV
                    | Errno::ROFS
                    | Errno::NOSPC
                    | Errno::DQUOT
                    | Errno::MLINK
                    | Errno::NOKEY,
                ) => return Ok(false),
                // The name is taken: by a pod, or by a removal that was interrupted.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => self.expect_time()?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn identity(directory: &File) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn remove_entry(directory: &File, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
    insist(directory, name, || {
        rustix::fs::unlinkat(directory, name, flags)
    })
}

/// Makes a change to an entry, even if flags of the entry or its directory forbid it.
fn insist(
    directory: &File,
    name: &CStr,
    change: impl Fn() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    match change() {
        Err(Errno::PERM)
            if immutable::clear_entry_flags(directory, name).is_ok_and(|changed| changed) =>
        {
            change()
        }
        result => result,
    }
}

/// Removes an empty directory. False: it is not empty. An entry that is no directory any more is left to the next pass.
fn remove_empty(parent: &File, name: &CStr) -> io::Result<bool> {
    match remove_entry(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn unlink(directory: &File, name: &CStr) -> io::Result<()> {
    match remove_entry(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // The entry has become a directory: the next pass finds it.
        Err(Errno::ISDIR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory. `None`: it is gone, or was replaced by something else.
fn open(directory: &File, name: &CStr) -> io::Result<Option<File>> {
    match confine::open_entry(directory, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(error),
        },
    }
}

pub(crate) fn is_empty(directory: impl AsFd) -> io::Result<bool> {
    for entry in Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
