//! A pool: a directory on the node's disk that holds volumes, as images or as directories.
//!
//! ```text
//! <pool>/.flexvol-pool          "flexvol-pool 1 <pool id>": without it the disk is not mounted
//! <pool>/volumes/<handle>       a volume's image or directory; its mark is an extended attribute
//! <pool>/names/<volume name>    a symbolic link whose text is the handle
//! ```
//!
//! Nothing is ever half there. Images and the pool's own file are made without a name and get it
//! in one step, and a link's text comes with the link. After that step the directory is synced, so
//! that what was reported survives a power cut.

mod adopt;
mod directory;
mod leftovers;

pub use crate::image::Image;
pub use directory::Directory;

use crate::{
    confine,
    deadline::Deadline,
    image::{nameless, write_mark},
    lock,
    loop_device::Inode,
    random,
};
pub use adopt::Stray;
use flexvol_sdk::{Bytes, Error, ErrorKind, Handle, Result, VolumeName};
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags},
    io::Errno,
};
use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

const ID_FILE: &str = ".flexvol-pool";
const VOLUMES: &str = "volumes";
const NAMES: &str = "names";

/// Allocating blocks is a matter of milliseconds on file systems that can do it at all.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);

/// What a thin volume must find free: a pool that has nothing to give promises nothing either.
pub(crate) const FIRST_BLOCKS: Bytes = Bytes::MIB;

/// 128 random bits that tell a pool from the empty directory its disk is mounted on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(Handle);

impl PoolId {
    /// Wraps 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        PoolId(Handle::from_bytes(bytes))
    }

    /// Reads 32 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        Handle::parse(text).map(PoolId).map_err(|_| {
            Error::new(
                ErrorKind::Invalid,
                "a pool id is 32 lower-case hexadecimal digits",
            )
        })
    }

    fn random() -> Result<Self> {
        random::handle().map(PoolId)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether a volume has its blocks from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// It has: a full pool cannot take them away.
    Full,
    /// It gets them when they are written, and an I/O error if there are none then.
    Thin,
}

/// What volumes must leave free for everybody else on the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// A part of the file system's size, in percent.
    Percent(u8),
    /// So many bytes.
    Bytes(Bytes),
}

impl Reserve {
    fn of(self, size: Bytes) -> Bytes {
        match self {
            Reserve::Percent(percent) => Bytes((size.0 / 100).saturating_mul(percent.into())),
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

/// The file system that a pool lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub size: Bytes,
    /// What processes without privileges may still take.
    pub free: Bytes,
}

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    root: File,
    volumes: File,
    id: PoolId,
}

impl Pool {
    /// Makes a directory a pool, or completes one. The flag tells whether it was none before.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no directory, [`ErrorKind::Denied`] where others than
    /// root could change it, [`ErrorKind::Configuration`] where its file system will not do.
    pub fn init(path: &Path) -> Result<(PoolId, bool)> {
        let failed = |error: Errno| Error::system("make the pool", error);
        let root = open_root(path)?;
        for directory in [VOLUMES, NAMES] {
            match rustix::fs::mkdirat(&root, directory, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            let inside = confined(&root, directory)?;
            rustix::fs::fchmod(&inside, Mode::RWXU).map_err(failed)?;
            expect_private(&inside, 0o077, Path::new(directory))?;
        }
        let created = match read_id(&root)? {
            Some(_) => false,
            None => name_pool(&root, PoolId::random()?)?,
        };
        sync(&root)?;
        // Somebody else may have been faster.
        let id = read_id(&root)?.ok_or_else(|| not_mounted(path))?;
        Ok((id, created))
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no pool, as when its disk is not mounted;
    /// [`ErrorKind::Denied`] where others than root could change it.
    pub fn open(path: &Path) -> Result<Self> {
        let root = open_root(path)?;
        let id = read_id(&root)?.ok_or_else(|| not_mounted(path))?;
        let volumes = open_directory(&root, VOLUMES)?;
        Ok(Pool { root, volumes, id })
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
    pub fn image(&self, handle: &Handle) -> Result<Option<Image>> {
        Image::open(&self.volumes, &handle.to_string())
    }

    /// Opens a volume's image.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none; otherwise as for [`Pool::image`].
    pub fn existing_image(&self, handle: &Handle) -> Result<Image> {
        self.image(handle)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's image is gone"))
    }

    /// Makes a volume's image, marked and on disk; it appears complete or not at all.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where the pool has no room for it outside its reserve, and
    /// [`ErrorKind::Conflict`] where the volume is already there.
    pub fn create(
        &self,
        handle: &Handle,
        size: Bytes,
        mark: &(impl fmt::Display + ?Sized),
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        let _lock = self.lock()?;
        let wanted = match allocation {
            Allocation::Full => size,
            Allocation::Thin => FIRST_BLOCKS,
        };
        self.expect_room(wanted, reserve)?;
        let file = Image::nameless(&self.volumes, size, mark, allocation)?;
        let linked = link(&file, &self.volumes, &handle.to_string())?;
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
        handle: &Handle,
        to: Bytes,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        self.existing_image(handle)?
            .extend(to, allocation, reserve, self)
    }

    /// Removes a volume's image, if it is there. Whoever has it open keeps it until then.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn remove(&self, handle: &Handle) -> Result<()> {
        match rustix::fs::unlinkat(&self.volumes, handle.to_string(), AtFlags::empty()) {
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
        let names = self.names_directory()?;
        loop {
            match rustix::fs::symlinkat(handle.to_string(), &names, name.as_str()) {
                Ok(()) => {
                    sync(&names)?;
                    return Ok(*handle);
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(Error::system("reserve the volume's name", error)),
            }
            if let Some(found) = read_name(&names, name)? {
                // Perhaps of a process that was killed before it could.
                sync(&names)?;
                return Ok(found);
            }
        }
    }

    /// The volume that has this name.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where the name leads to something that is no handle.
    pub fn lookup_name(&self, name: &VolumeName) -> Result<Option<Handle>> {
        read_name(&self.names_directory()?, name)
    }

    /// Takes a name from a volume, if it has it.
    ///
    /// # Errors
    /// As for [`Pool::lookup_name`].
    pub fn release_name(&self, name: &VolumeName, handle: &Handle) -> Result<()> {
        // Looking and removing are two steps, between which another release and a reservation
        // could happen.
        let _lock = self.lock()?;
        let names = self.names_directory()?;
        if read_name(&names, name)? != Some(*handle) {
            return Ok(());
        }
        match rustix::fs::unlinkat(&names, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => sync(&names),
            Err(error) => Err(Error::system("release the volume's name", error)),
        }
    }

    /// The volume whose image is this file.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn handle_of(&self, inode: Inode) -> Result<Option<Handle>> {
        let failed = |error: Errno| Error::system("search the pool", error);
        for entry in Dir::read_from(&self.volumes).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(handle) = handle_in(entry.file_name().to_bytes()) else {
                continue;
            };
            if entry.ino() != inode.number {
                continue;
            }
            let found =
                rustix::fs::statat(&self.volumes, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            match found {
                Ok(stat) if stat.st_dev == inode.device && stat.st_ino == inode.number => {
                    return Ok(Some(handle));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Every volume that has an image or a directory, in no order.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn handles(&self) -> Result<Vec<Handle>> {
        let names = list(&self.volumes)?;
        Ok(names.iter().filter_map(|name| handle_in(name)).collect())
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
            match read_name(&names, &name) {
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

    /// How large the file system is and how much of it is free.
    ///
    /// # Errors
    /// What the system call says.
    pub fn space(&self) -> Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.volumes)
            .map_err(|error| Error::system("ask the pool for its space", error))?;
        Ok(Space {
            size: Bytes(stat.f_blocks.saturating_mul(stat.f_frsize)),
            free: Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)),
        })
    }

    /// What volumes may still take.
    ///
    /// # Errors
    /// As for [`Pool::space`].
    pub fn available(&self, reserve: Reserve) -> Result<Bytes> {
        let space = self.space()?;
        Ok(space.free.saturating_sub(reserve.of(space.size)))
    }

    /// Held while space is counted and taken, so that two volumes cannot be promised the same.
    pub(crate) fn lock(&self) -> Result<File> {
        let file = confine::open(&self.root, ID_FILE, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|error| Error::system("open the pool's lock", error))?;
        let mut deadline = Deadline::after(LOCK_DEADLINE);
        lock::wait(
            &file,
            &mut deadline,
            "another volume of the pool is being made or extended",
        )?;
        Ok(file)
    }

    /// Checks before anything is taken: a file system that runs full while it allocates has taken
    /// its last block from everybody.
    pub(crate) fn expect_room(&self, wanted: Bytes, reserve: Reserve) -> Result<()> {
        let available = self.available(reserve)?;
        if wanted <= available {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exhausted,
            format!("the volume needs {wanted} more and the pool has {available} to give"),
        ))
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

fn read_id(root: &File) -> Result<Option<PoolId>> {
    let failed = |error: io::Error| Error::system("read the pool's id", error);
    let mut text = String::new();
    match confine::open(root, ID_FILE, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) => file.take(128).read_to_string(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    parse_id(&text).map(Some)
}

fn parse_id(text: &str) -> Result<PoolId> {
    let words: Vec<_> = text.split_whitespace().collect();
    let wrong = |message: &'static str| {
        Error::new(ErrorKind::Configuration, message).because(format!("{ID_FILE} says {text:?}"))
    };
    match words[..] {
        ["flexvol-pool", "1", id] => {
            PoolId::parse(id).map_err(|_| wrong("the pool's id is damaged"))
        }
        ["flexvol-pool", _, ..] => Err(wrong("the pool was made by a newer flexvol")),
        _ => Err(wrong("the pool's id is damaged")),
    }
}

/// False: somebody else was faster.
fn name_pool(root: &File, id: PoolId) -> Result<bool> {
    let file = nameless(root)?;
    // Tried here, so that it does not fail at the first volume.
    write_mark(&file, "pool")?;
    io::Write::write_all(&mut &file, format!("flexvol-pool 1 {id}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::system("write the pool's id", error))?;
    link(&file, root, ID_FILE)
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

fn read_name(names: &File, name: &VolumeName) -> Result<Option<Handle>> {
    let no_volume = |found: String| {
        Error::new(
            ErrorKind::Conflict,
            "the volume's name leads to something that is no volume",
        )
        .because(found)
    };
    match rustix::fs::readlinkat(names, name.as_str(), Vec::new()) {
        Ok(text) => match handle_in(text.as_bytes()) {
            Some(handle) => Ok(Some(handle)),
            None => Err(no_volume(format!("{text:?}"))),
        },
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::INVAL) => Err(no_volume("it is no symbolic link".to_owned())),
        Err(error) => Err(Error::system("look up the volume's name", error)),
    }
}

fn handle_in(name: &[u8]) -> Option<Handle> {
    Handle::parse(str::from_utf8(name).ok()?).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_file_of_another_version_or_shape_is_no_pool() {
        let id = "00112233445566778899aabbccddeeff";
        let text = format!("flexvol-pool 1 {id}\n");
        assert_eq!(parse_id(&text).unwrap().to_string(), id);
        for wrong in [
            String::new(),
            "flexvol-pool 1\n".to_owned(),
            format!("flexvol-pool 2 {id} more\n"),
            format!("flexvol-pool 1 {}\n", &id[1..]),
            format!("{id}\n"),
        ] {
            let error = parse_id(&wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{wrong:?}");
        }
    }

    #[test]
    fn a_reserve_is_a_part_or_an_amount() {
        let size = Bytes(1000 << 20);
        assert_eq!(Reserve::Percent(15).of(size), Bytes(150 << 20));
        assert_eq!(
            Reserve::Percent(255).of(Bytes(u64::MAX / 3)).0,
            u64::MAX / 3 / 100 * 255
        );
        assert_eq!(Reserve::Bytes(Bytes(7)).of(size), Bytes(7));
    }
}
