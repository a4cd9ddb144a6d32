//! Where links on a disk lead that may be dead.

use super::of;
use crate::{block::number::DeviceNumber, deadline::Deadline, mountinfo::Mount, sys::apart::Apart};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};

/// What a disk that lives needs is milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether a path that comes to the file system of this mount leads to the file system `own` from there, by a link. What
/// somebody serves is not asked. A disk that does not answer is not waited for: nobody gets to a pool by it.
pub(crate) fn leads_to(mount: &Mount, path: &Path, own: DeviceNumber) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    if mount.is_served() {
        return false;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Linux 5.12 answers so far as nobody has to be asked.
    let known = rustix::fs::openat2(CWD, &*name, flags, Mode::empty(), ResolveFlags::CACHED);
    let end = match known {
        Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS) if answers(&name) => {
            rustix::fs::open(&*name, flags, Mode::empty())
        }
        known => known,
    };
    let end = end.ok().and_then(|end| of(&end).ok().flatten());
    end.is_some_and(|mount| mount.number == own)
}

/// Whether what a path leads to is known soon.
fn answers(path: &CStr) -> bool {
    let asked = || -> io::Result<bool> {
        let mut deadline = Deadline::after(PATIENCE);
        let look = Apart::look(path)?;
        loop {
            if let Some(ended) = look.ended()? {
                return Ok(ended.is_ok());
            }
            if !deadline.pause() {
                look.give_up();
                return Ok(false);
            }
        }
    };
    asked().unwrap_or_else(|error| {
        log::debug!("cannot look where {path:?} leads: {error}");
        false
    })
}
