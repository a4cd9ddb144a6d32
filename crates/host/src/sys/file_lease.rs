//! Asking the kernel whether anybody else has a file open.
#![allow(unsafe_code)]

use linux_raw_sys::general::F_SETSIG;
use rustix::fd::{AsRawFd, BorrowedFd};

/// Whether `file` is the only open file description of its inode: nobody else has it open for
/// reading or writing, and no loop device lies on it. `false` also where that cannot be told.
///
/// A write lease is granted only then (fs/locks.c, `check_conflicting_open`: the inode's counts of
/// readers and writers must be those of this one description; before Linux 5.3 the counts of the
/// dentry and inode, which is stricter). It is given back at once. Who opens the file in between
/// waits that long, and the kernel tells the holder by a signal: SIGURG, which does nothing unless
/// handled, because SIGIO would end this process.
pub(crate) fn is_only_opener(file: BorrowedFd<'_>) -> bool {
    let lease = |command, argument: libc::c_int| {
        // SAFETY: F_SETSIG and F_SETLEASE take an int and touch no memory.
        unsafe { libc::fcntl(file.as_raw_fd(), command, argument) == 0 }
    };
    lease(F_SETSIG.cast_signed(), libc::SIGURG)
        && lease(libc::F_SETLEASE, libc::F_WRLCK)
        && lease(libc::F_SETLEASE, libc::F_UNLCK)
}
