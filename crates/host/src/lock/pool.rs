//! The lock of a pool, held while its space is counted and allocated.

use super::{DIRECTORY, holders::Record, leftover, wait_or_find_left};
use crate::deadline::Deadline;
use flexvol_sdk::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    sync::Arc,
};

/// The held lock of a pool.
#[derive(Debug)]
pub struct PoolGuard {
    /// Dropped before `file`, so that the record goes before the lock.
    _record: Option<Record>,
    file: File,
}

/// Locks a pool by a file in it. A frozen pool accepts no writes, so the holder is recorded in a file in /run.
pub(crate) fn pool(file: File, deadline: &mut Deadline) -> Result<PoolGuard> {
    let record = record_of(&file).map(Arc::new);
    if let Err(error) = &record {
        log::debug!("a pool's lock does not say who has it: {error}");
    }
    let record = record.ok();
    let busy = "another volume of the pool is being made or extended";
    match wait_or_find_left(&file, record.as_deref(), deadline, busy, File::try_lock)? {
        None => Ok(PoolGuard {
            _record: record.as_ref().map(Record::new),
            file,
        }),
        Some(process) => Err(leftover::still_there(Some(&process))),
    }
}

/// The held locks of all pools that share the same space.
#[derive(Debug)]
pub(crate) struct SpaceGuard {
    _pools: Vec<PoolGuard>,
}

/// Locks pools by files in them, ordered by inode. Without a common order, two processes could wait for each other's
/// locks until their deadlines.
pub(crate) fn space(files: Vec<File>, mut deadline: Deadline) -> Result<SpaceGuard> {
    let mut ordered: Vec<((u64, u64), File)> = Vec::with_capacity(files.len());
    for file in files {
        let found = file.metadata();
        let found = found.map_err(|error| Error::system("examine the pool's lock", error))?;
        let inode = (found.dev(), found.ino());
        let at = ordered.partition_point(|(other, _)| *other < inode);
        // Skips a file that this process locks already: it would wait for itself.
        if ordered.get(at).is_none_or(|(other, _)| *other != inode) {
            ordered.insert(at, (inode, file));
        }
    }
    let files = ordered.into_iter().map(|(_, file)| file);
    let pools = files.map(|file| pool(file, &mut deadline));
    Ok(SpaceGuard {
        _pools: pools.collect::<Result<_>>()?,
    })
}

/// Opens the file that records the holder. The file is never removed, because another process may have it open.
fn record_of(file: &File) -> io::Result<File> {
    let found = file.metadata()?;
    let name = format!("pool-{:x}-{}", found.dev(), found.ino());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = Path::new(DIRECTORY).join(name);
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(file))
}

impl AsFd for PoolGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
