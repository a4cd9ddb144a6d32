//! A second process of this program, which ends with the first one.
#![allow(unsafe_code)]

use rustix::process::{Signal, getpid, set_parent_process_death_signal};
use std::{fs, io, os::unix::fs::MetadataExt};

/// Goes on in two processes: `None` in the new one, which is killed when the old one ends; in that
/// one the new one's id.
///
/// # Errors
/// When there is no second process, also because this one has more than one thread: the locks that
/// those hold would never be released in the new process.
pub fn fork() -> io::Result<Option<i32>> {
    // A directory a thread, and the two that every directory has.
    if fs::metadata("/proc/self/task")?.nlink() > 3 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let parent = getpid();
    // SAFETY: `signal` takes no function. A caller may have left SIGCHLD ignored, and then nobody could
    // be waited for. This process has one thread, so the new one is a whole copy of it.
    let forked = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::fork()
    };
    match forked {
        0 => {
            let ends_too = set_parent_process_death_signal(Some(Signal::KILL));
            // SAFETY: touches no memory.
            let above = unsafe { libc::getppid() };
            // Nothing here may panic: the first process answers, and nobody else.
            if ends_too.is_err() || above != parent.as_raw_nonzero().get() {
                leave()
            }
            Ok(None)
        }
        pid if pid > 0 => Ok(Some(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process, of which another one has all that is to be kept, at once: nothing is written any more.
pub(crate) fn leave() -> ! {
    // SAFETY: ends this process and touches no memory.
    unsafe { libc::_exit(0) }
}
