//! Ioctls that measure and grow file systems.
//!
//! Those of XFS are not in the kernel's exported headers, so their structures are defined here; the others are in
//! `linux_raw_sys`. Numbers: `fs/xfs/libxfs/xfs_fs.h`, `fs/ext4/ext4.h`, `include/uapi/linux/btrfs.h`.
#![allow(unsafe_code)]

use linux_raw_sys::btrfs::{
    btrfs_ioctl_dev_info_args, btrfs_ioctl_fs_info_args, btrfs_ioctl_vol_args,
};
use nix::Result;
use std::{
    ffi::OsString,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::ffi::OsStringExt,
    },
    path::PathBuf,
};

/// `struct xfs_fsop_geom_v1`, which every kernel has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct XfsGeometry {
    /// Bytes in a block.
    pub block_size: u32,
    realtime_extent_size: u32,
    group_blocks: u32,
    group_count: u32,
    log_blocks: u32,
    sector_size: u32,
    inode_size: u32,
    /// Percentage of the space that inodes may take.
    pub inode_percent: u32,
    /// Blocks of the data section.
    pub data_blocks: u64,
    realtime_blocks: u64,
    realtime_extents: u64,
    log_start: u64,
    uuid: [u8; 16],
    stripe_unit: u32,
    stripe_width: u32,
    version: i32,
    flags: u32,
    log_sector_size: u32,
    realtime_sector_size: u32,
    directory_block_size: u32,
}

/// `struct xfs_growfs_data`. On 32-bit x86 the kernel's has no padding and another ioctl number; this crate is not
/// built there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct XfsGrowData {
    new_blocks: u64,
    inode_percent: u32,
}

const _: () = assert!(size_of::<XfsGeometry>() == 112);
const _: () = assert!(size_of::<XfsGrowData>() == 16);
const _: () = assert!(size_of::<btrfs_ioctl_vol_args>() == 4096);
const _: () = assert!(size_of::<btrfs_ioctl_dev_info_args>() == 4096);
const _: () = assert!(size_of::<btrfs_ioctl_fs_info_args>() == 1024);
const _: () = assert!(nix::request_code_write!(b'X', 110, size_of::<XfsGrowData>()) == 0x4010_586e);
const _: () = assert!(nix::request_code_write!(b'f', 16, size_of::<u64>()) == 0x4008_6610);
const _: () =
    assert!(nix::request_code_write!(0x94, 3, size_of::<btrfs_ioctl_vol_args>()) == 0x5000_9403);

nix::ioctl_read!(xfs_ioc_fsgeometry_v1, b'X', 100, XfsGeometry);
nix::ioctl_write_ptr!(xfs_ioc_fsgrowfsdata, b'X', 110, XfsGrowData);
nix::ioctl_write_ptr!(ext4_ioc_resize_fs, b'f', 16, u64);
nix::ioctl_write_ptr!(btrfs_ioc_resize, 0x94, 3, btrfs_ioctl_vol_args);
nix::ioctl_readwrite!(btrfs_ioc_dev_info, 0x94, 30, btrfs_ioctl_dev_info_args);
nix::ioctl_read!(btrfs_ioc_fs_info, 0x94, 31, btrfs_ioctl_fs_info_args);

/// The geometry of a mounted XFS.
pub(super) fn xfs_geometry(mount: BorrowedFd<'_>) -> Result<XfsGeometry> {
    let mut geometry = XfsGeometry::default();
    // SAFETY: the kernel writes one `xfs_fsop_geom_v1`, whose size is in the number, to
    // `geometry`; every bit pattern is a value of it.
    unsafe { xfs_ioc_fsgeometry_v1(mount.as_raw_fd(), &raw mut geometry)? };
    Ok(geometry)
}

/// Grows the data section of a mounted XFS. An unchanged number of blocks only rewrites the secondary superblocks.
pub(super) fn xfs_grow(mount: BorrowedFd<'_>, new_blocks: u64, inode_percent: u32) -> Result<()> {
    let request = XfsGrowData {
        new_blocks,
        inode_percent,
    };
    // SAFETY: the kernel reads one `xfs_growfs_data`, whose size is in the number.
    unsafe { xfs_ioc_fsgrowfsdata(mount.as_raw_fd(), &raw const request)? };
    Ok(())
}

/// Grows a mounted ext3 or ext4 to a number of its blocks.
pub(super) fn ext_grow(mount: BorrowedFd<'_>, new_blocks: u64) -> Result<()> {
    // SAFETY: the kernel reads one `__u64`.
    unsafe { ext4_ioc_resize_fs(mount.as_raw_fd(), &raw const new_blocks)? };
    Ok(())
}

/// Grows a mounted Btrfs to the end of one of its devices. Returns 0, or a positive
/// `enum btrfs_err_code`.
pub(super) fn btrfs_grow_to_end(mount: BorrowedFd<'_>, device_id: u64) -> Result<i32> {
    let mut request = btrfs_ioctl_vol_args {
        fd: 0,
        name: [0; 4088],
    };
    let text = format!("{device_id}:max");
    for (to, from) in request.name.iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the kernel reads one `btrfs_ioctl_vol_args`; the name is shorter than its field and
    // so ends in a NUL.
    unsafe { btrfs_ioc_resize(mount.as_raw_fd(), &raw const request) }
}

/// Returns the bytes that a mounted Btrfs uses of one of its devices.
pub(super) fn btrfs_device_size(mount: BorrowedFd<'_>, device_id: u64) -> Result<u64> {
    Ok(btrfs_device(mount, device_id)?.total_bytes)
}

/// Returns the bytes of a device of a mounted Btrfs that are in no chunk, zero where the device is missing; ENODEV
/// where there is no device with this id.
pub(super) fn btrfs_unallocated(mount: BorrowedFd<'_>, device_id: u64) -> Result<u64> {
    /// Start of the first chunk (`BTRFS_DEVICE_RANGE_RESERVED`).
    const RESERVED: u64 = 1 << 20;
    let device = btrfs_device(mount, device_id)?;
    let size = if device.path[0] == 0 {
        0
    } else {
        device.total_bytes
    };
    Ok(size.saturating_sub(device.bytes_used.saturating_add(RESERVED)))
}

/// Returns the path by which the kernel opened a device of a mounted Btrfs; ENODEV where there is no device with this
/// id.
pub(super) fn btrfs_device_path(mount: BorrowedFd<'_>, device_id: u64) -> Result<PathBuf> {
    let path = btrfs_device(mount, device_id)?.path;
    let path = path.iter().take_while(|byte| **byte != 0);
    Ok(OsString::from_vec(path.copied().collect()).into())
}

fn btrfs_device(mount: BorrowedFd<'_>, device_id: u64) -> Result<btrfs_ioctl_dev_info_args> {
    let mut info = btrfs_ioctl_dev_info_args {
        devid: device_id,
        uuid: [0; 16],
        bytes_used: 0,
        total_bytes: 0,
        fsid: [0; 16],
        unused: [0; 377],
        path: [0; 1024],
    };
    // SAFETY: the kernel reads and writes one `btrfs_ioctl_dev_info_args`; every bit pattern is a
    // value of it.
    unsafe { btrfs_ioc_dev_info(mount.as_raw_fd(), &raw mut info)? };
    Ok(info)
}

/// Returns the fsid of a mounted Btrfs, and the largest id of its devices.
pub(super) fn btrfs_identity(mount: BorrowedFd<'_>) -> Result<([u8; 16], u64)> {
    let mut info = btrfs_ioctl_fs_info_args {
        max_id: 0,
        num_devices: 0,
        fsid: [0; 16],
        nodesize: 0,
        sectorsize: 0,
        clone_alignment: 0,
        csum_type: 0,
        csum_size: 0,
        flags: 0,
        generation: 0,
        metadata_uuid: [0; 16],
        reserved: [0; 944],
    };
    // SAFETY: the kernel writes one `btrfs_ioctl_fs_info_args`; every bit pattern is a value of
    // it.
    unsafe { btrfs_ioc_fs_info(mount.as_raw_fd(), &raw mut info)? };
    Ok((info.fsid, info.max_id))
}
