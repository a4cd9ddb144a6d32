//! Prepares a child process between fork and exec.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::{fs, io, os::unix::process::CommandExt, process::Command};

/// Gives the child its own session and umask (077), unblocks SIGXFSZ, which this process may have blocked, and lets it
/// inherit only the descriptors 0, 1, 2 and `inherit`. All of `inherit` must stay open until the child is spawned.
pub(crate) fn isolate(command: &mut Command, inherit: &[BorrowedFd<'_>]) -> io::Result<()> {
    let inherit: Vec<_> = inherit.iter().map(AsRawFd::as_raw_fd).collect();
    // Listing descriptors allocates, which is forbidden after fork, so support for close_range is checked here.
    let highest = match close_on_exec_from(RawFd::MAX) {
        Ok(()) => None,
        Err(_) => Some(highest_descriptor()?),
    };
    let prepare = move || {
        // SAFETY: these calls take no pointers.
        unsafe {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::umask(0o077);
        }
        let_size_limit_through()?;
        // Marked close-on-exec, not closed: std reports a failed exec through a descriptor of its own.
        match highest {
            None => close_on_exec_from(3)?,
            Some(highest) => (3..=highest).for_each(|fd| set_close_on_exec(fd, true)),
        }
        inherit.iter().for_each(|&fd| set_close_on_exec(fd, false));
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor locks, which is all
    // that is allowed between fork and exec.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

/// Unblocks SIGXFSZ. The signal mask survives `execve`, and a program may rely on being killed at its file size limit.
fn let_size_limit_through() -> io::Result<()> {
    let mut signals = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` writes all of the set before it is read; the old mask is not asked for.
    let error = unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, signals.as_ptr(), std::ptr::null_mut())
    };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Marks every descriptor from `first` on as close-on-exec: `close_range(first, ~0U, CLOSE_RANGE_CLOEXEC)`, Linux 5.11.
/// Older kernels answer EINVAL (no such flag) or ENOSYS.
fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range takes no pointers, and with this flag it closes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets or clears close-on-exec; ignores a descriptor that is not open.
fn set_close_on_exec(fd: RawFd, on: bool) {
    let flag = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: F_SETFD takes an int and touches no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFD, flag) };
}

pub(super) fn highest_descriptor() -> io::Result<RawFd> {
    let mut highest = 2;
    for entry in fs::read_dir("/proc/self/fd")? {
        if let Some(fd) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            highest = highest.max(fd);
        }
    }
    Ok(highest)
}
