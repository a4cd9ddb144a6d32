//! Taking an image over that somebody else made.

use super::{Allocation, Pool, Reserve, sync};
use crate::{VolumeId, block::loop_device, fs::confine, pool::image::Image, sys};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid},
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// A file on the pool's file system that may become a volume. Nobody else has it open.
#[derive(Debug)]
pub struct Stray {
    image: Image,
    parent: File,
    name: String,
    path: PathBuf,
}

impl Stray {
    /// The file, as loop devices want it.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// A lease is granted only while no other description of the file is open, be it a program's or a
    /// loop device's. Once the file is root's alone nobody else opens it any more, so whoever is not there now will
    /// not be: its former owner could have opened it at any moment before.
    fn expect_alone(&self) -> Result<()> {
        let alone = || sys::lease::is_only_opener(self.image.file().as_fd());
        if alone() || loop_device::drop_unfinished(&self.image)? && alone() {
            return Ok(());
        }
        Err(in_use())
    }
}

impl Pool {
    /// Opens a file that is to be taken over; `None` where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for what is not a plain file with one name, lies on another file
    /// system than the pool, or is one of its volumes already; [`ErrorKind::Busy`] while anybody
    /// has it open.
    pub fn stray(&self, path: &Path) -> Result<Option<Stray>> {
        let failed = |error: io::Error| Error::system("open the image", error);
        let name = path.file_name().and_then(OsStr::to_str).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "the path of the image has no file name, or one that is no text",
            )
        })?;
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            result => File::from(result.map_err(|error| failed(error.into()))?),
        };
        let file = match confine::open(&parent, name, OFlags::RDWR | OFlags::NONBLOCK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::LOOP) => {
                    return Err(unfit("is a symbolic link; name the file itself"));
                }
                Some(Errno::XDEV | Errno::ISDIR | Errno::NXIO) => {
                    return Err(unfit("is not a plain file"));
                }
                _ => return Err(failed(error)),
            },
            Ok(file) => file,
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(unfit("is not a plain file"));
        }
        if metadata.nlink() != 1 {
            return Err(unfit("has a second name (a hard link); remove one"));
        }
        let volumes = self.volumes.metadata().map_err(failed)?;
        if metadata.dev() != volumes.dev() {
            return Err(unfit(
                "lies on another file system than the pool; copy it there first, beside the pool's own directory",
            ));
        }
        let inode = |file: &File| file.metadata().map(|found| found.ino()).map_err(failed);
        if inode(&parent)? == volumes.ino() {
            return Err(unfit("is a volume of the pool already"));
        }
        let image = Image::of(file)?;
        let stray = Stray {
            image,
            parent,
            name: name.to_owned(),
            path: path.to_owned(),
        };
        stray.expect_alone()?;
        Ok(Some(stray))
    }

    /// Makes the file a volume: root's alone, with [`Allocation::Full`] all of it with blocks of its own,
    /// marked, and moved into the pool, in this order, so that a cut leaves it where it was or makes it
    /// a whole volume. Whoever calls again after a cut gives the same volume again.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where the pool has no room for what the file lacks;
    /// [`ErrorKind::Conflict`] where the volume has an image, the file was exchanged meanwhile, or a Btrfs
    /// keeps no room for it.
    pub fn take(
        &self,
        stray: Stray,
        volume: &VolumeId,
        mark: &str,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        let failed = |error: Errno| {
            Error::system("move the image into the pool", error)
                .because(stray.path.display().to_string())
        };
        let _lock = self.lock()?;
        let file = stray.image.file();
        let before = rustix::fs::fstat(file).map_err(failed)?;
        rustix::fs::fchown(file, Some(Uid::ROOT), Some(Gid::ROOT)).map_err(failed)?;
        rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let moved = stray
            .expect_alone()
            .and_then(|()| match allocation {
                Allocation::Full => stray.image.make_whole(reserve, self),
                Allocation::Thin => Ok(()),
            })
            .and_then(|()| stray.image.set_mark(mark))
            .and_then(|()| self.move_in(&stray, volume));
        if moved.is_err() {
            let owner = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
            rustix::fs::fchown(file, Some(owner.0), Some(owner.1)).map_err(failed)?;
            let mode = Mode::from_raw_mode(before.st_mode & 0o7777);
            rustix::fs::fchmod(file, mode).map_err(failed)?;
        }
        moved
    }

    fn move_in(&self, stray: &Stray, volume: &VolumeId) -> Result<()> {
        let failed = |error: Errno| {
            Error::system("move the image into the pool", error)
                .because(stray.path.display().to_string())
        };
        let name = stray.name.as_str();
        let volume = volume.to_string();
        rustix::fs::renameat_with(
            &stray.parent,
            name,
            &self.volumes,
            &volume,
            RenameFlags::NOREPLACE,
        )
        .map_err(|error| match error {
            Errno::EXIST => Error::new(ErrorKind::Conflict, "the volume already has an image"),
            Errno::XDEV => unfit("is reached through another mount than the pool; name it by a path on the pool's own mount"),
            error => failed(error),
        })?;
        let moved = rustix::fs::statat(&self.volumes, &volume, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed)?;
        if moved.st_ino != stray.image.inode().number {
            // Somebody put another file there between the look and the move: give that back.
            let back = RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(&self.volumes, &volume, &stray.parent, name, back)
                .map_err(failed)?;
            return Err(unfit("was exchanged for another file meanwhile"));
        }
        sync(&stray.parent)?;
        sync(&self.volumes)
    }
}

fn in_use() -> Error {
    Error::new(
        ErrorKind::Busy,
        "the image is in use; stop what has it open, and detach it from its loop device",
    )
}

fn unfit(what: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the image {what}"))
}
