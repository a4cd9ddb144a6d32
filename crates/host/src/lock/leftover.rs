//! Locks held by killed processes that the kernel does not let go.
//!
//! A process that waits for a frozen file system, a dead disk or a dead server ends only when that answers. It runs no
//! more code, but until it ends no new operation may begin on the volume. Only unmounting may proceed: it renames the
//! lock's file, so that the process is still found by the new name.

use super::{
    DIRECTORY, holders,
    process::{Process, Tasks},
    same_file, wait,
};
use crate::deadline::Deadline;
use flexvol_sdk::{Error, Result, stuck::unresponsive_error};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Time without any activity after which an ending process counts as stuck. Unmounting and releasing a device can take
/// longer, but the process is active meanwhile.
const GRACE: Duration = Duration::from_secs(3);

/// Observes the holders of a lock while this process waits for it.
#[derive(Default)]
pub(super) struct HolderWatch {
    since: Option<(Vec<(Process, Tasks)>, Instant)>,
}

impl HolderWatch {
    /// Returns one of `holders` if all of them are ending and showed no activity for [`GRACE`]. `None` also if all of
    /// them have ended: then another process holds the lock.
    pub(super) fn stuck_holder(&mut self, holders: Vec<Process>) -> Option<Process> {
        let there = holders.into_iter().filter_map(|holder| {
            let tasks = holder.tasks()?;
            Some((holder, tasks))
        });
        let now: Vec<_> = there.collect();
        match &self.since {
            Some((before, since)) if *before == now => {
                let ends = |(_, tasks): &(Process, Tasks)| *tasks != Tasks::Running;
                let is_left = now.iter().all(ends) && since.elapsed() >= GRACE;
                now.into_iter()
                    .next()
                    .filter(|_| is_left)
                    .map(|(holder, _)| holder)
            }
            _ => {
                self.since = Some((now, Instant::now()));
                None
            }
        }
    }
}

/// Returns the error for a lock that such a process holds.
pub(super) fn still_there(process: Option<&Process>) -> Error {
    let process = process.map_or_else(
        || "of an unknown number".to_owned(),
        |it| it.pid.to_string(),
    );
    let waits = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    unresponsive_error("an earlier call still waits for the kernel".to_owned()).because(format!(
        "process {process} was killed and stays, in {waits}"
    ))
}

fn name(path: &Path) -> PathBuf {
    path.with_extension("left")
}

/// Renames the lock's file, so that the lock can be taken although `process` holds it. At most one process per volume
/// is set aside.
pub(super) fn set_aside(path: &Path, file: &File, process: &Process) -> Result<()> {
    let failed = |error: io::Error| Error::system("set a lock aside", error);
    // Otherwise a second unmounting process could set aside the lock of the first one.
    let directory = File::open(DIRECTORY).map_err(failed)?;
    let mut deadline = Deadline::after(GRACE);
    wait(&directory, &mut deadline, "another process takes locks")?;
    let is_left = holders::first(file).as_ref() == Some(process);
    if !is_left || !same_file(path, file).map_err(failed)? {
        return Ok(());
    }
    expect_gone(path)?;
    log::warn!(
        "unmounting beside process {}, which the kernel does not let go",
        process.pid
    );
    fs::rename(path, name(path)).map_err(failed)
}

/// Returns an error while a process that was set aside still holds the volume's old lock.
pub(super) fn expect_gone(path: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::system("look for what was left behind", error);
    let name = name(path);
    let file = match File::open(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        },
        Err(TryLockError::WouldBlock) => Err(still_there(holders::first(&file).as_ref())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
