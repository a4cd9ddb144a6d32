//! Identifies a mounted Btrfs and its devices.

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

/// Directory of sysfs with an entry for each mounted Btrfs, by UUID.
const ALL: &str = "/sys/fs/btrfs";

/// Most device ids tried. Ids are never reused, and a pod that adds and removes devices makes them large.
const IDS: u64 = 64;

/// Returns the UUID by which the kernel knows a mounted Btrfs, whatever devices were added since it was made. Since
/// Linux 6.7 this differs from the UUID it was made with while a copy of it is mounted (`temp_fsid` in
/// fs/btrfs/volumes.h), or that of the copy differs.
pub(crate) fn uuid(mount: BorrowedFd<'_>) -> Option<Uuid> {
    let (fsid, _) = ioctl::btrfs_identity(mount).ok()?;
    Some(Uuid::from_bytes(fsid))
}

/// Whether a Btrfs with this UUID is mounted, in any mount namespace or none. It may be a copy.
///
/// # Errors
/// When sysfs cannot be read.
pub fn is_mounted(uuid: Uuid) -> Result<bool> {
    fs::exists(format!("{ALL}/{uuid}"))
        .map_err(|error| Error::system("ask the kernel for its btrfs", error))
}

/// Returns the block devices of a mounted Btrfs, as far as they are known. Its `st_dev` does not tell them. sysfs lists
/// them all, even if two devices claim the same id. The mount's UUID selects the entry of sysfs. While a copy is
/// mounted the kernel mixes the entries up, so the entry must have a device that the mount names.
pub(crate) fn devices(mount: BorrowedFd<'_>) -> Vec<DeviceNumber> {
    entry(mount).map_or(Vec::new(), |entry| devices_in(&entry))
}

/// Returns the unallocated bytes of each of its devices; `None` where the kernel does not tell.
pub(crate) fn unallocated(mount: BorrowedFd<'_>) -> Option<Vec<u64>> {
    let (_, most) = ioctl::btrfs_identity(mount).ok()?;
    let each = (1..=most).take(4096);
    Some(
        each.filter_map(|id| ioctl::btrfs_unallocated(mount, id).ok())
            .collect(),
    )
}

/// Finds the sysfs directory of a mounted Btrfs.
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

/// Returns the number of the block device at a path. `None` where the path belongs to another mount namespace, or was
/// replaced.
fn number_of(path: &Path) -> Option<DeviceNumber> {
    let stat = rustix::fs::stat(path).map_err(io::Error::from).ok()?;
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    is_block.then(|| DeviceNumber::from_raw(stat.st_rdev))
}
