//! Directories that volumes are mounted on.

use super::{attributes, descriptor_path, remount::remount};
use crate::{
    Uuid,
    block::number::DeviceNumber,
    deadline::Deadline,
    fs::{grow, tree},
    mountinfo::{self, Mount},
};
use flexvol_sdk::{Error, ErrorKind, Result};
use nix::mount::MntFlags;
use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstat,
        fstatvfs, mkdirat, openat, statx, syncfs,
    },
    io::Errno,
};
use std::{
    ffi::OsString,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

/// An existing directory, held by its parent's descriptor and its name.
///
/// The caller chose the directory and its parents are trusted: kubelet's root may be reached through a symbolic link.
/// The last component is not trusted: a symbolic link is refused. Each method opens the directory anew, because a
/// descriptor on the mounted file system would prevent unmounting.
#[derive(Debug)]
pub struct Target {
    parent: OwnedFd,
    name: OsString,
}

/// Duration of retries to unmount a busy mount. A process that only looks at a mount keeps it busy for a moment:
/// another callout that examines the mount, `df`, kubelet's statistics. On an overloaded node that moment lasts until
/// the process is scheduled again.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// Data that must be on disk before a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// The whole file system.
    Filesystem,
    /// No data, because the file system stays mounted.
    Nothing,
}

/// The topmost mount at a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Block devices of the file system. There are several if a pod added devices to a Btrfs. A file system without a
    /// device (tmpfs, NFS) has its anonymous device number here, with major number 0.
    pub devices: Vec<DeviceNumber>,
    /// Whether this mount, or its file system, is read-only.
    pub read_only: bool,
}

impl Target {
    /// Opens a directory; `None` if it or a parent does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the path is relative or has no last component, or when it names a symbolic link or
    /// no directory.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let Some(target) = Target::named(path)? else {
            return Ok(None);
        };
        match target.directory() {
            Ok(_) => Ok(Some(target)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory. Creates it, with mode 0750, if only its last component is missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when a parent is missing; otherwise as [`Target::open`].
    pub fn create(path: &Path) -> Result<Self> {
        let target = Target::named(path)?.ok_or_else(not_there)?;
        match mkdirat(&target.parent, &target.name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::system("make the directory to mount on", error)),
        }
        target.directory()?;
        Ok(target)
    }

    /// Opens the parent only; the last component is not examined.
    pub(super) fn named(path: &Path) -> Result<Option<Self>> {
        let invalid = || {
            Error::new(
                ErrorKind::Invalid,
                "the directory to mount on is not an absolute path to a directory",
            )
            .because(path.display().to_string())
        };
        // `file_name` would ignore a trailing `.`.
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().ends_with(b"/.") {
            return Err(invalid());
        }
        let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, parent, flags, Mode::empty()) {
            Ok(parent) => Ok(Some(Target {
                parent,
                name: name.to_owned(),
            })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Error::system("open the parent of the directory", error)),
        }
    }

    /// Opens the directory, or the root of the mount on it.
    pub(super) fn directory(&self) -> Result<OwnedFd> {
        match self.open_last(OFlags::PATH) {
            Ok(directory) => Ok(directory),
            Err(Errno::NOENT) => Err(not_there()),
            // With O_PATH and O_NOFOLLOW the link itself would be opened, if O_DIRECTORY did not prevent it.
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Error::new(
                ErrorKind::Invalid,
                "the directory to mount on is a symbolic link or no directory",
            )),
            Err(error) => Err(Error::system("open the directory to mount on", error)),
        }
    }

    /// Opens the same directory for ioctls.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn root(&self) -> Result<OwnedFd> {
        self.open_last(OFlags::RDONLY)
            .map_err(|error| Error::system("open the mounted file system", error))
    }

    fn open_last(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.parent, &self.name, flags, Mode::empty())
    }

    /// Returns the devices of the mount on the directory, as in [`Mounted::devices`]; none if nothing is mounted. Does
    /// nothing that lets the file system wait for its device.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn devices(&self) -> Result<Vec<DeviceNumber>> {
        let directory = self.directory()?;
        if !self.is_mount_root(&directory)? {
            return Ok(Vec::new());
        }
        match fstat(&directory) {
            Ok(stat) => Ok(self.block_devices(DeviceNumber::from_raw(stat.st_dev))),
            // A dead file system answers nothing; the kernel's mount table still has its device number.
            Err(_) => {
                let mount = table_entry(&directory)?;
                Ok(mount.map(|mount| mount.number).into_iter().collect())
            }
        }
    }

    /// Returns the UUID of the Btrfs that contains the directory, or that is mounted on it. `None` for another file
    /// system or one that does not answer.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn btrfs(&self) -> Result<Option<Uuid>> {
        // `fstat` fails for an XFS that has shut down and for a FUSE without its server (`xfs_vn_getattr`).
        let Ok(stat) = fstat(self.directory()?) else {
            return Ok(None);
        };
        // Of the file systems on block devices, only Btrfs has an anonymous number.
        if DeviceNumber::from_raw(stat.st_dev).major != 0 {
            return Ok(None);
        }
        let root = self.open_last(OFlags::RDONLY).ok();
        Ok(root.and_then(|root| grow::btrfs_uuid(root.as_fd())))
    }

    /// Returns the mount on the directory; `None` if nothing is mounted. On some kernels this waits for the file
    /// system's device.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn mounted(&self) -> Result<Option<Mounted>> {
        self.mounted_from(self.devices()?)
    }

    /// Returns the mount on the directory, whose `devices` [`Target::devices`] returned; `None` if nothing is mounted.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn mounted_from(&self, devices: Vec<DeviceNumber>) -> Result<Option<Mounted>> {
        if devices.is_empty() {
            return Ok(None);
        }
        let directory = self.directory()?;
        match fstatvfs(&directory) {
            Ok(statvfs) => Ok(Some(Mounted {
                devices,
                read_only: statvfs.f_flag.contains(StatVfsMountFlags::RDONLY),
            })),
            Err(_) => Ok(table_entry(&directory)?.map(|mount| Mounted {
                devices: vec![mount.number],
                read_only: mount.read_only || mount.superblock_read_only,
            })),
        }
    }

    /// Returns the mount table's entry for the mount on the directory; `None` if nothing is mounted. Takes longer the
    /// more mounts the node has.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn mount(&self) -> Result<Option<Mount>> {
        let directory = self.directory()?;
        match self.is_mount_root(&directory)? {
            true => table_entry(&directory),
            false => Ok(None),
        }
    }

    /// Whether this directory, or the root of the mount on it, is the directory `other`.
    ///
    /// # Errors
    /// When one of them cannot be examined.
    pub fn shows(&self, other: BorrowedFd<'_>) -> Result<bool> {
        let failed = |error| Error::system("examine the directory", error);
        let (here, other) = (
            fstat(self.directory()?).map_err(failed)?,
            fstat(other).map_err(failed)?,
        );
        Ok((here.st_dev, here.st_ino) == (other.st_dev, other.st_ino))
    }

    /// Returns the devices of a mount. Btrfs has an anonymous device number and is asked for its devices.
    fn block_devices(&self, number: DeviceNumber) -> Vec<DeviceNumber> {
        if number.major == 0
            && let Ok(root) = self.open_last(OFlags::RDONLY)
            && let found = grow::btrfs_devices(root.as_fd())
            && !found.is_empty()
        {
            return found;
        }
        vec![number]
    }

    fn is_mount_root(&self, directory: &OwnedFd) -> Result<bool> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        if let Ok(answer) = statx(directory, c"", flags, StatxFlags::empty())
            && answer
                .stx_attributes_mask
                .contains(StatxAttributes::MOUNT_ROOT)
        {
            return Ok(answer.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
        }
        // Before Linux 5.8, or on a dead file system: a mount point's mount id differs from its parent's.
        Ok(id_of(directory)? != id_of(&self.parent)?)
    }

    /// Whether the directory, or the root of the mount on it, has no entries.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn is_empty(&self) -> Result<bool> {
        let unreadable = |error| Error::system("read the directory to mount on", error);
        let directory = self.open_last(OFlags::RDONLY);
        let directory = directory.map_err(|error| unreadable(error.into()))?;
        tree::is_empty(&directory).map_err(unreadable)
    }

    /// Makes the topmost mount read-only or writable. Its file system and that one's other mounts do not change.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when it is to become read-only while files are open for writing. [`ErrorKind::Invalid`] when
    /// nothing is mounted there.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let directory = self.directory()?;
        if !self.is_mount_root(&directory)? {
            return Err(Error::new(
                ErrorKind::Invalid,
                "nothing is mounted on the directory",
            ));
        }
        let result = match attributes::set_read_only(directory.as_fd(), read_only) {
            Err(Errno::NOSYS) => remount(&directory, read_only),
            result => result,
        };
        let doing = match read_only {
            true => "make the mount read-only",
            false => "make the mount writable",
        };
        result.map_err(|error| Error::system(doing, error))
    }

    /// Writes all dirty data of the file system to its device.
    ///
    /// # Errors
    /// When data could not be written, now or since an error was last reported.
    pub fn sync(&self) -> Result<()> {
        self.open_last(OFlags::RDONLY)
            .and_then(syncfs)
            .map_err(|error| Error::system("write the volume's data", error))
    }

    /// See [`super::unmount`] and [`super::unbind`].
    pub(super) fn unmount(&self, flush: Flush) -> Result<bool> {
        match self.directory() {
            Ok(directory) => {
                if !self.is_mount_root(&directory)? {
                    return Ok(false);
                }
            }
            // Nothing can be mounted on a path that is missing or not a directory.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                return Ok(false);
            }
            // Opening a dead file system may fail; try to unmount it anyway.
            Err(error) => log::info!("unmounting what cannot be opened: {}", error.report()),
        }
        let path = descriptor_path(&self.parent).join(&self.name);
        let mut deadline = Deadline::after(BUSY_RETRY);
        // The kernel reports a write error only once.
        let mut synced = Ok(());
        loop {
            let now = self.flush(flush);
            synced = synced.and(now);
            match nix::mount::umount2(&path, MntFlags::UMOUNT_NOFOLLOW) {
                Ok(()) => break,
                Err(nix::Error::EBUSY) if deadline.pause() => {}
                Err(nix::Error::EBUSY) => return Err(still_used(synced)),
                Err(error) => return Err(Error::system("unmount the volume", error)),
            }
        }
        synced.map(|()| true).map_err(|error| {
            Error::new(
                ErrorKind::Storage,
                format!("unmounted the volume, but not all of its data was written: {error}"),
            )
            .because(error)
        })
    }

    fn flush(&self, flush: Flush) -> rustix::io::Result<()> {
        match (flush, self.open_last(OFlags::RDONLY)) {
            (Flush::Nothing, _) => Ok(()),
            (Flush::Filesystem, Ok(root)) => syncfs(root),
            // The server is gone, and the data with it.
            (Flush::Filesystem, Err(error @ (Errno::NOTCONN | Errno::STALE))) => {
                log::info!("unmounting a dead file system: {error}");
                Ok(())
            }
            // XFS that has shut down cannot even be opened: data that it had not written is lost.
            (Flush::Filesystem, Err(error)) => Err(error),
        }
    }
}

fn still_used(synced: rustix::io::Result<()>) -> Error {
    let why = "cannot unmount the volume: something still uses it";
    match synced {
        Ok(()) => Error::new(ErrorKind::Busy, why),
        Err(error) => Error::new(
            ErrorKind::Busy,
            format!("{why}, and not all of its data was written: {error}"),
        )
        .because(error),
    }
}

fn not_there() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the directory to mount on is not there",
    )
}

fn id_of(file: &impl AsRawFd) -> Result<u64> {
    let failed = |error| Error::system("ask which mount a directory is on", error);
    mountinfo::id_of(file).map_err(failed)
}

/// Returns the mount table's entry for the mount that an open file is on.
pub(crate) fn table_entry(mount: &impl AsRawFd) -> Result<Option<Mount>> {
    let id = id_of(mount)?;
    Ok(mountinfo::read()?.into_iter().find(|mount| mount.id == id))
}
