//! Volumes that are directories of a pool.
//!
//! ```text
//! <pool>/volumes/<volume id>               no pod sees it; the volume's mark is an attribute of it
//! <pool>/volumes/<volume id>/<volume id>   the volume's root, which pods get
//! <pool>/volumes/.new-<volume id>          not a volume yet
//! <pool>/volumes/.gone-<volume id>         a volume that is being removed
//! ```
//!
//! A pod with CAP_SYS_ADMIN can change every attribute of its volume's root, so nothing that the driver
//! goes by is kept there. Both directories get their name, and lose it, in one step.

use super::{Pool, lacking::Owed, list, sync, volume_in};
use crate::{
    VolumeId,
    fs::{
        attribute::{self, MARK},
        confine, quota, subvolume,
    },
    lock,
    pool::Reserve,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::{
    fs::{Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    ffi::CString,
    fmt::{self, Display},
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// As mkfs leaves the root of a file system: what runs in a pod as another user than root gets in
/// by `fsGroup`. Nobody else on the node comes this far, because the pool lets only root in.
const MODE: Mode = Mode::from_raw_mode(0o755);

/// Callers repeat a call, and wait about two minutes for one.
const REMOVAL: Duration = Duration::from_secs(90);

pub(super) const NEW: &str = ".new-";
pub(super) const GONE: &str = ".gone-";

/// The open root of a volume, and the directory that holds it, which stands for the root where that is gone.
#[derive(Debug)]
pub struct Directory {
    pub(super) root: File,
    pub(super) around: File,
    is_rootless: bool,
}

impl Directory {
    /// What the volume says about itself; `None` where nobody ever marked it.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] where the mark is no text or cannot be read.
    pub fn mark(&self) -> Result<Option<String>> {
        attribute::read(&self.around, MARK)
    }

    /// Fails where the root is gone.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`].
    pub fn expect_root(&self) -> Result<()> {
        match self.is_rootless {
            true => Err(no_root("or delete the volume")),
            false => Ok(()),
        }
    }

    /// The directory that holds the root, and goes with it.
    #[must_use]
    pub fn outermost(self) -> OwnedFd {
        self.around.into()
    }

    /// Replaces the mark, durably; a cut leaves the old one or the new one.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn set_mark(&self, mark: &(impl Display + ?Sized)) -> Result<()> {
        attribute::write(&self.around, MARK, mark)?;
        sync(&self.around)
    }

    /// Removes the root in one step, if it is a subvolume and no other one is in it, or is gone already. Btrfs has room for that where
    /// it has none for a mark (fs/btrfs/ioctl.c, `btrfs_delete_subvolume`, takes it from the global reserve).
    /// [`Pool::remove_directory`] removes the rest.
    ///
    /// The caller holds the volume's lock and knows that it is mounted nowhere.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn remove_root(&self, volume: &VolumeId) -> Result<bool> {
        let failed = |error: io::Error| Error::system("remove the volume's directory", error);
        let name = CString::new(volume.to_string()).map_err(|error| failed(error.into()))?;
        if self.is_rootless {
            return Ok(true);
        }
        Ok(subvolume::is_one(&self.root).map_err(failed)?
            && subvolume::remove(&self.around, &name, &self.root).map_err(failed)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

impl From<Directory> for OwnedFd {
    fn from(directory: Directory) -> OwnedFd {
        directory.root.into()
    }
}

impl Pool {
    /// The size of a volume that is a directory without a limit of its own: that of the file
    /// system, in whole MiB as every volume's.
    ///
    /// # Errors
    /// As for [`Pool::space`].
    pub fn unlimited(&self) -> Result<Bytes> {
        let Bytes(size) = self.space()?.size;
        Ok(Bytes(size - size % Bytes::MIB.0))
    }

    /// Opens a volume's directory, also one whose removal was begun, and on Btrfs one whose root is gone; `None`
    /// where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for what is no directory, a mount, or was not made here.
    pub fn find_directory(&self, volume: &VolumeId) -> Result<Option<Directory>> {
        match self.open_volume("", volume)? {
            Some(directory) => Ok(Some(directory)),
            None => self.open_volume(GONE, volume),
        }
    }

    /// Opens a volume's directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none; otherwise as for [`Pool::find_directory`].
    pub fn directory(&self, volume: &VolumeId) -> Result<Directory> {
        self.find_directory(volume)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's directory is gone"))
    }

    /// Makes a volume's directory, empty, marked and on disk; it appears complete or not at all.
    /// Nothing is allocated for it: the pool must have `size` free, and promises nothing.
    ///
    /// The caller holds the volume's lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where the pool has no room for it outside its reserve, and
    /// [`ErrorKind::Conflict`] where the volume is already there.
    pub fn create_directory(
        &self,
        volume: &VolumeId,
        size: Bytes,
        mark: &(impl Display + ?Sized),
        reserve: Reserve,
    ) -> Result<()> {
        self.expect_room(size, reserve, Owed::default())?;
        // Of a process that was killed.
        self.discard(NEW, volume)?;
        let make = |around: &File, name: &str| {
            rustix::fs::mkdirat(around, name, Mode::RWXU)
                .map_err(|error| Error::system("make the volume's directory", error))
        };
        let made = self.begin(volume, &make);
        let made = made.and_then(|directory| self.publish(&directory, volume, mark));
        if made.is_err() {
            self.give_up(volume);
        }
        made
    }

    /// Makes a volume's directory under another name, and its root with `make`.
    pub(super) fn begin(
        &self,
        volume: &VolumeId,
        make: &dyn Fn(&File, &str) -> Result<()>,
    ) -> Result<Directory> {
        let failed = |error: Errno| Error::system("make the volume's directory", error);
        let new = format!("{NEW}{volume}");
        rustix::fs::mkdirat(&self.volumes, &new, Mode::RWXU).map_err(failed)?;
        let around = open(&self.volumes, &new)?.ok_or_else(|| failed(Errno::NOENT))?;
        let name = volume.to_string();
        make(&around, &name)?;
        let root = open(&around, &name)?.ok_or_else(|| failed(Errno::NOENT))?;
        Ok(Directory {
            root,
            around,
            is_rootless: false,
        })
    }

    /// After a failure.
    pub(super) fn give_up(&self, volume: &VolumeId) {
        if let Err(error) = self.discard(NEW, volume) {
            log::warn!("a volume that was not completed stays: {}", error.report());
        }
    }

    /// Makes a directory that was made under another name the volume's.
    pub(super) fn publish(
        &self,
        directory: &Directory,
        volume: &VolumeId,
        mark: &(impl Display + ?Sized),
    ) -> Result<()> {
        let failed = |error: Errno| Error::system("make the volume's directory", error);
        rustix::fs::fchmod(directory, MODE).map_err(failed)?;
        sync(&directory.root)?;
        directory.set_mark(mark)?;
        let new = format!("{NEW}{volume}");
        let name = volume.to_string();
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.volumes, &new, &self.volumes, name, flags) {
            Ok(()) => sync(&self.volumes),
            Err(Errno::EXIST) => Err(Error::new(
                ErrorKind::Conflict,
                "the volume already has a directory",
            )),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes a volume's directory with everything in it, if it is there. From the first step on
    /// nobody finds it as a volume; a removal that was cut goes on where it was.
    ///
    /// The caller holds the volume's lock and knows that it is mounted nowhere. The volume's mark says what goes on,
    /// or its root is gone.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while something is mounted inside it, [`ErrorKind::TimedOut`] when there
    /// is more to remove than a caller waits for, otherwise what the system calls say.
    pub fn remove_directory(&self, volume: &VolumeId) -> Result<()> {
        // What stands in the way of the name is of an earlier removal.
        self.discard(GONE, volume)?;
        let (name, gone) = (volume.to_string(), format!("{GONE}{volume}"));
        match rustix::fs::renameat(&self.volumes, name, &self.volumes, gone) {
            Ok(()) => {
                sync(&self.volumes)?;
                self.discard(GONE, volume)?;
            }
            Err(Errno::NOENT) => {}
            // There may be room for removals alone (fs/btrfs/inode.c, `__unlink_start_trans`).
            Err(Errno::NOSPC | Errno::DQUOT) => self.discard("", volume)?,
            Err(error) => return Err(Error::system("remove the volume's directory", error)),
        }
        sync(&self.volumes)
    }

    /// Removes what a process that was killed left of a volume that it was making, if anything; then nothing is
    /// promised to it any more.
    ///
    /// The caller holds the volume's lock.
    ///
    /// # Errors
    /// As for [`Pool::remove_directory`].
    pub fn discard_unfinished(&self, volume: &VolumeId) -> Result<()> {
        self.discard(NEW, volume)?;
        sync(&self.volumes)
    }

    /// What processes that were killed left of directory volumes, and what others work on now.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn remains(&self) -> Result<Vec<Remains>> {
        let names = list(&self.volumes)?;
        Ok(names
            .iter()
            .filter_map(|name| Remains::named(name))
            .collect())
    }

    /// Finishes what a process that was killed left; false where another process works on it.
    ///
    /// # Errors
    /// As for [`Pool::remove_directory`].
    pub fn clear(&self, remains: &Remains) -> Result<bool> {
        let _lock = match lock::volume(&remains.volume, Duration::ZERO) {
            Err(error) if error.kind() == ErrorKind::Busy => return Ok(false),
            lock => lock?,
        };
        self.discard(remains.prefix, &remains.volume)?;
        sync(&self.volumes)?;
        Ok(true)
    }

    /// Removes what is called so, if it is there, and what limited it.
    pub(super) fn discard(&self, prefix: &str, volume: &VolumeId) -> Result<()> {
        quota::remove(&self.volumes, prefix, volume, REMOVAL)
    }

    pub(super) fn open_volume(&self, prefix: &str, volume: &VolumeId) -> Result<Option<Directory>> {
        let Some(around) = open(&self.volumes, &format!("{prefix}{volume}"))? else {
            return Ok(None);
        };
        let failed = |error: io::Error| Error::system("open the volume's directory", error);
        let root = open(&around, &volume.to_string())?;
        let is_rootless = root.is_none();
        let root = match root {
            Some(root) => root,
            // Of a removal that was cut nothing else may be left.
            None if prefix == GONE || is_of_subvolume(&around)? => {
                around.try_clone().map_err(failed)?
            }
            None => return Err(no_root("or remove by hand the directory that it was in")),
        };
        Ok(Some(Directory {
            root,
            around,
            is_rootless,
        }))
    }
}

/// Whether the root was a subvolume, which goes before the directory around it: only limited ones have a record.
fn is_of_subvolume(around: &File) -> Result<bool> {
    let is_btrfs = subvolume::is_btrfs(around)
        .map_err(|error| Error::system("open the volume's directory", error))?;
    Ok(is_btrfs && quota::Record::of(around)?.is_some())
}

fn no_root(or: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the volume's directory has no root in it: it was taken away, or a removal of it was cut; put it back, {or}"
        ),
    )
}

/// `None` where there is no such directory.
fn open(parent: &File, name: &str) -> Result<Option<File>> {
    match confine::open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => Ok(None),
            Some(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Err(Error::new(
                ErrorKind::Conflict,
                "the volume is not a plain directory of its pool, so it is left alone",
            )
            .because(error)),
            _ => Err(Error::system("open the volume's directory", error)),
        },
    }
}

/// What an entry of `volumes` is of directory volumes: what its name begins with, and whose it is.
pub(super) fn entry(name: &[u8]) -> Option<(&'static str, VolumeId)> {
    [NEW, GONE, ""].into_iter().find_map(|prefix| {
        let volume = volume_in(name.strip_prefix(prefix.as_bytes())?)?;
        Some((prefix, volume))
    })
}

/// A directory that is no volume yet, or no volume any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    volume: VolumeId,
    prefix: &'static str,
}

impl Remains {
    fn named(name: &[u8]) -> Option<Remains> {
        let (prefix, volume) = entry(name).filter(|(prefix, _)| !prefix.is_empty())?;
        Some(Remains { volume, prefix })
    }
}

impl fmt::Display for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.prefix {
            NEW => "which was not completed",
            _ => "whose removal was cut short",
        };
        write!(f, "what is left of volume {}, {what}", self.volume)
    }
}
