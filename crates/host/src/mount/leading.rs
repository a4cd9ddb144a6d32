//! Resolution of links on disks that may be dead.

use super::of;
use crate::{
    block::number::DeviceNumber, deadline::Deadline, mountinfo::Mount, sys::disk_probe::DiskProbe,
};
use flexvol_sdk::leftover::LeftoverNote;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};

/// Timeout for a disk. A working one needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether `path`, which enters the file system of `mount`, leads by a link from there to the file system `own`.
/// Returns `false` for network file systems and FUSE, which are not accessed, and for a disk that does not answer in
/// time: no pool can be reached through it. While a process that asked the same is left behind, another one would only
/// wait beside it, so the answer is `false` then, too.
pub(crate) fn resolves_into(mount: &Mount, path: &Path, own: DeviceNumber) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    if mount.is_remote() {
        return false;
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Since Linux 5.12 this resolves the path from caches alone.
    let known = openat2(CWD, &*name, flags, Mode::empty(), ResolveFlags::CACHED);
    let end = match known {
        Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS)
            if resolves_in_time(
                &name,
                &LeftoverNote::of(("leading", mount.number, path, links(path))),
            ) =>
        {
            rustix::fs::open(&*name, flags, Mode::empty())
        }
        known => known,
    };
    let end = end.ok().and_then(|end| of(&end).ok().flatten());
    end.is_some_and(|mount| mount.number == own)
}

/// Identifies the links in a path, as far as the kernel has them in memory: no disk is asked. A link that was changed
/// may lead elsewhere, so what was left behind at its old end says nothing any more.
fn links(path: &Path) -> Vec<(u64, i64, u32)> {
    let identify = |place: &Path| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let known = openat2(CWD, place, flags, Mode::empty(), ResolveFlags::CACHED).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(known, c"", flags, StatxFlags::BASIC_STATS).ok()?;
        let is_link = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Symlink;
        let changed = found.stx_ctime;
        is_link.then_some((found.stx_ino, changed.tv_sec, changed.tv_nsec))
    };
    path.ancestors().filter_map(identify).collect()
}

/// Whether the path can be resolved within [`PATIENCE`].
fn resolves_in_time(path: &CStr, left: &LeftoverNote) -> bool {
    if left.process().is_some() {
        return false;
    }
    let asked =
        DiskProbe::resolve(path).and_then(|probe| probe.end(&mut Deadline::after(PATIENCE), left));
    asked
        .map(|ended| ended.is_some_and(|ended| ended.is_ok()))
        .unwrap_or_else(|error| {
            log::debug!("cannot look where {path:?} leads: {error}");
            false
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_link_that_was_changed_is_another_one() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::create_dir(root.join("pool")).unwrap();
        assert_eq!(links(&root.join("pool")), []);
        let [link, next] = ["link", "next"].map(|name| root.join(name));
        symlink("one", &link).unwrap();
        let before = [&link, &link.join("pool")].map(|path| links(path));
        // Since Linux 5.12 it is known.
        assert!(before[0].len() <= 1 && before[0] == before[1]);
        symlink("other", &next).unwrap();
        fs::rename(&next, &link).unwrap();
        let after = links(&link);
        assert!(after.is_empty() || after != before[0]);
    }
}
