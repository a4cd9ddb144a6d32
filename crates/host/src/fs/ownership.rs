//! Who may write into a volume that has no file system of its own.

use crate::fs::immutable;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{Gid, Mode, fchmod, fchown, fstat},
    io::Errno,
};
use std::os::fd::BorrowedFd;

/// What kubelet adds to the mode of a directory for an fsGroup: the group reads, writes and
/// enters, and what is made in it belongs to the group (Kubernetes 1.20,
/// `pkg/volume/volume_linux.go`, `changeFilePermission`).
const FOR_THE_GROUP: u32 = 0o2770;

/// Gives a volume's root to the group of a pod's `fsGroup`, unless it has it.
///
/// What is in the volume keeps its groups. Kubelet goes through all of it where a driver says
/// `fsGroup: true`, at every mount; on large volumes that takes longer than its callers wait, and
/// what pods make below a root that passes its group on has the right one anyway.
///
/// # Errors
/// What the system calls say.
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
