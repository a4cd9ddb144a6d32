//! Which Btrfs is mounted, and on which devices.

use super::ioctl;
use crate::{
    block::{device_node, number::DeviceNumber},
    uuid::Uuid,
};
use flexvol_sdk::{Error, Result};
use rustix::fs::FileType;
use std::{
    fs, io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

/// What the kernel knows of each Btrfs that is mounted, by UUID.
const ALL: &str = "/sys/fs/btrfs";

/// As many ids of devices are tried: they are never used again, and a pod that adds and removes devices
/// makes them large.
const IDS: u64 = 64;

/// What a mounted Btrfs is called by, whatever devices it was given since it was made. Since Linux 6.7
/// that is another UUID than it was made with while a copy of it is mounted (`temp_fsid` in
/// fs/btrfs/volumes.h), or the copy's is another.
pub(crate) fn uuid(mount: BorrowedFd<'_>) -> Option<Uuid> {
    let (fsid, _) = ioctl::btrfs_identity(mount).ok()?;
    Some(Uuid::from_bytes(fsid))
}

/// Whether a Btrfs of that UUID is mounted, in any mount namespace or none. It may be a copy.
///
/// # Errors
/// When sysfs cannot be asked.
pub fn is_mounted(uuid: Uuid) -> Result<bool> {
    fs::exists(format!("{ALL}/{uuid}"))
        .map_err(|error| Error::system("ask the kernel for its btrfs", error))
}

/// The block devices of a mounted Btrfs, as far as they are known. Its `st_dev` does not tell; sysfs
/// has all of them, also where two devices say that they have the same id. Which entry of sysfs it is the
/// mount's UUID tells, but while a copy is mounted the kernel mixes these up: then it is that one which
/// has a device that the mount names.
pub(crate) fn devices(mount: BorrowedFd<'_>) -> Vec<DeviceNumber> {
    entry(mount).map_or(Vec::new(), |entry| devices_in(&entry))
}

/// What is in no chunk, on each of its devices. `None` where the kernel does not tell.
pub(crate) fn unallocated(mount: BorrowedFd<'_>) -> Option<Vec<u64>> {
    let (_, most) = ioctl::btrfs_identity(mount).ok()?;
    let each = (1..=most).take(4096);
    Some(
        each.filter_map(|id| ioctl::btrfs_unallocated(mount, id).ok())
            .collect(),
    )
}

/// What sysfs has of it.
pub(crate) fn entry(mount: BorrowedFd<'_>) -> Option<PathBuf> {
    let (fsid, most) = ioctl::btrfs_identity(mount).ok()?;
    let by_uuid = Path::new(ALL).join(Uuid::from_bytes(fsid).to_string());
    let named = (1..=most.min(IDS))
        .filter_map(|id| ioctl::btrfs_device_path(mount, id).ok())
        .find_map(|path| number_of(&path));
    let has = |entry: &PathBuf| named.is_none_or(|named| devices_in(entry).contains(&named));
    match has(&by_uuid) {
        true => Some(by_uuid),
        false => Some(every().find(has).unwrap_or(by_uuid)),
    }
}

fn every() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(ALL).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn devices_in(entry: &Path) -> Vec<DeviceNumber> {
    let devices = fs::read_dir(entry.join("devices"));
    let devices = devices.into_iter().flatten().flatten();
    devices
        .filter_map(|device| device_node::number_in(&device.path().join("dev")).ok())
        .collect()
}

/// `None` where the path is another mount namespace's, or was replaced.
fn number_of(path: &Path) -> Option<DeviceNumber> {
    let stat = rustix::fs::stat(path).map_err(io::Error::from).ok()?;
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    is_block.then(|| DeviceNumber::from_raw(stat.st_rdev))
}
