//! Records of which pool a node has at a place: a file for each place, with the pool's id, that survives reboots.

use crate::{PoolId, deadline::Deadline};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// How long another writer of a record is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of the read buffer: more than an id and a newline.
const LONGEST: usize = 64;

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
    fn another(&self, known: PoolId, found: PoolId, record: &Path) -> Error {
        let Words {
            another,
            disks,
            again,
        } = self;
        Error::new(
            ErrorKind::Configuration,
            format!(
                "{another} the id {known}, and this one {found}; {disks}? if this is to be the pool from now on, {again} accepts it"
            ),
        )
        .because(format!("the record is {}", record.display()))
    }
}

/// Record for one place, kept alike in several directories. The first one that has it counts: the others may be on a
/// disk that is missing, and so may be older. It is written last, so that whoever finds it need not look at the others,
/// and a call that was cut is completed by the next one.
pub(crate) struct Record {
    directories: &'static [&'static str],
    name: String,
}

impl Record {
    /// Names the record of a place. Each directory holds places of one kind; no name begins with a colon.
    pub(crate) fn at(directories: &'static [&'static str], name: String) -> Record {
        Record { directories, name }
    }

    /// Returns the id of the recorded pool.
    ///
    /// # Errors
    /// When the record cannot be read, or is damaged.
    pub(crate) fn read(&self) -> Result<Option<PoolId>> {
        for path in self.paths() {
            if let Some(known) = read(&path)? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// Checks that the pool that was found is the recorded one. Returns false when the first directory has no record.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when it is another one; otherwise as for [`Record::read`]. That is a fact about the
    /// node and not about a claim, so it must be retryable: another node may serve the claim, and this one once the disk
    /// is back.
    pub(crate) fn expect(&self, found: PoolId, words: &Words<'_>) -> Result<bool> {
        let mut is_first = true;
        for path in self.paths() {
            match read(&path)? {
                Some(known) if known == found => return Ok(is_first),
                Some(known) => return Err(words.another(known, found, &path)),
                None => is_first = false,
            }
        }
        Ok(false)
    }

    /// Records this pool in each directory that has no record.
    ///
    /// # Errors
    /// The first one; the other directories have the record.
    pub(crate) fn keep_first(&self, id: PoolId) -> Result<()> {
        let mut kept = Ok(());
        for &directory in self.directories.iter().rev() {
            if !self.path(directory).exists() {
                kept = kept.and(self.write(directory, id, false));
            }
        }
        kept
    }

    /// Records this pool and replaces any record. A node that cannot write goes without a record, unless its record
    /// would still name another pool.
    pub(crate) fn keep(&self, id: PoolId) -> Result<()> {
        for &directory in self.directories.iter().rev() {
            let known = read(&self.path(directory));
            if matches!(known, Ok(Some(known)) if known == id) {
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
                writeln!(file, "{id}")?;
                file.sync_all()?;
                fs::rename(&new, &record)
            };
            written().inspect_err(|_| drop(fs::remove_file(&new)))?;
            directory.sync_all()
        };
        write().map_err(|error| Error::system("remember which pool the node has", error))
    }
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

fn read(path: &Path) -> Result<Option<PoolId>> {
    let mut text = [0; LONGEST];
    let read = File::open(path).and_then(|mut file| file.read(&mut text));
    let length = match read {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let id = str::from_utf8(&text[..length]).unwrap_or_default();
    PoolId::parse(id.trim_end()).map(Some).map_err(|_| {
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
