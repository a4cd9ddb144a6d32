//! Directory volumes of a pool.
//!
//! ```text
//! <pool>/volumes/<volume id>               no pod sees it; the volume's mark is an attribute of it
//! <pool>/volumes/<volume id>/<volume id>   the volume's root, which pods get
//! <pool>/volumes/.new-<volume id>          not a volume yet
//! <pool>/volumes/.gone-<volume id>         a volume that is being removed
//! ```
//!
//! A pod with CAP_SYS_ADMIN can change every attribute of its volume's root, so nothing that the driver relies on is
//! stored there. Both directories get and lose their names in one step.

use super::{Pool, lacking::Debt, list, sync, volume_in};
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

/// Mode of a volume's root, the same as mkfs leaves. A pod's process that does not run as root gets access by
/// `fsGroup`. Other processes of the node cannot reach the root, because only root may enter the pool.
const MODE: Mode = Mode::from_raw_mode(0o755);

/// Timeout of a removal. Callers wait about two minutes for a callout, and retry it.
const REMOVAL: Duration = Duration::from_secs(90);

pub(super) const NEW: &str = ".new-";
pub(super) const GONE: &str = ".gone-";

/// The open root of a volume, and the directory around it. If the root is gone, `root` is the directory around it.
#[derive(Debug)]
pub struct Directory {
    pub(super) root: File,
    pub(super) around: File,
    is_rootless: bool,
}

impl Directory {
    /// Returns the volume's mark; `None` if it was never marked.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when the mark is not UTF-8 or unreadable.
    pub fn mark(&self) -> Result<Option<String>> {
        attribute::read(&self.around, MARK)
    }

    /// Checks that the root exists.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the root is gone.
    pub fn expect_root(&self) -> Result<()> {
        match self.is_rootless {
            true => Err(no_root("or delete the volume")),
            false => Ok(()),
        }
    }

    /// Returns the directory around the root, which is removed together with it.
    #[must_use]
    pub fn outermost(self) -> OwnedFd {
        self.around.into()
    }

    /// Replaces the mark atomically and syncs it.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn set_mark(&self, mark: &(impl Display + ?Sized)) -> Result<()> {
        attribute::write(&self.around, MARK, mark)?;
        sync(&self.around)
    }

    /// Removes the root in one step if it is a subvolume without nested ones; `true` if it is gone. Btrfs has room for
    /// that even when it has none to write a mark (fs/btrfs/ioctl.c, `btrfs_delete_subvolume`, uses the global
    /// reserve). [`Pool::remove_directory`] removes the rest.
    ///
    /// The caller holds the volume's lock and has checked that the volume is not mounted.
    ///
    /// # Errors
    /// Errors of the system calls.
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
    /// Returns the size of a directory volume without a limit of its own: the file system's size, in whole MiB like
    /// every volume's.
    ///
    /// # Errors
    /// As for [`Pool::space`].
    pub fn unlimited(&self) -> Result<Bytes> {
        let Bytes(size) = self.space()?.size;
        Ok(Bytes(size - size % Bytes::MIB.0))
    }

    /// Opens a volume's directory, including one whose removal was begun, and on Btrfs one whose root is gone; `None`
    /// if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when it is not a directory, is a mount point, or was not made by the driver.
    pub fn find_directory(&self, volume: &VolumeId) -> Result<Option<Directory>> {
        match self.open_volume("", volume)? {
            Some(directory) => Ok(Some(directory)),
            None => self.open_volume(GONE, volume),
        }
    }

    /// Opens a volume's directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none; otherwise as for [`Pool::find_directory`].
    pub fn directory(&self, volume: &VolumeId) -> Result<Directory> {
        self.find_directory(volume)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's directory is gone"))
    }

    /// Creates a volume's directory, empty and marked, and syncs it. It appears complete or not at all. No space is
    /// allocated or promised, but the pool must have `size` free.
    ///
    /// The caller holds the volume's lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when the pool has not enough room outside its reserve, [`ErrorKind::Conflict`] when the
    /// volume already exists.
    pub fn create_directory(
        &self,
        volume: &VolumeId,
        size: Bytes,
        mark: &(impl Display + ?Sized),
        reserve: Reserve,
    ) -> Result<()> {
        self.expect_room(size, reserve, Debt::default())?;
        // Left by a process that was killed.
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

    /// Creates a volume's directory under a temporary name, and its root with `make`.
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

    /// Removes the unfinished directory after a failure.
    pub(super) fn give_up(&self, volume: &VolumeId) {
        if let Err(error) = self.discard(NEW, volume) {
            log::warn!("a volume that was not completed stays: {}", error.report());
        }
    }

    /// Renames a finished directory to the volume's id.
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

    /// Removes a volume's directory with its content, if it exists. After the first step it is no volume any more; a
    /// retry continues an interrupted removal.
    ///
    /// The caller holds the volume's lock and has checked that the volume is not mounted. The volume's mark says that
    /// it is being removed, or its root is gone.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while something is mounted inside, [`ErrorKind::TimedOut`] when removal takes longer than a
    /// caller waits, otherwise errors of the system calls.
    pub fn remove_directory(&self, volume: &VolumeId) -> Result<()> {
        // An earlier removal may have left this name.
        self.discard(GONE, volume)?;
        let (name, gone) = (volume.to_string(), format!("{GONE}{volume}"));
        match rustix::fs::renameat(&self.volumes, name, &self.volumes, gone) {
            Ok(()) => {
                sync(&self.volumes)?;
                self.discard(GONE, volume)?;
            }
            Err(Errno::NOENT) => {}
            // The file system may have room only for removals (fs/btrfs/inode.c, `__unlink_start_trans`).
            Err(Errno::NOSPC | Errno::DQUOT) => self.discard("", volume)?,
            Err(error) => return Err(Error::system("remove the volume's directory", error)),
        }
        sync(&self.volumes)
    }

    /// Removes an unfinished directory of a volume, left by a process that was killed. Then no space is promised to it
    /// any more.
    ///
    /// The caller holds the volume's lock.
    ///
    /// # Errors
    /// As for [`Pool::remove_directory`].
    pub fn discard_unfinished(&self, volume: &VolumeId) -> Result<()> {
        self.discard(NEW, volume)?;
        sync(&self.volumes)
    }

    /// Returns unfinished and half removed directories: left by killed processes, or in use by running ones.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn remains(&self) -> Result<Vec<Remains>> {
        let names = list(&self.volumes)?;
        Ok(names
            .iter()
            .filter_map(|name| Remains::named(name))
            .collect())
    }

    /// Removes such a directory. Returns `false` if another process is working on it.
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

    /// Removes the directory with this name, if it exists, and its limit.
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
            // Nothing else may be left of an interrupted removal.
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

/// Whether the root was a subvolume, which is removed before the directory around it. Only limited volumes have a
/// record.
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

/// Opens a directory; `None` if it does not exist.
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

/// Parses the name of an entry of `volumes`: its prefix, and its volume.
pub(super) fn entry(name: &[u8]) -> Option<(&'static str, VolumeId)> {
    [NEW, GONE, ""].into_iter().find_map(|prefix| {
        let volume = volume_in(name.strip_prefix(prefix.as_bytes())?)?;
        Some((prefix, volume))
    })
}

/// A directory that is not a volume yet, or not any more.
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
