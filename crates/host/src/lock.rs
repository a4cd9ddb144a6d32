//! Per-volume locks: at most one process works on a volume.
//!
//! A lock is a `flock` on a file in /run. It belongs to the open file description, not to the process: a program
//! started with the [`Guard`] (see [`crate::exec::Limits`]) still holds it after the driver was killed, so a retry
//! waits for the orphan instead of racing with it.
//!
//! Unmounting must succeed even if /run is full or read-only and the lock file cannot be created. The unmounting
//! process then takes an exclusive lock on the directory in which the file is missing. A process that creates something
//! in that directory holds a shared lock on it meanwhile. So no lock file appears while a volume is unmounted without
//! one, and a lock file that exists is always the lock.

mod holders;
mod leftover;
mod pool;
mod process;

pub(crate) use holders::share;
pub use pool::PoolGuard;
pub(crate) use pool::{SpaceGuard, pool, space};

use crate::{VolumeId, deadline::Deadline, run_dir};
use flexvol_sdk::{Error, ErrorKind, Result};
use holders::Record;
use process::Process;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{self, File, TryLockError},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

const DIRECTORY: &str = "/run/flexvol/lock";

/// Directory of the driver. Any process may open and lock the directories above it, so the wait for those is limited to
/// [`WHILE_OTHERS`].
const OURS: &str = "/run/flexvol";

/// Timeout for a lock on a directory that does not belong to the driver. An unmount usually takes less.
const WHILE_OTHERS: Duration = Duration::from_secs(1);

const BUSY: &str = "another operation on this volume is still running";

/// A held lock. Dropping it releases the lock, unless a child process still holds it.
#[derive(Debug)]
pub struct Guard {
    /// Dropped before `file`, so that the record goes before the lock.
    _record: Record,
    file: Arc<File>,
    path: PathBuf,
}

/// The locks of volumes that this process holds.
static HELD: Mutex<Vec<Weak<File>>> = Mutex::new(Vec::new());

/// Returns the volume locks that this process holds. A child that must not be interrupted inherits them all, because it
/// works for those volumes.
pub(crate) fn held() -> Vec<Arc<File>> {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.iter().filter_map(Weak::upgrade).collect()
}

fn remember(file: File, path: PathBuf) -> Guard {
    let file = Arc::new(file);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.retain(|file| file.strong_count() > 0);
    held.push(Arc::downgrade(&file));
    Guard {
        _record: Record::new(&file),
        file,
        path,
    }
}

/// Locks a volume, waiting up to `deadline`.
///
/// # Errors
/// [`ErrorKind::Busy`] at the deadline. [`ErrorKind::TimedOut`] while a process that was killed still
/// waits for the kernel to do something with the volume.
pub fn volume(volume: &VolumeId, deadline: Duration) -> Result<Guard> {
    let guard = take(volume, Deadline::after(deadline), LockPurpose::Use)?;
    leftover::expect_gone(&guard.path)?;
    Ok(guard)
}

/// Locks a volume in order to unmount it. Unlike [`volume`] this also works if no lock file can be created, and beside
/// one killed process that the kernel does not let go.
///
/// # Errors
/// As for [`volume`].
pub fn to_unmount(volume: &VolumeId, deadline: Duration) -> Result<Guard> {
    take(volume, Deadline::after(deadline), LockPurpose::Unmount)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LockPurpose {
    Use,
    Unmount,
}

fn take(volume: &VolumeId, mut deadline: Deadline, purpose: LockPurpose) -> Result<Guard> {
    let failed = |error: io::Error| Error::system("open the lock", error);
    let path = Path::new(DIRECTORY).join(volume.to_string());
    loop {
        let file = match open(&path) {
            Ok(file) => file,
            Err(Errno::NOENT) => match make_among_others(&path, &mut deadline)? {
                Ok(file) => file,
                Err(error) if purpose == LockPurpose::Unmount && has_no_room(&error) => {
                    match without_file(&path, &mut deadline)? {
                        Some(guard) => return Ok(guard),
                        None => continue,
                    }
                }
                Err(error) => return Err(failed(error)),
            },
            Err(error) => return Err(failed(error.into())),
        };
        match wait_or_find_left(&file, Some(&file), &mut deadline, BUSY, File::try_lock)? {
            None => {}
            Some(process) if purpose == LockPurpose::Unmount => {
                leftover::set_aside(&path, &file, &process)?;
                continue;
            }
            Some(process) => return Err(leftover::still_there(Some(&process))),
        }
        // If the file was unlinked or set aside meanwhile, it locks nothing: the next process creates a new one.
        let same = same_file(&path, &file);
        if same.map_err(|error| Error::system("examine the lock", error))? {
            return Ok(remember(file, path));
        }
    }
}

/// Holder of a volume's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This process, or also a program that it left behind.
    Process(u32),
    /// A holder that could not record its process id.
    Unknown,
}

/// Returns the current holder of a volume's lock. Does not wait and creates nothing.
///
/// # Errors
/// When the lock file cannot be opened or examined.
pub fn holder(volume: &VolumeId) -> Result<Option<Holder>> {
    let failed = |error: io::Error| Error::system("look for the lock's holder", error);
    let file = match File::open(Path::new(DIRECTORY).join(volume.to_string())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(failed)?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(match holders::first(&file) {
            Some(process) => Holder::Process(process.pid),
            None => Holder::Unknown,
        })),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Returns the same as [`Guard::hint`], for callers that take no lock.
#[must_use]
pub fn hint(volume: &VolumeId) -> Option<u32> {
    let file = File::open(Path::new(DIRECTORY).join(volume.to_string())).ok()?;
    hint_in(&file)
}

fn hint_in(file: &File) -> Option<u32> {
    let mut text = [0; HINT_WIDTH];
    let length = file.read_at(&mut text, 0).ok()?;
    let text = str::from_utf8(text.get(..length)?).ok()?;
    text.trim_end().parse().ok()
}

/// Returns the volumes whose lock file was not modified for at least `age`.
///
/// # Errors
/// When the directory of locks cannot be read.
pub fn files(age: Duration) -> Result<Vec<VolumeId>> {
    let failed = |error: io::Error| Error::system("list the locks", error);
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result.map_err(failed)?,
    };
    let mut volumes = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(volume) = name.to_str().and_then(|name| VolumeId::parse(name).ok()) else {
            continue;
        };
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        // A file that disappeared meanwhile is not of interest.
        if changed.is_ok_and(|time| time.elapsed().is_ok_and(|elapsed| elapsed >= age)) {
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

/// Opens an existing lock file, read-only on a read-only file system: that is enough to lock it.
fn open(path: &Path) -> rustix::io::Result<File> {
    let open = |access| {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map(File::from)
    };
    match open(OFlags::RDWR) {
        Err(Errno::ROFS) => open(OFlags::RDONLY),
        result => result,
    }
}

/// Returns the directory to create in, and the first path component that is missing (possibly `path` itself).
fn gap(path: &Path) -> (&Path, &Path) {
    let mut next = path;
    loop {
        match next.parent() {
            Some(above) if above.parent().is_some() && !above.is_dir() => next = above,
            above => return (above.unwrap_or(next), next),
        }
    }
}

/// Creates one missing component of `path`, unless another process did. `None` if it was a directory.
fn make(next: &Path, path: &Path) -> io::Result<Option<File>> {
    if next != path {
        run_dir::make(next)?;
        return Ok(None);
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(Some(File::from(file)))
}

/// Creates a lock file under a shared lock on the directory, which excludes an unmount without a file.
fn make_among_others(path: &Path, deadline: &mut Deadline) -> Result<io::Result<File>> {
    loop {
        let (above, next) = gap(path);
        let among_others = match File::open(above) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        let share = File::try_lock_shared;
        match above.starts_with(OURS) {
            true => wait_for(&among_others, deadline, BUSY, share)?,
            false => {
                let mut deadline = Deadline::after(WHILE_OTHERS);
                if let Err(error) = wait_for(&among_others, &mut deadline, BUSY, share) {
                    log::warn!("{} is locked: {}", above.display(), error.report());
                }
            }
        }
        match make(next, path) {
            Ok(Some(file)) => return Ok(Ok(file)),
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Locks a volume that has no lock file and cannot get one; none is created while the guard is held. `None` if the file
/// can be created by now.
fn without_file(path: &Path, deadline: &mut Deadline) -> Result<Option<Guard>> {
    let failed = |error: io::Error| Error::system("open the lock", error);
    let (above, next) = gap(path);
    let alone = File::open(above).map_err(failed)?;
    wait(&alone, deadline, BUSY)?;
    match make(next, path) {
        Ok(_) => Ok(None),
        Err(error) if has_no_room(&error) => {
            log::warn!("a volume is unmounted without a lock of its own: {error}");
            Ok(Some(remember(alone, path.to_owned())))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Whether /run cannot take a new file: it has no free inode, no room, or is read-only.
fn has_no_room(error: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
    Errno::from_io_error(error).is_some_and(|error| full.contains(&error))
}

/// Takes an exclusive `flock` on `file`.
fn wait(file: &File, deadline: &mut Deadline, busy: &'static str) -> Result<()> {
    wait_for(file, deadline, busy, File::try_lock)
}

/// A non-blocking attempt to take a lock.
type TryLock = fn(&File) -> std::result::Result<(), TryLockError>;

fn wait_for(file: &File, deadline: &mut Deadline, busy: &'static str, lock: TryLock) -> Result<()> {
    match wait_or_find_left(file, None, deadline, busy, lock)? {
        None => Ok(()),
        Some(process) => Err(leftover::still_there(Some(&process))),
    }
}

/// Like [`wait_for`], but returns a killed process that holds the lock and that the kernel does not let go. `record` is
/// the file in which holders are recorded, if there is one.
fn wait_or_find_left(
    file: &File,
    record: Option<&File>,
    deadline: &mut Deadline,
    busy: &'static str,
    lock: TryLock,
) -> Result<Option<Process>> {
    let mut watch = leftover::HolderWatch::default();
    loop {
        match lock(file) {
            Ok(()) => return Ok(None),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(Error::system("take the lock", error)),
        }
        let holders = record.and_then(holders::read).unwrap_or_default();
        if let Some(left) = watch.stuck_holder(holders) {
            return Ok(Some(left));
        }
        if !deadline.pause() {
            let holder = record.and_then(holders::first);
            return Err(Error::new(ErrorKind::Busy, busy).because(describe(holder.as_ref())));
        }
    }
}

/// Describes the lock's holder for the log.
fn describe(holder: Option<&Process>) -> String {
    match holder {
        Some(process) => format!("the lock was taken by process {}", process.pid),
        None => "the lock's holder is unknown".to_owned(),
    }
}

/// Whether the path still names this open file.
fn same_file(path: &Path, file: &File) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Guard {
    /// Returns the minor number of the loop device this volume used last. Only a hint: the caller must examine the
    /// device.
    #[must_use]
    pub fn hint(&self) -> Option<u32> {
        hint_in(&self.file)
    }

    /// Stores the minor number for the next process. Best effort: without a hint the next process only takes longer.
    pub fn set_hint(&self, minor: u32) {
        if self.hint() == Some(minor) {
            return;
        }
        // The text has a fixed width, so that one write replaces the old text.
        let text = format!("{minor:<width$}\n", width = HINT_WIDTH - 1);
        if let Err(error) = self.file.write_all_at(text.as_bytes(), 0) {
            log::debug!("cannot keep the hint in {}: {error}", self.path.display());
        }
    }

    /// Releases the lock and removes its file, because the volume is deleted. Otherwise files of deleted volumes would
    /// accumulate in /run.
    ///
    /// # Errors
    /// The error of `unlink`.
    pub fn retire(self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::system("remove the lock", error))
            }
            _ => Ok(()),
        }
    }
}

/// Length of a hint: ten digits and a newline.
const HINT_WIDTH: usize = 11;

impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
