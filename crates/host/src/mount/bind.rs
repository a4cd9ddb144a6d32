//! Bind mounts of directories.

use super::{Target, attributes, descriptor_path, remount::remount, target::Flush};
use flexvol_sdk::{Error, Result};
use nix::mount::MsFlags;
use rustix::{
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bind-mounts a directory on the target, on top of whatever is mounted there, without the mounts below the directory.
/// The mount is always `nosuid` and `nodev`; `read_only` applies to this mount alone.
///
/// With the mount calls of Linux 5.12 the mount appears with all its flags or not at all. On older kernels it lacks
/// them for a moment, and keeps lacking them if the process is killed then. [`Mount::is_confined`] detects this, and a
/// retry must set them.
///
/// [`Mount::is_confined`]: crate::mountinfo::Mount::is_confined
///
/// # Errors
/// [`flexvol_sdk::ErrorKind::NotFound`] when the target is gone, otherwise the error of the system call.
pub fn bind(directory: BorrowedFd<'_>, target: &Target, read_only: bool) -> Result<()> {
    let place = target.directory()?;
    let mounted = match confined_clone(directory, read_only) {
        Ok(mount) => move_mount(
            mount,
            c"",
            &place,
            c"",
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        ),
        Err(error) => Err(error),
    };
    match mounted {
        Err(Errno::NOSYS) => bind_by_path(directory, &place, target, read_only),
        result => result.map_err(failed),
    }
}

fn failed(error: impl Into<std::io::Error>) -> Error {
    Error::system("mount the volume on its directory", error)
}

/// Clones the mount of a directory as a detached mount, which ends with its descriptor.
fn confined_clone(directory: BorrowedFd<'_>, read_only: bool) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(directory, c"", flags)?;
    attributes::confine(mount.as_fd(), read_only)?;
    Ok(mount)
}

fn bind_by_path(
    directory: BorrowedFd<'_>,
    place: &OwnedFd,
    target: &Target,
    read_only: bool,
) -> Result<()> {
    let source = format!("/proc/self/fd/{}", directory.as_raw_fd());
    nix::mount::mount(
        Some(source.as_str()),
        &descriptor_path(place),
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(failed)?;
    let confined = target
        .directory()
        .and_then(|mount| remount(&mount, read_only).map_err(failed));
    confined.inspect_err(|_| {
        // The mount lacks its flags, so it must not stay.
        if let Err(error) = target.unmount(Flush::Nothing) {
            log::error!("cannot undo a mount: {}", error.report());
        }
    })
}
