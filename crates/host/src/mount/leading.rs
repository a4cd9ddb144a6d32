//! Resolution of links on disks that may be dead.

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

/// Timeout for a disk. A working one needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether `path`, which enters the file system of `mount`, leads by a link from there to the file system `own`.
/// Returns `false` for network file systems and FUSE, which are not accessed, and for a disk that does not answer in
/// time: no pool can be reached through it.
pub(crate) fn leads_to(mount: &Mount, path: &Path, own: DeviceNumber) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    if mount.is_served() {
        return false;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Since Linux 5.12 this resolves the path from caches alone.
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

/// Whether the path can be resolved within [`PATIENCE`].
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
