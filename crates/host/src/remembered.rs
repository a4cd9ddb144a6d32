//! Records of which pool a node has at a place: a file for each place, with the pool's id, that survives reboots.

use crate::{PoolId, deadline::Deadline};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// How long another writer of a record is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of the read buffer: more than an id, a device number and a newline.
const LONGEST: usize = 64;

/// `f_type` of tmpfs and ramfs (linux/magic.h): file systems in memory.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Wording of refusals for one kind of place.
pub(crate) struct Words<'a> {
    /// States that what was found is another pool, up to the id of the recorded one.
    pub(crate) another: &'a str,
    /// Asks for the pool's disks.
    pub(crate) disks: &'a str,
    /// The command that accepts what was found.
    pub(crate) again: &'a str,
}

impl Words<'_> {
    fn another(&self, known: &Known, found: PoolId) -> Error {
        let Words {
            another,
            disks,
            again,
        } = self;
        Error::new(
            ErrorKind::Configuration,
            format!(
                "{another} the id {}, and this one {found}; {disks}? if this is to be the pool from now on, {again} accepts it",
                known.id
            ),
        )
        .because(format!("the record is {}", known.path.display()))
    }
}

/// The directory of a pool. While its disk is missing, the path leads to what is below the mount point.
pub(crate) struct Root<'a> {
    /// Absolute.
    pub(crate) path: PathBuf,
    pub(crate) opened: &'a File,
}

impl Root<'_> {
    fn device(&self) -> Option<u64> {
        Some(self.opened.metadata().ok()?.dev())
    }

    /// Whether the file system on this device is below the one that the pool is on: that one is mounted on the pool's
    /// directory, or above it, and something of the device is further above.
    fn covers(&self, device: u64) -> bool {
        let is_on = |above: &Path| fs::metadata(above).is_ok_and(|it| it.dev() == device);
        self.device().is_some_and(|own| own != device) && self.path.ancestors().any(is_on)
    }
}

/// What one file says.
struct Known {
    id: PoolId,
    /// In a directory in memory, the device number of the pool's file system, or 0 for a group. The record is of this
    /// boot then. `None` in a directory that survives reboots.
    memory: Option<u64>,
    path: PathBuf,
}

impl Known {
    fn parse(text: &str, path: &Path) -> Option<Known> {
        let mut words = text.split_whitespace();
        Some(Known {
            id: PoolId::parse(words.next()?).ok()?,
            memory: words.next().map(str::parse).transpose().ok()?,
            path: path.to_owned(),
        })
    }

    fn is_lost_at_reboot(&self) -> bool {
        self.memory.is_some()
    }
}

/// Record for one place, kept alike in several directories. The first one that has it counts: the others may be on a
/// disk that is missing, and so may be older. It is written last, so that whoever finds it need not look at the others,
/// and a call that was cut is completed by the next one.
///
/// A directory in memory counts last. What it says was learned in this boot, perhaps while the disk was not there yet.
pub(crate) struct Record<'a> {
    directories: &'static [&'static str],
    name: String,
    root: Option<Root<'a>>,
}

impl<'a> Record<'a> {
    /// Names the record of a place. Each directory holds places of one kind; no name begins with a colon. `root` is the
    /// directory that is at the place now, if the place is one that mounts can cover.
    pub(crate) fn at(
        directories: &'static [&'static str],
        name: String,
        root: Option<Root<'a>>,
    ) -> Record<'a> {
        Record {
            directories,
            name,
            root,
        }
    }

    /// Returns the id of the recorded pool, for a caller that found the pool `found`, or none.
    ///
    /// # Errors
    /// When a record cannot be read, or is damaged.
    pub(crate) fn read(&self, found: Option<PoolId>) -> Result<Option<PoolId>> {
        let (known, _) = self.decide(found)?;
        Ok(known.map(|known| known.id))
    }

    /// Checks that the pool that was found is the recorded one. Returns false when a record is to be written:
    /// [`Record::keep_first`].
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when it is another one; otherwise as for [`Record::read`]. That is a fact about the
    /// node and not about a claim, so it must be retryable: another node may serve the claim, and this one once the disk
    /// is back.
    pub(crate) fn expect(&self, found: PoolId, words: &Words<'_>) -> Result<bool> {
        match self.decide(Some(found))? {
            (Some(known), _) if known.id != found => Err(words.another(&known, found)),
            (known, is_complete) => Ok(known.is_some() && is_complete),
        }
    }

    /// Returns the record that counts, and whether the directories before it agree with it. Reads no further than the
    /// first one that survives reboots, which counts.
    ///
    /// If one in memory contradicts it, either of two things happened in this boot. The disk was late, so the pool below
    /// its mount point was recorded, and now the disk is there with its own record. Or the disk is missing now, with its
    /// record, and below its mount point are another pool and a record of that. They differ in which one covers the
    /// other. Unless the pool that was found covers the other one, the disk is missing, and the record in memory counts.
    fn decide(&self, found: Option<PoolId>) -> Result<(Option<Known>, bool)> {
        let (mut in_memory, mut is_complete) = (None::<Known>, true);
        for path in self.paths() {
            let Some(known) = read(&path)? else {
                is_complete = false;
                continue;
            };
            if known.is_lost_at_reboot() {
                in_memory.get_or_insert(known);
                continue;
            }
            if let Some(other) = in_memory.filter(|other| other.id != known.id) {
                if found == Some(known.id) && !self.covers(&other) {
                    return Ok((Some(other), true));
                }
                is_complete = false;
            }
            return Ok((Some(known), is_complete));
        }
        Ok((in_memory, is_complete))
    }

    /// Whether the pool that was found covers a recorded one. No group covers another one of its name.
    fn covers(&self, other: &Known) -> bool {
        match (&self.root, other.memory) {
            (Some(root), Some(device)) => root.covers(device),
            _ => true,
        }
    }

    /// Returns what each directory says, if they contradict each other.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let all: Vec<_> = self.known().collect();
        let say = |known: &Known| format!("{} says {}", known.path.display(), known.id);
        let contradict = all.windows(2).any(|two| two[0].id != two[1].id);
        contradict.then(|| all.iter().map(say).collect::<Vec<_>>().join(", "))
    }

    /// Returns the places of the records that survive reboots.
    pub(crate) fn surviving(&self) -> impl Iterator<Item = PathBuf> {
        let surviving = self.known().filter(|known| !known.is_lost_at_reboot());
        surviving.map(|known| known.path)
    }

    fn known(&self) -> impl Iterator<Item = Known> {
        self.paths().filter_map(|path| read(&path).ok()?)
    }

    /// Records this pool, which [`Record::expect`] accepted, in each directory that has no record, or one in memory of
    /// another pool.
    ///
    /// # Errors
    /// The first one; the other directories have the record.
    pub(crate) fn keep_first(&self, id: PoolId) -> Result<()> {
        let mut kept = Ok(());
        for &directory in self.directories.iter().rev() {
            let replaces = match read(&self.path(directory)) {
                Ok(None) => false,
                Ok(Some(known)) if known.is_lost_at_reboot() && known.id != id => true,
                _ => continue,
            };
            kept = kept.and(self.write(directory, id, replaces));
        }
        kept
    }

    /// Records this pool and replaces any record. A node that cannot write goes without a record, unless its record
    /// would still name another pool.
    pub(crate) fn keep(&self, id: PoolId) -> Result<()> {
        for &directory in self.directories.iter().rev() {
            let known = read(&self.path(directory));
            if matches!(&known, Ok(Some(known)) if known.id == id) {
                continue;
            }
            match self.write(directory, id, true) {
                Err(error) if matches!(known, Ok(None)) => {
                    log::warn!(
                        "{directory} does not have which pool the node has: {}",
                        error.report()
                    );
                }
                written => written?,
            }
        }
        Ok(())
    }

    /// Removes the record of the place.
    pub(crate) fn forget(&self) -> Result<()> {
        for path in self.paths() {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::system("forget which pool the node had", error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the places where the record is kept.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.directories
            .iter()
            .map(|directory| self.path(directory))
    }

    fn path(&self, directory: &str) -> PathBuf {
        Path::new(directory).join(&self.name)
    }

    /// Writes a record, by renaming one that is complete. One writer at a time, so that what a killed one leaves has a
    /// known name, and the next one overwrites it.
    fn write(&self, directory: &str, id: PoolId, replaces: bool) -> Result<()> {
        let record = self.path(directory);
        // No place has a name that begins with a colon.
        let new = Path::new(directory).join(format!(":{}", self.name));
        let device = self.root.as_ref().and_then(Root::device).unwrap_or(0);
        let write = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
            let directory = File::open(directory)?;
            lock(&directory)?;
            // Another process was faster.
            if !replaces && record.exists() {
                return Ok(());
            }
            let written = || {
                let mut file = File::options()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(&new)?;
                match is_in_memory(&directory)? {
                    true => writeln!(file, "{id} {device}")?,
                    false => writeln!(file, "{id}")?,
                }
                file.sync_all()?;
                fs::rename(&new, &record)
            };
            written().inspect_err(|_| drop(fs::remove_file(&new)))?;
            directory.sync_all()
        };
        write().map_err(|error| Error::system("remember which pool the node has", error))
    }
}

/// Whether a file is on a file system in memory, which does not survive a reboot.
pub(crate) fn is_in_memory(file: &File) -> io::Result<bool> {
    Ok(IN_MEMORY.contains(&rustix::fs::fstatfs(file)?.f_type))
}

/// Locks the directory of records. A writer may be stuck on a dead disk, and a record is not worth waiting for it.
fn lock(directory: &File) -> io::Result<()> {
    let mut deadline = Deadline::after(LOCK_TIMEOUT);
    loop {
        match directory.try_lock() {
            Err(TryLockError::WouldBlock) if deadline.pause() => {}
            locked => return Ok(locked?),
        }
    }
}

fn read(path: &Path) -> Result<Option<Known>> {
    let mut text = [0; LONGEST];
    let read = File::open(path).and_then(|mut file| file.read(&mut text));
    let length = match read {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let text = str::from_utf8(&text[..length]).unwrap_or_default();
    Known::parse(text, path).map(Some).ok_or_else(|| {
        Error::new(
            ErrorKind::Configuration,
            "what the node remembers of its pool is damaged; `flexvol pool init` with --replace writes it anew",
        )
        .because(path.display().to_string())
    })
}

/// Error for a record, or a directory of records, that cannot be read.
pub(crate) fn unreadable(error: io::Error) -> Error {
    Error::system("read which pool the node has", error)
}

#[cfg(test)]
mod tests;
