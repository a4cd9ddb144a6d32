//! Asks the kernel whether any other process or device has a file open.
#![allow(unsafe_code)]

use linux_raw_sys::general::F_SETSIG;
use rustix::fd::{AsRawFd, BorrowedFd};

/// Whether `file` is the only open file description of its inode: no other process has it open for reading or writing,
/// and no loop device is attached to it. `false` also where that cannot be determined.
///
/// The kernel grants a write lease only in this case (fs/locks.c, `check_conflicting_open`: the inode's counts of
/// readers and writers must be those of this one description; before Linux 5.3 the counts of the dentry and inode,
/// which is stricter). The lease is returned at once. A process that opens the file in between waits that long, and the
/// kernel signals the lease holder: with SIGURG, which is ignored by default, because SIGIO would kill this process.
pub(crate) fn is_only_opener(file: BorrowedFd<'_>) -> bool {
    let lease = |command, argument: libc::c_int| {
        // SAFETY: F_SETSIG and F_SETLEASE take an int and touch no memory.
        unsafe { libc::fcntl(file.as_raw_fd(), command, argument) == 0 }
    };
    lease(F_SETSIG.cast_signed(), libc::SIGURG)
        && lease(libc::F_SETLEASE, libc::F_WRLCK)
        && lease(libc::F_SETLEASE, libc::F_UNLCK)
}
