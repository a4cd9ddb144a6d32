//! Pools: directories on the node's disk that hold volumes, as images or as directories.
//!
//! ```text
//! <pool>/.flexvol-pool          "flexvol-pool 2 <pool id>": without it the disk is not mounted
//! <pool>/volumes/<volume id>    a volume's image, or the directory around its root; its mark is an extended attribute
//! <pool>/names/<volume name>    a symbolic link whose text is the handle
//! ```
//!
//! No entry is ever incomplete. Images and the pool's id file are created without a name and linked in one step; a
//! symbolic link is created with its text. Then the directory is synced, so that a reported result survives a power
//! cut.

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
pub use lacking::Shortfall;
pub use limited::{Limited, Rules};
pub(crate) use space::FIRST_BLOCKS;
pub use space::{MapShortage, Promises, Reserve, Space};

use crate::{VolumeId, fs::confine};
pub use adopt::AdoptionCandidate;
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
    /// Makes a directory a pool, or completes an incomplete one. The flag tells whether it was no pool before. The node
    /// remembers the pool as its own.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the directory does not exist, [`ErrorKind::Configuration`] when others than root
    /// could change it or its file system is not suitable, [`ErrorKind::Conflict`] when the node remembers another pool,
    /// whose disk may be missing.
    pub fn init(path: &Path) -> Result<(PoolId, bool)> {
        let root = open_root(path)?;
        remembered::expect_not_replacing(path, &root, read_id(&root)?)?;
        Pool::make(path, &root)
    }

    /// Like [`Pool::init`], but replaces any other pool that the node remembers, which is gone for good.
    ///
    /// # Errors
    /// As for [`Pool::init`], except the last one.
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
        // Another process may have created the id file first.
        let id = read_id(root)?.ok_or_else(|| not_mounted(path))?;
        remembered::keep(path, root, id)?;
        Ok((id, created))
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no pool, as when its disk is not mounted; [`ErrorKind::Configuration`] when
    /// it is not the pool that the node remembers at this path, or others than root could change it.
    pub fn open(path: &Path) -> Result<Self> {
        let pool = Pool::open_any(path)?;
        remembered::expect(path, &pool.root, pool.id)?;
        Ok(pool)
    }

    /// Whether there is a pool at the path and the node remembers another one, or its record is damaged.
    #[must_use]
    pub fn is_another(path: &Path) -> bool {
        let pool = Pool::open_any(path);
        pool.is_ok_and(|pool| remembered::is_another(path, &pool.root, pool.id))
    }

    /// Returns what the node's records of the path say, if they contradict each other.
    #[must_use]
    pub fn contradicting_records(path: &Path) -> Option<String> {
        remembered::contradiction(path, &open_root(path).ok()?)
    }

    /// Whether the node forgets the pool together with its disk, as the record is on that disk only. Then another pool
    /// below the mount point is not noticed.
    #[must_use]
    pub fn is_forgotten_with_its_disk(&self, path: &Path) -> bool {
        remembered::goes_with(path, &self.root)
    }

    /// Opens a pool, whichever the node remembers.
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

    /// Returns the pool's id.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Opens a volume's image; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] unless it is a regular file, owned by root, with one name.
    pub fn image(&self, volume: &VolumeId) -> Result<Option<Image>> {
        Image::open(&self.volumes, &volume.to_string())
    }

    /// Opens a volume's image.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none; otherwise as for [`Pool::image`].
    pub fn existing_image(&self, volume: &VolumeId) -> Result<Image> {
        self.image(volume)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's image is gone"))
    }

    /// Creates a volume's image with its mark, and syncs it. It appears complete or not at all.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when the pool has not enough room outside its reserve, [`ErrorKind::Conflict`] when the
    /// volume already exists.
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
        let others = self.examine_shared_space(allocation)?;
        let lock = others.lock(self)?;
        self.expect_room(wanted, reserve, others.owed(self, None, &lock)?)?;
        let file = Image::nameless(&self.volumes, size, mark, allocation)?;
        let linked = link(&file, &self.volumes, &volume.to_string())?;
        // Needed even if the name existed: its creator may have been killed before its sync.
        sync(&self.volumes)?;
        if linked {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Conflict,
            "the volume already has an image",
        ))
    }

    /// Enlarges a volume's image; see [`Image::extend`].
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

    /// Removes a volume's image, if it exists. Its blocks are freed when nobody has it open any more.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn remove(&self, volume: &VolumeId) -> Result<()> {
        match rustix::fs::unlinkat(&self.volumes, volume.to_string(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => sync(&self.volumes),
            Err(error) => Err(Error::system("remove the volume's image", error)),
        }
    }

    /// Reserves a name for a volume. Returns the handle of the volume that has the name now: this one, or an earlier
    /// one.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the name's link does not contain a handle.
    pub fn reserve_name(&self, name: &VolumeName, handle: &Handle) -> Result<Handle> {
        // If the pool is frozen, only one caller hangs in the kernel; the others time out here.
        let _lock = self.lock()?;
        links::reserve(&self.names_directory()?, name, handle)
    }

    /// Returns the handle of the volume that has this name.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the name's link does not contain a handle.
    pub fn lookup_name(&self, name: &VolumeName) -> Result<Option<Handle>> {
        links::read(&self.names_directory()?, name)
    }

    /// Releases the name of a volume, if the volume has it.
    ///
    /// # Errors
    /// As for [`Pool::lookup_name`].
    pub fn release_name(&self, name: &VolumeName, volume: &VolumeId) -> Result<()> {
        // Between the check and the removal, another process could release and reserve the name.
        let _lock = self.lock()?;
        links::release(&self.names_directory()?, name, volume)
    }

    /// Returns all volumes that have an image or a directory, unordered.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn volume_ids(&self) -> Result<Vec<VolumeId>> {
        let names = list(&self.volumes)?;
        Ok(names.iter().filter_map(|name| volume_in(name)).collect())
    }

    /// Returns all names with the handles of their volumes, unordered.
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
                // A link that this crate did not make is no reason to hide the others.
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

/// Opens the pool's directory. The path comes from the configuration, so it may contain symbolic links.
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

/// Opens a directory that only root may even list, because handles in it are secret.
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

/// Checks that root owns a directory. `nobody` are the mode bits that must not be set. A failure is retryable: it is a
/// fact about the node and not about a claim, which another node may serve.
fn expect_private(directory: &File, nobody: u32, path: &Path) -> Result<()> {
    let metadata = directory
        .metadata()
        .map_err(|error| Error::system("examine the pool", error))?;
    if metadata.uid() == 0 && metadata.mode() & nobody == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Configuration,
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

/// Links an unnamed file. Returns `false` if the name is taken.
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
