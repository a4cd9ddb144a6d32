//! Group ownership of volumes that have no file system of their own.

use crate::fs::immutable;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{Gid, Mode, fchmod, fchown, fstat},
    io::Errno,
};
use std::os::fd::BorrowedFd;

/// Mode bits that kubelet adds to a directory for an fsGroup: the group can read, write and enter it, and new entries
/// belong to the group (Kubernetes 1.20, `pkg/volume/volume_linux.go`, `changeFilePermission`).
const FOR_THE_GROUP: u32 = 0o2770;

/// Gives a volume's root to the group of a pod's `fsGroup`, if the group does not have it already.
///
/// Files inside keep their groups. For a driver with `fsGroup: true`, kubelet walks all of them at every mount, which
/// on large volumes takes longer than its callers wait. Files that pods create below a setgid root have the right group
/// anyway.
///
/// # Errors
/// The errors of the system calls.
pub fn share_with(root: BorrowedFd<'_>, group: u32) -> Result<()> {
    let change = || -> rustix::io::Result<()> {
        let stat = fstat(root)?;
        if stat.st_gid != group {
            fchown(root, None, Some(Gid::from_raw(group)))?;
        }
        let mode = stat.st_mode & 0o7777;
        if mode & FOR_THE_GROUP != FOR_THE_GROUP {
            fchmod(root, Mode::from_raw_mode(mode | FOR_THE_GROUP))?;
        }
        Ok(())
    };
    change().map_err(|error| {
        let has_flags = || immutable::flags(root).is_ok_and(|flags| !flags.is_empty());
        if error == Errno::PERM && has_flags() {
            return Error::new(
                ErrorKind::Conflict,
                "the volume's root may not be changed (chattr +i or +a), so it cannot be given to the pod's fsGroup; take the flag away in a pod without one",
            );
        }
        Error::system("give the volume to the pod's group", error)
    })
}
