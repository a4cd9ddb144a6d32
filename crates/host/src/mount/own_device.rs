//! Ensures that a Btrfs is mounted from the volume's own device.
//!
//! The kernel identifies a Btrfs by its UUID, before Linux 6.7 by nothing else. If udev scanned several devices with
//! the same UUID, the kernel mounts the newest, whichever device was given (`device_list_add` and `open_fs_devices` in
//! fs/btrfs/volumes.c). Every container can read the UUIDs of mounted file systems in /sys/fs/btrfs, and a user of a
//! raw disk can write any UUID there.

use crate::{
    block::{device::Device, number::DeviceNumber},
    fs::grow,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

/// Mounts the Btrfs of a device, which must be its only device. If the kernel mounts another device, that mount is
/// dropped before any process saw it, and mounting is tried once more: kernels since 6.2, and maintained 6.1 ones, then
/// forget the other device (`btrfs_close_devices`).
pub(super) fn mounted_from<M: AsFd>(device: &Device, mount: impl Fn() -> Result<M>) -> Result<M> {
    let try_once = || -> Result<Result<M, Vec<DeviceNumber>>> {
        let mounted = mount()?;
        let found = grow::btrfs_devices(mounted.as_fd());
        Ok(match found == [device.number()] {
            true => Ok(mounted),
            false => Err(found),
        })
    };
    match try_once()? {
        Ok(mounted) => Ok(mounted),
        Err(_) => try_once()?.map_err(|found| of_others(&found)),
    }
}

/// Returns an error unless the mount's only device is `device`. Needed for each further mount of the file system,
/// because the kernel chooses the device anew.
pub(super) fn expect(device: DeviceNumber, mount: BorrowedFd<'_>) -> Result<()> {
    let found = grow::btrfs_devices(mount);
    match found == [device] {
        true => Ok(()),
        false => Err(of_others(&found)),
    }
}

#[cold]
fn of_others(found: &[DeviceNumber]) -> Error {
    let name = |device: &DeviceNumber| {
        let device = Device::open(*device).ok()?;
        let name = device.path().file_name().map(Path::new)?;
        Some(name.display().to_string())
    };
    let names = found
        .iter()
        .map(|device| name(device).unwrap_or_else(|| device.to_string()));
    let devices = match found {
        [] => "devices that it does not tell".to_owned(),
        _ => names.collect::<Vec<_>>().join(", "),
    };
    Error::new(
        ErrorKind::Storage,
        format!(
            "cannot mount the volume: the kernel does not mount its btrfs from the volume's device alone, but from {devices}; find out on the node what else says that it is this file system, take it away, and run `btrfs device scan --forget`"
        ),
    )
}
