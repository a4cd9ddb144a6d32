//! Adoption of existing image files.

use super::{Allocation, Pool, Reserve, sync};
use crate::{
    VolumeId,
    deadline::Deadline,
    fs::{
        attribute::{self, MARK},
        confine,
        extents::ExtentBudget,
    },
    image::Image,
    loop_device, sys,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid},
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// A file on the pool's file system that may become a volume. No other process has it open.
#[derive(Debug)]
pub struct AdoptionCandidate {
    image: Image,
    parent: File,
    name: String,
    path: PathBuf,
}

/// Timeout for processes that open the image's device only to look at it: udev, and tools that list devices.
const DEVICE_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Attributes of the file before adoption changes them.
struct Before {
    stat: Stat,
    /// `None` also if the mark is unreadable.
    mark: Option<String>,
}

impl AdoptionCandidate {
    /// Returns the file as an image, for loop devices.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Makes root the file's owner, with mode 0600, and checks again that nobody else has it open.
    fn own(&self) -> Result<()> {
        let file = self.image.file();
        rustix::fs::fchown(file, Some(Uid::ROOT), Some(Gid::ROOT))
            .and_then(|()| rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR))
            .map_err(|error| failed(self, error))?;
        self.expect_alone()
    }

    /// Restores the file's owner, mode and mark after `error`, and returns it.
    fn give_back(&self, before: &Before, error: Error) -> Error {
        let file = self.image.file();
        let owner = (before.stat.st_uid, before.stat.st_gid);
        let mode = Mode::from_raw_mode(before.stat.st_mode & 0o7777);
        let unmarked = match &before.mark {
            Some(mark) => attribute::write(file, MARK, mark),
            None => attribute::remove(file, MARK),
        };
        let given = unmarked.and_then(|()| {
            rustix::fs::fchown(
                file,
                Some(Uid::from_raw(owner.0)),
                Some(Gid::from_raw(owner.1)),
            )
            .and_then(|()| rustix::fs::fchmod(file, mode))
            .map_err(|error| failed(self, error))
        });
        match given {
            Ok(()) => error,
            Err(second) => error.advise(format_args!(
                "the file is where it was, but may be root's now ({}); it was of user {} and group {}, with mode {:o}",
                second.report(),
                owner.0,
                owner.1,
                mode.bits()
            )),
        }
    }

    /// Checks that nobody else has the file open. A lease is granted only while there is no other open file description
    /// of the file, of a program or a loop device. Before root owned the file, its owner could have opened it at any
    /// moment; afterwards nobody can, so the check stays true.
    fn expect_alone(&self) -> Result<()> {
        if self.is_alone() || loop_device::drop_unfinished(&self.image)? && self.is_alone() {
            return Ok(());
        }
        Err(self.in_use())
    }

    fn in_use(&self) -> Error {
        let error = Error::new(
            ErrorKind::Busy,
            "the image is in use; stop what has it open, and detach it from its loop device",
        );
        match loop_device::on_path_of(&self.image).as_deref() {
            Ok([number]) => error.because(format!("it is on /dev/loop{}", number.minor)),
            _ => error,
        }
    }

    fn is_alone(&self) -> bool {
        sys::file_lease::is_only_opener(self.image.file().as_fd())
    }

    /// Like `expect_alone`, but waits while a process still has the released loop device open.
    fn wait_to_be_alone(&self) -> Result<()> {
        let mut deadline = Deadline::after(DEVICE_CLOSE_TIMEOUT);
        loop {
            match self.expect_alone() {
                Err(_) if deadline.pause() => {}
                result => return result,
            }
        }
    }
}

impl Pool {
    /// Opens a file for adoption; `None` if there is none. `is_volume` tells of a file among the pool's volumes whether it
    /// is this one, and not a copy of another one.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] unless it is a regular file with one name, on the pool's file system, and not one of its
    /// volumes yet; [`ErrorKind::Busy`] while another process has it open.
    pub fn adoption_candidate(
        &self,
        path: &Path,
        is_volume: impl FnOnce(&VolumeId) -> Result<bool>,
    ) -> Result<Option<AdoptionCandidate>> {
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
        if inode(&parent)? == volumes.ino()
            && let Ok(volume) = VolumeId::parse(name)
            && is_volume(&volume)?
        {
            return Err(unfit("is a volume of the pool already"));
        }
        let image = Image::of(file)?;
        let candidate = AdoptionCandidate {
            image,
            parent,
            name: name.to_owned(),
            path: path.to_owned(),
        };
        candidate.wait_to_be_alone()?;
        Ok(Some(candidate))
    }

    /// Makes the file a volume. In this order: changes its owner to root, marks it, moves it into the pool, and with
    /// [`Allocation::Full`] gives all of it blocks of its own. Blocks that it lacks are owed to it once it is in the
    /// pool, so copying needs no lock of the pool. After a crash the file is where it was, or it is a volume that
    /// [`Pool::complete`], its next growth or its next mount completes. A retry passes the same volume again.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when the pool has no room for the blocks that the file lacks; [`ErrorKind::Conflict`]
    /// when the volume already has an image, the file was replaced meanwhile, or a Btrfs cannot reserve room for it.
    /// The file is where it was then.
    pub fn adopt(
        &self,
        candidate: AdoptionCandidate,
        volume: &VolumeId,
        mark: &str,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        let image = &candidate.image;
        let before = Before {
            stat: rustix::fs::fstat(image).map_err(|error| failed(&candidate, error))?,
            mark: image.mark().ok().flatten(),
        };
        let seen = match allocation {
            Allocation::Full => {
                image.expect_in_place()?;
                let seen = image.examine_below(None, ExtentBudget::WITHOUT_END)?;
                image.expect_partable(&seen)?;
                Some(seen)
            }
            Allocation::Thin => None,
        };
        let others = self.examine_shared_space(allocation)?;
        // So that little is left to write out under the lock.
        image
            .file()
            .sync_all()
            .map_err(|error| Error::system("write out the image", error))?;
        candidate.wait_to_be_alone()?;
        let lock = others.lock(self)?;
        let moved = candidate.own().and_then(|()| {
            let seen = seen
                .map(|seen| image.examine_again(seen, &lock))
                .transpose()?;
            if let Some(seen) = seen {
                self.expect_room(seen.may_lack(), reserve, others.owed(self, None, &lock)?)?;
            }
            image.set_mark(mark)?;
            self.move_in(&candidate, volume)?;
            Ok(seen)
        });
        let seen = match moved {
            Ok(seen) => seen,
            Err(error) => return Err(candidate.give_back(&before, error)),
        };
        let settled = self.settle(&candidate, volume);
        drop(lock);
        let taken = settled.and_then(|()| match seen {
            Some(seen) => image.fill(&seen, None).and_then(|()| image.expect_whole()),
            None => Ok(()),
        });
        // A volume must belong to root, so it is moved out of the pool before its owner is restored.
        taken.map_err(|error| match self.move_back(&candidate, volume) {
            Ok(()) => candidate.give_back(&before, error),
            Err(second) => error.advise(format_args!(
                "nor can it be given back ({}), so it is a volume of the pool now, and may lack some of its storage; take it over again as before, and it is completed",
                second.report()
            )),
        })
    }

    /// Moves the file back to its old place. Fails only if it is still a volume.
    fn move_back(&self, candidate: &AdoptionCandidate, volume: &VolumeId) -> Result<()> {
        let (name, volume) = (candidate.name.as_str(), volume.to_string());
        let back = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.volumes, &volume, &candidate.parent, name, back)
            .map_err(|error| failed(candidate, error))?;
        if let Err(error) = sync(&self.volumes).and_then(|()| sync(&candidate.parent)) {
            log::warn!(
                "after a power cut {volume} may be a volume, though it was not taken over: {}",
                error.report()
            );
        }
        Ok(())
    }

    fn move_in(&self, candidate: &AdoptionCandidate, volume: &VolumeId) -> Result<()> {
        rustix::fs::renameat_with(
            &candidate.parent,
            &candidate.name,
            &self.volumes,
            volume.to_string(),
            RenameFlags::NOREPLACE,
        )
        .map_err(|error| match error {
            Errno::EXIST => Error::new(ErrorKind::Conflict, "the volume already has an image"),
            Errno::XDEV => unfit("is reached through another mount than the pool; name it by a path on the pool's own mount"),
            error => failed(candidate, error),
        })
    }

    /// Checks that the moved file is the opened one, and syncs both directories.
    fn settle(&self, candidate: &AdoptionCandidate, volume: &VolumeId) -> Result<()> {
        let moved =
            rustix::fs::statat(&self.volumes, volume.to_string(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| failed(candidate, error))?;
        if moved.st_ino != candidate.image.inode().number {
            // The file was replaced between the check and the move.
            return Err(unfit("was exchanged for another file meanwhile"));
        }
        sync(&candidate.parent)?;
        sync(&self.volumes)
    }
}

fn failed(candidate: &AdoptionCandidate, error: Errno) -> Error {
    Error::system("move the image into the pool", error)
        .because(candidate.path.display().to_string())
}

fn unfit(what: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the image {what}"))
}
