//! Changes of a mount's flags before Linux 5.12.

use super::descriptor_path;
use nix::mount::MsFlags;
use rustix::{
    fs::{StatVfsMountFlags, fstatvfs},
    io::Errno,
};
use std::{ffi::OsStr, os::fd::OwnedFd, path::PathBuf};

/// Remounts one mount, which replaces all of its flags. The driver's mounts are always `nosuid` and `nodev`.
pub(super) fn remount(mount: &OwnedFd, read_only: bool) -> rustix::io::Result<()> {
    let kept = fstatvfs(mount)?.f_flag;
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for (flag, mount_flag) in [
        (StatVfsMountFlags::NOEXEC, MsFlags::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, MsFlags::MS_NOATIME),
        (StatVfsMountFlags::NODIRATIME, MsFlags::MS_NODIRATIME),
        (StatVfsMountFlags::RELATIME, MsFlags::MS_RELATIME),
    ] {
        flags.set(mount_flag, kept.contains(flag));
    }
    flags.set(MsFlags::MS_RDONLY, read_only);
    let path: PathBuf = descriptor_path(mount);
    nix::mount::mount(None::<&OsStr>, &path, None::<&OsStr>, flags, None::<&OsStr>)
        .map_err(|error| Errno::from_raw_os_error(error as i32))
}
