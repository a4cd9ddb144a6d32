//! Grows file systems, and measures their size.
//!
//! A mounted file system is grown by its ioctl: no program is needed, and the kernel's error is exact. No reported
//! success is trusted: the size is measured afterwards. Nothing here can shrink: a file system that is larger than its
//! device is refused before any request is sent.

mod btrfs;
mod ioctl;
mod offline;
mod torn;

pub(crate) use btrfs::entry as btrfs_entry;
pub use btrfs::is_mounted as is_btrfs_mounted;
pub(crate) use btrfs::{
    devices as btrfs_devices, unallocated as btrfs_unallocated, uuid as btrfs_uuid,
};
pub use offline::{Resizing, mend, offline};

use crate::{
    block::device::Device,
    kernel,
    superblock::{self, ExtDetails, Found, Superblock},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result};
use nix::errno::Errno;
use std::{
    fs, io,
    os::{fd::BorrowedFd, unix::fs::FileExt},
};

/// Size of a file system, and how closely it fills its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the device that it spans.
    pub size: Bytes,
    /// Most bytes that it may have to leave unused at the end of a device. It fills the device when `size + slack`
    /// reaches the device's end.
    pub slack: Bytes,
}

impl Geometry {
    /// Whether a file system of this geometry cannot grow further on such a device.
    #[must_use]
    pub fn fills(self, device: Bytes) -> bool {
        self.size.0.saturating_add(self.slack.0) >= device.0
    }
}

/// Least blocks of XFS' last allocation group (`XFS_MIN_AG_BLOCKS`, fs/xfs/libxfs/xfs_fs.h). XFS drops a smaller one
/// and still reports success.
const XFS_LEAST_GROUP: u64 = 64;

/// Id of the only device of a Btrfs made by [`crate::fs::format::mkfs`].
const BTRFS_DEVICE: u64 = 1;

/// Btrfs rounds its device's size down to sectors, which are at most as large as a page.
const BTRFS_SLACK: Bytes = Bytes(65535);

/// Measures a mounted file system.
///
/// XFS and Btrfs report what their kernel code uses. For ext3 and ext4 the superblock is read from the block device's
/// page cache, from the very buffer that the kernel changes.
///
/// # Errors
/// [`ErrorKind::Storage`] when the kernel does not answer, or the superblock is invalid.
pub fn measure(mount: BorrowedFd<'_>, device: &Device, filesystem: Filesystem) -> Result<Geometry> {
    let failed = |error: Errno| Error::system("measure the file system", error);
    match filesystem {
        Filesystem::Xfs => {
            let geometry = ioctl::xfs_geometry(mount).map_err(failed)?;
            let block = u64::from(geometry.block_size);
            Ok(Geometry {
                size: Bytes(geometry.data_blocks.saturating_mul(block)),
                slack: xfs_slack(block),
            })
        }
        Filesystem::Btrfs => {
            let size = ioctl::btrfs_device_size(mount, BTRFS_DEVICE).map_err(failed)?;
            Ok(Geometry {
                size: Bytes(size),
                slack: BTRFS_SLACK,
            })
        }
        _ => ext_superblock(device).map(|(sb, details)| ext_geometry(&sb, details)),
    }
}

/// Measures an unmounted file system by its superblock.
///
/// `file` is its device, or its image while no loop device is attached. `None` where there is no complete superblock of
/// a file system that volumes may hold. Of a mounted file system this is the state last written out, which for XFS may
/// be older than the result of [`measure`].
///
/// # Errors
/// [`ErrorKind::Storage`] when it cannot be read.
pub fn measure_unmounted(file: &fs::File) -> Result<Option<(Superblock, Geometry)>> {
    let mut head = Vec::with_capacity(superblock::HEAD);
    read_head(file, &mut head)
        .map_err(|error| Error::system("read the file system's superblock", error))?;
    let found = [superblock::xfs, superblock::ext, superblock::btrfs]
        .into_iter()
        .find_map(|read| match read(&head) {
            Found::Whole(superblock) => Some(superblock),
            Found::Nothing | Found::Other(_) => None,
        });
    Ok(found.map(|superblock| {
        let slack = match superblock.filesystem {
            Filesystem::Xfs => xfs_slack(superblock.block.into()),
            Filesystem::Btrfs => BTRFS_SLACK,
            _ => superblock::ext_details(&head).map_or(Bytes(0), |details| details.slack),
        };
        let size = superblock.size;
        (superblock, Geometry { size, slack })
    }))
}

fn read_head(file: &fs::File, head: &mut Vec<u8>) -> io::Result<()> {
    head.resize(superblock::HEAD, 0);
    let mut length = 0;
    while length < head.len() {
        match file.read_at(&mut head[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    head.truncate(length);
    Ok(())
}

fn xfs_slack(block: u64) -> Bytes {
    Bytes((XFS_LEAST_GROUP * block).saturating_sub(1))
}

/// Grows a mounted file system to the size of its device and returns the geometry measured afterwards.
///
/// XFS is grown again even if it has that size: a power cut during an earlier growth leaves outdated secondary
/// superblocks, which `xfs_repair` would trust, and the kernel rewrites them (`xfs_update_secondary_sbs`).
///
/// # Errors
/// - [`ErrorKind::Conflict`]: the file system is larger than its device, or has errors, or this kernel cannot grow one
///   with its features while it is mounted ([`offline()`] may).
/// - [`ErrorKind::CapabilityMissing`]: this process lacks a capability, which the message names.
/// - [`ErrorKind::SizeNotReached`]: the growth succeeded but the file system is too small.
/// - [`ErrorKind::Busy`]: an exclusive operation, such as a balance, runs on the Btrfs.
pub fn online(mount: BorrowedFd<'_>, device: &Device, filesystem: Filesystem) -> Result<Geometry> {
    let space = device.size()?;
    let before = measure(mount, device, filesystem)?;
    refuse_beyond(before.size, space)?;
    match filesystem {
        Filesystem::Xfs => grow_xfs(mount, space)?,
        Filesystem::Btrfs if before.fills(space) => return Ok(before),
        Filesystem::Btrfs => grow_btrfs(mount, space)?,
        _ => grow_ext(mount, device, filesystem, space)?,
    }
    let after = measure(mount, device, filesystem)?;
    refuse_less(after, space)?;
    rustix::fs::syncfs(mount)
        .map_err(|error| Error::system("write the grown file system", error))?;
    Ok(after)
}

fn grow_xfs(mount: BorrowedFd<'_>, space: Bytes) -> Result<()> {
    let failed = |error| match error {
        Errno::EPERM => Error::new(
            ErrorKind::CapabilityMissing,
            "cannot grow the xfs: this process lacks CAP_SYS_ADMIN",
        ),
        error => Error::system("grow the xfs", error),
    };
    let geometry = ioctl::xfs_geometry(mount).map_err(failed)?;
    let blocks = space.0 / u64::from(geometry.block_size.max(1));
    // Never fewer than now: some kernels can shrink.
    let blocks = blocks.max(geometry.data_blocks);
    ioctl::xfs_grow(mount, blocks, geometry.inode_percent).map_err(failed)
}

/// Returns the least size to which the kernel resizes such a file system, although mkfs makes smaller ones
/// (fs/btrfs/ioctl.c, `btrfs_ioctl_resize`).
#[must_use]
pub fn least(filesystem: Filesystem) -> Bytes {
    match filesystem {
        Filesystem::Btrfs => Bytes(256 << 20),
        _ => Bytes(0),
    }
}

fn grow_btrfs(mount: BorrowedFd<'_>, space: Bytes) -> Result<()> {
    /// `BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS`.
    const RUNNING: i32 = 10;
    let least = least(Filesystem::Btrfs);
    if space < least {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "a btrfs grows to {least} at least, and the volume has {space}; ask for {least} or more"
            ),
        ));
    }
    match ioctl::btrfs_grow_to_end(mount, BTRFS_DEVICE) {
        Ok(0) => Ok(()),
        Ok(RUNNING) | Err(Errno::EINPROGRESS) => Err(Error::new(
            ErrorKind::Busy,
            "cannot grow the btrfs: another operation on it (a balance, say) is running",
        )),
        Ok(code) => Err(Error::new(
            ErrorKind::Storage,
            format!("cannot grow the btrfs: the kernel answers with code {code}"),
        )),
        Err(Errno::EPERM) => Err(Error::new(
            ErrorKind::CapabilityMissing,
            "cannot grow the btrfs: this process lacks CAP_SYS_ADMIN",
        )),
        Err(error) => Err(Error::system("grow the btrfs", error)),
    }
}

fn grow_ext(
    mount: BorrowedFd<'_>,
    device: &Device,
    filesystem: Filesystem,
    space: Bytes,
) -> Result<()> {
    let (found, details) = ext_superblock(device)?;
    let blocks = space.0 / u64::from(found.block);
    // Whether a partial last group must be left out is for the kernel to decide.
    if ends_with(&found, space) {
        return Ok(());
    }
    // The kernel does not check this (fs/ext4/resize.c, `ext4_resize_fs`), only resize2fs does.
    if blocks > details.most_blocks {
        return Err(Error::new(
            ErrorKind::SizeNotReached,
            format!(
                "cannot grow the {filesystem} to {space}: it was made without the feature 64bit and ends before {}; copy the data to a new volume",
                Bytes(details.most_blocks.saturating_mul(found.block.into()))
            ),
        ));
    }
    match ioctl::ext_grow(mount, blocks) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => Err(explain_refusal(filesystem, details)),
        Err(error @ (Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ENOSYS)) => Err(Error::new(
            ErrorKind::Conflict,
            format!("this kernel cannot grow the {filesystem} while it is mounted"),
        )
        .because(error)),
        Err(error) => Err(Error::system(&format!("grow the {filesystem}"), error)),
    }
}

/// Explains EPERM by the three reasons of `ext4_resize_begin` (fs/ext4/resize.c), in its order.
fn explain_refusal(filesystem: Filesystem, details: ExtDetails) -> Error {
    if !has_capability_sys_resource() {
        return Error::new(
            ErrorKind::CapabilityMissing,
            format!(
                "cannot grow the {filesystem} while it is mounted: this process lacks \
                 CAP_SYS_RESOURCE"
            ),
        );
    }
    let reason = match details.has_errors {
        true => "the kernel has found errors in it; it must be unmounted and checked with e2fsck",
        false => "it is mounted by a backup of its superblock; unmount it and check it with e2fsck",
    };
    Error::new(
        ErrorKind::Conflict,
        format!("cannot grow the {filesystem} while it is mounted: {reason}"),
    )
}

/// Counts the capability as missing if this cannot be determined: that is the usual reason.
fn has_capability_sys_resource() -> bool {
    kernel::has(kernel::SYS_RESOURCE).unwrap_or(false)
}

fn ext_superblock(device: &Device) -> Result<(Superblock, ExtDetails)> {
    let mut head = [0; 2048];
    read_fully(device, &mut head)
        .map_err(|error| Error::system("read the file system's superblock", error))?;
    match (superblock::ext(&head), superblock::ext_details(&head)) {
        (Found::Whole(superblock), Some(details)) => Ok((superblock, details)),
        _ => Err(Error::new(
            ErrorKind::Storage,
            "cannot measure the file system: its superblock is not an ext superblock",
        )),
    }
}

/// Whether the kernel has found errors in an ext3 or ext4 that no `e2fsck` has cleared since.
pub(super) fn met_errors(device: &Device) -> Result<bool> {
    ext_superblock(device).map(|(_, details)| details.has_errors)
}

/// Reads through the block device's page cache on purpose: a mounted ext4 changes its superblock there.
fn read_fully(device: &Device, bytes: &mut [u8]) -> io::Result<()> {
    device.file().read_exact_at(bytes, 0)
}

fn ext_geometry(superblock: &Superblock, details: ExtDetails) -> Geometry {
    Geometry {
        size: superblock.size,
        slack: details.slack,
    }
}

/// Whether a file system includes the last whole block of its device.
fn ends_with(found: &Superblock, device: Bytes) -> bool {
    let block = u64::from(found.block.max(1));
    found.size.0 / block >= device.0 / block
}

/// Refuses a file system larger than its device: it has lost its end. Restoring the device's size may save it; nothing
/// else is safe.
fn refuse_beyond(filesystem: Bytes, device: Bytes) -> Result<()> {
    if filesystem <= device {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "the file system spans {filesystem} and its device has only {device}: the device was \
             cut; restore its size"
        ),
    ))
}

fn refuse_less(found: Geometry, device: Bytes) -> Result<()> {
    if found.fills(device) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::SizeNotReached,
        format!(
            "the file system was grown to {} and not to the {device} of its device",
            found.size
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slack_ends_where_a_device_could_be_used_further() {
        let geometry = Geometry {
            size: Bytes(1 << 20),
            slack: Bytes(64 * 4096 - 1),
        };
        assert!(geometry.fills(Bytes((1 << 20) + 64 * 4096 - 1)));
        assert!(!geometry.fills(Bytes((1 << 20) + 64 * 4096)));
    }

    #[test]
    fn a_cut_device_is_named_with_both_sizes() {
        let error = refuse_beyond(Bytes(2 << 20), Bytes(1 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("2Mi") && error.to_string().contains("1Mi"));
    }
}
