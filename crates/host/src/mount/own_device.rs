//! A Btrfs is mounted from the volume's own device, or not at all.
//!
//! The kernel knows a Btrfs by its UUID, and before Linux 6.7 by nothing else: of several devices that
//! have the same one, and were scanned by udev, it mounts the newest, whichever it was told
//! (`device_list_add` and `open_fs_devices` in fs/btrfs/volumes.c). Every container reads the UUIDs of
//! mounted ones in /sys/fs/btrfs, and whoever has a raw disk writes there what he likes.

use crate::{
    block::{device::Device, number::DeviceNumber},
    fs::grow,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

/// Mounts the Btrfs of a device, which must be its only one. Nobody has seen a mount of another's: it is
/// dropped, with which kernels since 6.2, and 6.1 as it is maintained, forget its device
/// (`btrfs_close_devices`), and it is tried once more.
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

/// Refuses a mount that is not of that device alone: one more of the file system is another question to
/// the kernel.
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
