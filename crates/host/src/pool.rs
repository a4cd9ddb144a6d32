//! A pool: a directory on the node's disk that holds volumes, as images or as directories.
//!
//! ```text
//! <pool>/.flexvol-pool          "flexvol-pool 2 <pool id>": without it the disk is not mounted
//! <pool>/volumes/<volume id>    a volume's image, or what holds its directory; its mark is an extended attribute
//! <pool>/names/<volume name>    a symbolic link whose text is the handle
//! ```
//!
//! Nothing is ever half there. Images and the pool's own file are made without a name and get it
//! in one step, and a link's text comes with the link. After that step the directory is synced, so
//! that what was reported survives a power cut.

mod adopt;
mod beside;
mod blocks;
mod damaged;
mod directory;
mod id;
mod immutable;
mod lacking;
mod leftovers;
mod limited;
pub(crate) mod links;
mod remembered;
mod space;
mod whole;

pub use crate::image::{Allocation, Image};
pub use beside::Place;
pub use damaged::Damaged;
pub use directory::{Directory, Remains};
pub use id::PoolId;
pub use lacking::Missing;
pub use limited::{Limited, Rules};
pub(crate) use space::FIRST_BLOCKS;
pub use space::{Lack, Reserve, Space};

use crate::{VolumeId, fs::confine};
pub use adopt::Stray;
use flexvol_sdk::{Bytes, Error, ErrorKind, Handle, Result, VolumeName};
use id::{name_pool, read_id};
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags},
    io::Errno,
};
use std::{fmt, fs::File, os::unix::fs::MetadataExt, path::Path, sync::Arc};

const VOLUMES: &str = "volumes";
const NAMES: &str = "names";

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    root: File,
    volumes: File,
    id: PoolId,
    /// All pools of the driver.
    driver: Option<Arc<[Place]>>,
}

impl Pool {
    /// Makes a directory a pool, or completes one. The flag tells whether it was none before. The node
    /// remembers that this is its pool.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no directory, [`ErrorKind::Denied`] where others than
    /// root could change it, [`ErrorKind::Configuration`] where its file system will not do, and
    /// [`ErrorKind::Conflict`] where the node remembers another pool, whose disk may be missing.
    pub fn init(path: &Path) -> Result<(PoolId, bool)> {
        let root = open_root(path)?;
        remembered::expect_unknown_or(path, read_id(&root)?)?;
        Pool::make(path, &root)
    }

    /// The same in the place of any other pool that the node remembers, which is gone for good.
    ///
    /// # Errors
    /// As for [`Pool::init`], but for the last.
    pub fn replace(path: &Path) -> Result<(PoolId, bool)> {
        Pool::make(path, &open_root(path)?)
    }

    fn make(path: &Path, root: &File) -> Result<(PoolId, bool)> {
        let failed = |error: Errno| Error::system("make the pool", error);
        for directory in [VOLUMES, NAMES] {
            match rustix::fs::mkdirat(root, directory, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            let inside = confined(root, directory)?;
            rustix::fs::fchmod(&inside, Mode::RWXU).map_err(failed)?;
            expect_private(&inside, 0o077, Path::new(directory))?;
        }
        let created = match read_id(root)? {
            Some(_) => false,
            None => name_pool(root, PoolId::random()?)?,
        };
        sync(root)?;
        // Somebody else may have been faster.
        let id = read_id(root)?.ok_or_else(|| not_mounted(path))?;
        remembered::keep(path, root, id)?;
        Ok((id, created))
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no pool, as when its disk is not mounted,
    /// [`ErrorKind::Conflict`] where it is not the one that the node remembers at this path;
    /// [`ErrorKind::Denied`] where others than root could change it.
    pub fn open(path: &Path) -> Result<Self> {
        let pool = Pool::open_any(path)?;
        remembered::expect(path, &pool.root, pool.id)?;
        Ok(pool)
    }

    /// The same, whichever it is.
    fn open_any(path: &Path) -> Result<Self> {
        let root = open_root(path)?;
        let id = read_id(&root)?.ok_or_else(|| not_mounted(path))?;
        let volumes = open_directory(&root, VOLUMES)?;
        Ok(Pool {
            root,
            volumes,
            id,
            driver: None,
        })
    }

    /// Which pool this is.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Opens a volume's image; `None` where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for what is not a plain file of root's with one name.
    pub fn image(&self, volume: &VolumeId) -> Result<Option<Image>> {
        Image::open(&self.volumes, &volume.to_string())
    }

    /// Opens a volume's image.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none; otherwise as for [`Pool::image`].
    pub fn existing_image(&self, volume: &VolumeId) -> Result<Image> {
        self.image(volume)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's image is gone"))
    }

    /// Makes a volume's image, marked and on disk; it appears complete or not at all.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where the pool has no room for it outside its reserve, and
    /// [`ErrorKind::Conflict`] where the volume is already there.
    pub fn create(
        &self,
        volume: &VolumeId,
        size: Bytes,
        mark: &(impl fmt::Display + ?Sized),
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        let wanted = match allocation {
            Allocation::Full => size,
            Allocation::Thin => {
                self.expect_not_too_large(size)?;
                FIRST_BLOCKS
            }
        };
        let others = self.look_around(allocation)?;
        let lock = others.lock(self)?;
        self.expect_room(wanted, reserve, others.owed(self, None, &lock)?)?;
        let file = Image::nameless(&self.volumes, size, mark, allocation)?;
        let linked = link(&file, &self.volumes, &volume.to_string())?;
        // Also where it was there: of a process, perhaps, that was killed before it could.
        sync(&self.volumes)?;
        if linked {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Conflict,
            "the volume already has an image",
        ))
    }

    /// Makes a volume's image larger; see [`Image::extend`].
    ///
    /// # Errors
    /// As for [`Image::extend`] and [`Pool::existing_image`].
    pub fn extend(
        &self,
        volume: &VolumeId,
        to: Bytes,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        self.existing_image(volume)?
            .extend(to, allocation, reserve, self)
    }

    /// Removes a volume's image, if it is there. Whoever has it open keeps it until then.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn remove(&self, volume: &VolumeId) -> Result<()> {
        match rustix::fs::unlinkat(&self.volumes, volume.to_string(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => sync(&self.volumes),
            Err(error) => Err(Error::system("remove the volume's image", error)),
        }
    }

    /// Gives a name to a volume; the answer is the volume that has it now, this one or the one
    /// that had it before.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where the name leads to something that is no handle.
    pub fn reserve_name(&self, name: &VolumeName, handle: &Handle) -> Result<Handle> {
        // Where the pool takes no writes, all but the first wait here, and not in the kernel.
        let _lock = self.lock()?;
        links::reserve(&self.names_directory()?, name, handle)
    }

    /// The volume that has this name.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where the name leads to something that is no handle.
    pub fn lookup_name(&self, name: &VolumeName) -> Result<Option<Handle>> {
        links::read(&self.names_directory()?, name)
    }

    /// Takes a name from a volume, if it has it.
    ///
    /// # Errors
    /// As for [`Pool::lookup_name`].
    pub fn release_name(&self, name: &VolumeName, volume: &VolumeId) -> Result<()> {
        // Looking and removing are two steps, between which another release and a reservation
        // could happen.
        let _lock = self.lock()?;
        links::release(&self.names_directory()?, name, volume)
    }

    /// Every volume that has an image or a directory, in no order.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn volume_ids(&self) -> Result<Vec<VolumeId>> {
        let names = list(&self.volumes)?;
        Ok(names.iter().filter_map(|name| volume_in(name)).collect())
    }

    /// Every name and the volume that has it, in no order.
    ///
    /// # Errors
    /// As for [`Pool::lookup_name`].
    pub fn names(&self) -> Result<Vec<(VolumeName, Handle)>> {
        let names = self.names_directory()?;
        let mut found = Vec::new();
        for name in list(&names)? {
            let Some(Ok(name)) = str::from_utf8(&name).ok().map(VolumeName::parse) else {
                continue;
            };
            match links::read(&names, &name) {
                Ok(Some(handle)) => found.push((name, handle)),
                Ok(None) => {}
                // Not made by this crate: no reason to hide all others.
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    log::warn!("{name}: {}", error.report());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn names_directory(&self) -> Result<File> {
        open_directory(&self.root, NAMES)
    }
}

/// Parents and the last component may be symbolic links: the path comes from the configuration.
fn open_root(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(root) => File::from(root),
        Err(Errno::NOENT) => return Err(not_mounted(path)),
        Err(error) => {
            return Err(Error::system("open the pool", error).because(path.display().to_string()));
        }
    };
    expect_private(&root, 0o022, path)?;
    Ok(root)
}

/// Nobody else may even look: a handle is as good as a key.
fn open_directory(root: &File, name: &str) -> Result<File> {
    let directory = confined(root, name)?;
    expect_private(&directory, 0o077, Path::new(name))?;
    Ok(directory)
}

fn confined(root: &File, name: &str) -> Result<File> {
    confine::open(root, name, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|error| {
        Error::new(
            ErrorKind::Configuration,
            "the pool is incomplete; run \"flexvol pool init\" on it again",
        )
        .because(format!("{name}: {error}"))
    })
}

/// `nobody` are the mode's bits that must not be set.
fn expect_private(directory: &File, nobody: u32, path: &Path) -> Result<()> {
    let metadata = directory
        .metadata()
        .map_err(|error| Error::system("examine the pool", error))?;
    if metadata.uid() == 0 && metadata.mode() & nobody == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Denied,
        "the pool is open to others than root; give it to root with mode 0700",
    )
    .because(format!(
        "{}: owner {}, mode {:o}",
        path.display(),
        metadata.uid(),
        metadata.mode() & 0o7777
    )))
}

fn not_mounted(path: &Path) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the pool is not mounted, or was never made one",
    )
    .because(path.display().to_string())
}

/// Gives a file without a name its name, unless that is taken; false then.
fn link(file: &File, directory: &File, name: &str) -> Result<bool> {
    match rustix::fs::linkat(file, "", directory, name, AtFlags::EMPTY_PATH) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(Error::system("name a file of the pool", error)),
    }
}

fn sync(directory: &File) -> Result<()> {
    directory
        .sync_all()
        .map_err(|error| Error::system("write out the pool", error))
}

fn volume_in(name: &[u8]) -> Option<VolumeId> {
    VolumeId::parse(str::from_utf8(name).ok()?).ok()
}

fn list(directory: &File) -> Result<Vec<Vec<u8>>> {
    let failed = |error: Errno| Error::system("list the pool", error);
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        names.push(entry.file_name().to_bytes().to_owned());
    }
    Ok(names)
}
