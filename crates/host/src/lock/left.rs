//! Locks of processes that were killed and that the kernel does not let go.
//!
//! Who waits for a frozen file system, a dead disk or a dead server ends only when that answers. What
//! he waits for is all he still does, but until then nothing else may be begun on the volume. Only
//! unmounting goes on beside him: the lock's file gets another name, by which he is found as long as
//! he is there.

use super::{
    DIRECTORY, holders,
    process::{Process, Tasks},
    same_file, wait,
};
use crate::deadline::Deadline;
use flexvol_sdk::{Error, Result, stillness::silent};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long the kernel may not let an ending process move. Unmounting and letting go of a device take
/// time, and much of it, but he moves meanwhile.
const GRACE: Duration = Duration::from_secs(3);

/// Looks at the holders of a lock while somebody waits for it.
#[derive(Default)]
pub(super) struct Look {
    since: Option<(Vec<(Process, Tasks)>, Instant)>,
}

impl Look {
    /// One of these processes, which hold the lock, if none of them will ever run its program again,
    /// and the kernel has not let them move for a while. Where all of them have ended, it is somebody
    /// else who holds it.
    pub(super) fn left(&mut self, holders: Vec<Process>) -> Option<Process> {
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

/// What is said of a lock that such a process holds.
pub(super) fn still_there(process: Option<&Process>) -> Error {
    let process = process.map_or_else(
        || "of an unknown number".to_owned(),
        |it| it.pid.to_string(),
    );
    let waits = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    silent("an earlier call still waits for the kernel".to_owned()).because(format!(
        "process {process} was killed and stays, in {waits}"
    ))
}

fn name(path: &Path) -> PathBuf {
    path.with_extension("left")
}

/// Gives the lock's file another name, so that the lock can be taken although `process` has it. At
/// most one process is left behind so.
pub(super) fn set_aside(path: &Path, file: &File, process: &Process) -> Result<()> {
    let failed = |error: io::Error| Error::system("set a lock aside", error);
    // Two of those who unmount: the second one would set aside the lock of the first one.
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

/// Refuses while the kernel has not let go a process beside which the volume was unmounted.
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
