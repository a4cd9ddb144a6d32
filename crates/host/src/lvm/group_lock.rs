//! LVM's own lock of a volume group. Whoever holds it alone keeps every command of LVM from changing the group, and
//! from giving the kernel tables of its devices.

use crate::deadline::Deadline;
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fs::{self, File, TryLockError},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Commands of LVM hold it while they work.
const PATIENCE: Duration = Duration::from_secs(60);

static HELD: AtomicBool = AtomicBool::new(false);

/// Whether this process holds one: reports that wait for it would wait for ever.
pub(super) fn is_held() -> bool {
    HELD.load(Ordering::Relaxed)
}

#[derive(Debug)]
pub(super) struct GroupLock(File);

impl GroupLock {
    /// Takes it, as `_do_flock` in LVM's lib/misc/lvm-flock.c does; `directory` is where LVM has its locks.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where a command of LVM holds it too long.
    pub(super) fn take(directory: &Path, group: &str) -> Result<Self> {
        let failed = |error| Error::system("take LVM's lock of the volume group", error);
        let path = directory.join(format!("V_{group}"));
        let mut deadline = Deadline::after(PATIENCE);
        loop {
            let file = File::options()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed)?;
            match file.try_lock() {
                // Who lets it go may remove the file, which then locks nothing.
                Ok(()) if is_at(&file, &path) => {
                    HELD.store(true, Ordering::Relaxed);
                    return Ok(GroupLock(file));
                }
                Ok(()) => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if deadline.pause() => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        "a command of LVM is still at work on the volume group; look for one that hangs on the node",
                    ));
                }
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(found), Ok(own)) = (fs::metadata(path), file.metadata()) else {
        return false;
    };
    (found.dev(), found.ino()) == (own.dev(), own.ino())
}

impl AsFd for GroupLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for GroupLock {
    fn drop(&mut self) {
        HELD.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_anew() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("V_vg0");
        let other = File::create(&path).unwrap();
        other.lock().unwrap();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| GroupLock::take(place.path(), "vg0").unwrap());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!taken.is_finished() && !is_held());
            // As LVM lets it go.
            fs::remove_file(&path).unwrap();
            other.unlock().unwrap();
            let lock = taken.join().unwrap();
            assert!(is_held() && is_at(&lock.0, &path));
            let second = File::open(&path).unwrap();
            assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
            drop(lock);
            assert!(!is_held());
            second.try_lock().unwrap();
        });
    }
}
