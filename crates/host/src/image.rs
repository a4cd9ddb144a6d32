//! The file that holds a volume.

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

/// Whether a volume has its blocks from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// It has: a full pool cannot take them away.
    Full,
    /// It gets them when they are written, and an I/O error if there are none then.
    Thin,
}

/// Which file, as `stat` tells it.
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

/// An open image: a regular file of root's with exactly one name.
#[derive(Debug)]
pub struct Image {
    file: File,
    inode: Inode,
}

impl Image {
    /// `None` where `name` is not there.
    pub(crate) fn open(volumes: &File, name: &str) -> Result<Option<Self>> {
        let failed = |error: io::Error| Error::system("open the volume's image", error);
        // Not O_NONBLOCK: an open that meets the lease of another process's `find` must wait.
        let file = match confine::open(volumes, name, OFlags::RDWR) {
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

    /// Whether it still has its name, and is as an image must be.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for what is not a plain file of root's with one name.
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

    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Which file it is.
    #[must_use]
    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// The size as it is now.
    ///
    /// # Errors
    /// What the system call says.
    pub fn size(&self) -> Result<Bytes> {
        Ok(Bytes(self.metadata()?.len()))
    }

    /// A second open file description of the same file, also if the file was renamed or deleted.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// What the volume says about itself; `None` where nobody ever marked it.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] where the mark is no text or cannot be read.
    pub fn mark(&self) -> Result<Option<String>> {
        attribute::read(&self.file, MARK)
    }

    /// Replaces the mark; afterwards it survives a power cut. A cut meanwhile leaves the old mark
    /// or the new one.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn set_mark(&self, mark: &(impl Display + ?Sized)) -> Result<()> {
        attribute::write(&self.file, MARK, mark)?;
        self.file
            .sync_all()
            .map_err(|error| Error::system("write out the volume's mark", error))
    }

    /// Makes it at least so long.
    pub(crate) fn lengthen(&self, size: Bytes) -> io::Result<()> {
        if self.file.metadata()?.len() < size.0 {
            self.file.set_len(size.0)?;
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
