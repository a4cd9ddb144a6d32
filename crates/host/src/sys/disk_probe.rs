//! Asks a disk in a process of its own: a process that waits for a dead disk cannot be ended, and would block its
//! callers.
#![allow(unsafe_code)]

use super::child;
use crate::deadline::Deadline;
use flexvol_sdk::leftover::LeftoverNote;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::{Pid, Signal, WaitOptions},
};
use std::{ffi::CStr, io};

/// Child process that asks one disk.
#[derive(Debug)]
pub(crate) struct DiskProbe(Pid);

impl DiskProbe {
    /// Begins to sync the file at this path.
    pub(crate) fn sync(path: &CStr) -> io::Result<DiskProbe> {
        DiskProbe::start(path, sync)
    }

    /// Begins to resolve this path.
    pub(crate) fn resolve(path: &CStr) -> io::Result<DiskProbe> {
        DiskProbe::start(path, resolve)
    }

    /// Starts the child. `ask` must make system calls only.
    fn start(path: &CStr, ask: fn(&CStr) -> Result<(), Errno>) -> io::Result<DiskProbe> {
        let highest = child::highest_descriptor()?;
        // SAFETY: the child makes system calls only, which is all that is allowed after fork, and
        // ends without returning.
        let pid = unsafe {
            match libc::fork() {
                0 => {
                    // Closed so that readers of these descriptors see end-of-file when the parent exits.
                    (0..=highest).for_each(|fd| {
                        libc::close(fd);
                    });
                    libc::_exit(ask(path).err().map_or(0, Errno::raw_os_error))
                }
                pid => pid,
            }
        };
        let pid = Pid::from_raw(pid).filter(|_| pid > 0);
        pid.map(DiskProbe).ok_or_else(io::Error::last_os_error)
    }

    /// Waits for the child's result. At the deadline the child is killed and not waited for, and the answer is `None`. A
    /// child that waits for a disk goes when the disk answers. It is noted, so that whoever asks the same of the disk can
    /// look for it first, and does not wait beside it.
    pub(crate) fn end(
        &self,
        deadline: &mut Deadline,
        left: &LeftoverNote,
    ) -> io::Result<Option<Result<(), Errno>>> {
        loop {
            if let Some(ended) = self.ended()? {
                return Ok(Some(ended));
            }
            if !deadline.pause() {
                break;
            }
        }
        if let Err(error) = rustix::process::kill_process(self.0, Signal::KILL) {
            log::debug!("cannot end a process that asks a disk: {error}");
        }
        left.record(self.0.as_raw_nonzero().get().unsigned_abs());
        Ok(None)
    }

    /// Returns the child's result; `None` while it runs.
    fn ended(&self) -> io::Result<Option<Result<(), Errno>>> {
        let Some((_, status)) = rustix::process::waitpid(Some(self.0), WaitOptions::NOHANG)? else {
            return Ok(None);
        };
        Ok(Some(match status.exit_status() {
            Some(0) => Ok(()),
            Some(error) => Err(Errno::from_raw_os_error(error)),
            // Killed by a signal.
            None => Err(Errno::INTR),
        }))
    }
}

fn sync(path: &CStr) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::fsync(rustix::fs::open(path, flags, Mode::empty())?)
}

fn resolve(path: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(drop)
}
