//! Image files of volumes.

use crate::fs::{
    attribute::{self, MARK},
    confine,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    fmt::Display,
    fs::{File, Metadata},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
};

/// Allocation of a volume's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// All blocks are allocated in advance: a full pool cannot take them away.
    Full,
    /// Blocks are allocated when they are written; a write to a full pool fails with an I/O error.
    Thin,
}

/// Identity of a file, from `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub number: u64,
}

impl Inode {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Inode::told(&metadata))
    }

    fn told(metadata: &Metadata) -> Self {
        Inode {
            device: metadata.dev(),
            number: metadata.ino(),
        }
    }
}

/// An open image: a regular file, owned by root, with exactly one name.
#[derive(Debug)]
pub struct Image {
    file: File,
    inode: Inode,
}

impl Image {
    /// Opens an image for reading; `None` if `name` does not exist.
    ///
    /// For reading, because open(2) for writing waits while the file system is frozen, even if there is no such file
    /// (fs/namei.c, `path_openat`). [`Image::reopen`] opens it for changes.
    pub(crate) fn open(volumes: &File, name: &str) -> Result<Option<Self>> {
        let failed = |error: io::Error| Error::system("open the volume's image", error);
        // A FIFO would be waited for without O_NONBLOCK, and a lease, which another process' `find` may hold, must be.
        let opened = match confine::open(volumes, name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                confine::open(volumes, name, OFlags::RDONLY)
            }
            opened => opened,
        };
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error)
                if [Errno::LOOP, Errno::XDEV, Errno::ISDIR, Errno::NXIO]
                    .contains(&Errno::from_io_error(&error).unwrap_or(Errno::IO)) =>
            {
                return Err(unfit("is not a plain file").because(error));
            }
            result => result.map_err(failed)?,
        };
        let inode = Inode::of(&file).map_err(failed)?;
        let image = Image { file, inode };
        Ok(image.is_there()?.then_some(image))
    }

    /// Whether the image still has its name. Checks its type and permissions, too.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] unless it is a regular file, owned by root, with one name.
    pub fn is_there(&self) -> Result<bool> {
        let metadata = self.metadata()?;
        if !metadata.is_file() {
            return Err(unfit("is not a plain file"));
        }
        if metadata.nlink() > 1 {
            return Err(
                unfit("has a second name").because(format!("{} hard links", metadata.nlink()))
            );
        }
        if metadata.nlink() == 1 && (metadata.uid() != 0 || metadata.mode() & 0o022 != 0) {
            return Err(unfit("can be changed by others than root").because(format!(
                "owner {}, mode {:o}",
                metadata.uid(),
                metadata.mode() & 0o7777
            )));
        }
        Ok(metadata.nlink() == 1)
    }

    fn metadata(&self) -> Result<Metadata> {
        self.file
            .metadata()
            .map_err(|error| Error::system("examine the volume's image", error))
    }

    pub(crate) fn of(file: File) -> Result<Self> {
        let inode = Inode::of(&file).map_err(|e| Error::system("examine the image", e))?;
        Ok(Image { file, inode })
    }

    /// Returns the file, open for reading; an image that was just made is open for writing, too.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Returns the identity of the file.
    #[must_use]
    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// Returns the current size.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn size(&self) -> Result<Bytes> {
        Ok(Bytes(self.metadata()?.len()))
    }

    /// Opens the same file for reading and writing, with a new open file description. Works after the file was renamed
    /// or deleted. Close it after the change: whoever asks whether the image is used counts it.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn reopen(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Returns the volume's mark; `None` if it was never marked.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when the mark is not UTF-8 or unreadable.
    pub fn mark(&self) -> Result<Option<String>> {
        attribute::read(&self.file, MARK)
    }

    /// Replaces the mark atomically and syncs it.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn set_mark(&self, mark: &(impl Display + ?Sized)) -> Result<()> {
        attribute::write(&self.file, MARK, mark)?;
        self.file
            .sync_all()
            .map_err(|error| Error::system("write out the volume's mark", error))
    }

    /// Extends the file to `size`, unless it is longer.
    pub(crate) fn lengthen(&self, size: Bytes) -> io::Result<()> {
        if self.file.metadata()?.len() < size.0 {
            self.reopen()?.set_len(size.0)?;
        }
        Ok(())
    }
}

impl AsFd for Image {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn unfit(what: &'static str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("the volume's image {what}, so it is left alone"),
    )
}
