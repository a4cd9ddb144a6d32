//! Records of which pool a node has at a place: a file for each place, with the pool's id, that survives reboots.

use crate::{PoolId, random};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

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

/// Record for one place.
pub(crate) struct Record {
    directory: &'static str,
    name: String,
}

impl Record {
    /// Names the record of a place. `directory` holds places of one kind; no name begins with a colon.
    pub(crate) fn at(directory: &'static str, name: String) -> Record {
        Record { directory, name }
    }

    /// Returns the id of the recorded pool.
    ///
    /// # Errors
    /// When the record cannot be read, or is damaged.
    pub(crate) fn read(&self) -> Result<Option<PoolId>> {
        let mut text = [0; LONGEST];
        let read = File::open(self.path()).and_then(|mut file| file.read(&mut text));
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
            .because(self.path().display().to_string())
        })
    }

    /// Checks that the pool that was found is the recorded one. Returns false when none is recorded.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when it is another one; otherwise as for [`Record::read`]. That is a fact about the
    /// node and not about a claim, so it must be retryable: another node may serve the claim, and this one once the disk
    /// is back.
    pub(crate) fn expect(&self, found: PoolId, words: &Words<'_>) -> Result<bool> {
        match self.read()? {
            Some(known) if known != found => {
                let Words {
                    another,
                    disks,
                    again,
                } = words;
                Err(Error::new(
                    ErrorKind::Configuration,
                    format!(
                        "{another} the id {known}, and this one {found}; {disks}? if this is to be the pool from now on, {again} accepts it"
                    ),
                ))
            }
            known => Ok(known.is_some()),
        }
    }

    /// Records this pool, unless another process has recorded one since the caller looked.
    pub(crate) fn keep_first(&self, id: PoolId) -> Result<()> {
        self.write(id, |new, record| match fs::hard_link(new, record) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        })
    }

    /// Records this pool and replaces any record. A node that cannot write goes without a record, unless its record
    /// would still name another pool.
    pub(crate) fn keep(&self, id: PoolId) -> Result<()> {
        let known = self.read();
        if matches!(known, Ok(Some(known)) if known == id) {
            return Ok(());
        }
        match self.write(id, |new, record| fs::rename(new, record)) {
            Err(error) if matches!(known, Ok(None)) => {
                log::warn!("the node does not remember its pool: {}", error.report());
                Ok(())
            }
            written => written,
        }
    }

    /// Removes the record of the place.
    pub(crate) fn forget(&self) -> Result<()> {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::system("forget which pool the node had", error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new(self.directory).join(&self.name)
    }

    /// Writes a temporary record, which `put` then moves or links into place.
    fn write(&self, id: PoolId, put: impl Fn(&Path, &Path) -> io::Result<()>) -> Result<()> {
        // No place has a name that begins with a colon.
        let new = Path::new(self.directory).join(format!(":{}", random::handle()?));
        let write = || {
            let mut directory = DirBuilder::new();
            directory
                .recursive(true)
                .mode(0o700)
                .create(self.directory)?;
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            writeln!(file, "{id}")?;
            file.sync_all()?;
            put(&new, &self.path())?;
            File::open(self.directory)?.sync_all()
        };
        let written = write();
        // After a rename nothing is left here.
        let _ = fs::remove_file(&new);
        written.map_err(|error| Error::system("remember which pool the node has", error))
    }
}

/// Error for a record, or a directory of records, that cannot be read.
pub(crate) fn unreadable(error: io::Error) -> Error {
    Error::system("read which pool the node has", error)
}
