//! Volumes that are directories of a pool.
//!
//! ```text
//! <pool>/volumes/<volume id>         the volume's root; its mark is an extended attribute of it
//! <pool>/volumes/.new-<volume id>    not a volume yet
//! <pool>/volumes/.gone-<volume id>   a volume that is being removed
//! ```

use super::{Pool, flags, list, sync, volume_in};
use crate::{
    VolumeId,
    attribute::{self, MARK},
    confine, limit, lock,
    pool::Reserve,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::{
    fs::{Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    fmt::{self, Display},
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// As mkfs leaves the root of a file system: what runs in a pod as another user than root gets in
/// by `fsGroup`. Nobody else on the node comes this far, because the pool lets only root in.
const MODE: Mode = Mode::from_raw_mode(0o755);

/// Callers repeat a call, and wait about two minutes for one.
const REMOVAL: Duration = Duration::from_secs(90);

pub(super) const NEW: &str = ".new-";
pub(crate) const GONE: &str = ".gone-";

/// An open volume directory.
#[derive(Debug)]
pub struct Directory {
    pub(super) file: File,
    /// What holds it, and its name there.
    pub(super) around: File,
    pub(super) name: String,
}

impl Directory {
    /// What the volume says about itself; `None` where nobody ever marked it.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] where the mark is no text or cannot be read.
    pub fn mark(&self) -> Result<Option<String>> {
        attribute::read(&self.file, MARK)
    }

    /// Replaces the mark, durably; a cut leaves the old one or the new one.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn set_mark(&self, mark: &(impl Display + ?Sized)) -> Result<()> {
        self.write(MARK, mark)?;
        sync(&self.file)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Directory> for OwnedFd {
    fn from(directory: Directory) -> OwnedFd {
        directory.file.into()
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

    /// Opens a volume's directory, also one whose removal was begun; `None` where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for what is no directory, or a mount.
    pub fn find_directory(&self, volume: &VolumeId) -> Result<Option<Directory>> {
        match self.open_volume(&volume.to_string())? {
            Some(directory) => Ok(Some(directory)),
            None => self.open_volume(&format!("{GONE}{volume}")),
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
        self.expect_room(size, reserve, Bytes(0))?;
        let failed = |error: Errno| Error::system("make the volume's directory", error);
        let new = format!("{NEW}{volume}");
        match rustix::fs::mkdirat(&self.volumes, &new, Mode::RWXU) {
            // Of a process that was killed.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        let made = self.open_volume(&new).and_then(|directory| {
            let directory = directory.ok_or_else(|| failed(Errno::NOENT))?;
            self.publish(&directory, volume, mark)
        });
        if made.is_err()
            && let Err(error) = self.discard(&new)
        {
            log::warn!("a volume that was not completed stays: {}", error.report());
        }
        made
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
    /// The caller holds the volume's lock and knows that it is mounted nowhere.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while something is mounted inside it, [`ErrorKind::TimedOut`] when there
    /// is more to remove than a caller waits for, otherwise what the system calls say.
    pub fn remove_directory(&self, volume: &VolumeId) -> Result<()> {
        let gone = format!("{GONE}{volume}");
        // What stands in the way of the name is of an earlier removal.
        self.discard(&gone)?;
        let name = volume.to_string();
        let rename = || rustix::fs::renameat(&self.volumes, &name, &self.volumes, &gone);
        let renamed = match rename() {
            // Of one that nobody may change, nor its name.
            Err(Errno::PERM) => {
                if let Some(directory) = self.open_volume(&name)? {
                    directory.drop_flags()?;
                }
                rename()
            }
            renamed => renamed,
        };
        match renamed {
            Ok(()) => {
                sync(&self.volumes)?;
                self.discard(&gone)?;
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::system("remove the volume's directory", error)),
        }
        flags::forget(&self.volumes, &name)?;
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
        self.discard(&remains.name())?;
        if remains.prefix == GONE {
            flags::forget(&self.volumes, &remains.volume.to_string())?;
        }
        sync(&self.volumes)?;
        Ok(true)
    }

    /// Removes what has one of the names of remains, and what limited it.
    pub(super) fn discard(&self, name: &str) -> Result<()> {
        limit::remove(&self.volumes, name, REMOVAL)
    }

    pub(super) fn open_volume(&self, name: &str) -> Result<Option<Directory>> {
        match confine::open(&self.volumes, name, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(file) => {
                let around = self.volumes.try_clone();
                Ok(Some(Directory {
                    file,
                    around: around.map_err(|error| Error::system("open the pool", error))?,
                    name: name.to_owned(),
                }))
            }
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
}

/// A directory that is no volume yet, or no volume any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    volume: VolumeId,
    prefix: &'static str,
}

impl Remains {
    fn named(name: &[u8]) -> Option<Remains> {
        let name = str::from_utf8(name).ok()?;
        let (prefix, volume) = [NEW, GONE]
            .iter()
            .find_map(|prefix| Some((*prefix, name.strip_prefix(prefix)?)))?;
        Some(Remains {
            volume: volume_in(volume.as_bytes())?,
            prefix,
        })
    }

    fn name(&self) -> String {
        format!("{}{}", self.prefix, self.volume)
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
