//! Forks a child process that is killed when its parent exits.
#![allow(unsafe_code)]

use rustix::process::{Signal, getpid, set_parent_process_death_signal};
use std::{fs, io, os::unix::fs::MetadataExt};

/// Forks this process. Returns `None` in the child, which is killed when the parent exits, and the child's pid in the
/// parent.
///
/// # Errors
/// When the fork fails, or when this process has more than one thread: locks that other threads hold would never be
/// released in the child.
pub fn fork() -> io::Result<Option<i32>> {
    // The link count is one per thread, plus the two that every directory has.
    if fs::metadata("/proc/self/task")?.nlink() > 3 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let parent = getpid();
    // SAFETY: SIG_DFL is no function. A caller may have left SIGCHLD ignored, and then no child could be waited for.
    // This process has one thread, so the child is a complete copy of it.
    let forked = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::fork()
    };
    match forked {
        0 => {
            let ends_too = set_parent_process_death_signal(Some(Signal::KILL));
            // SAFETY: touches no memory.
            let above = unsafe { libc::getppid() };
            // Nothing here may panic: only the parent answers the caller.
            if ends_too.is_err() || above != parent.as_raw_nonzero().get() {
                leave()
            }
            Ok(None)
        }
        pid if pid > 0 => Ok(Some(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Exits a child immediately, without flushing buffers: the parent has everything that is to be kept.
pub(crate) fn leave() -> ! {
    // SAFETY: ends this process and touches no memory.
    unsafe { libc::_exit(0) }
}
