//! Ioctls that query block devices.
#![allow(unsafe_code)]

use linux_raw_sys::ioctl::{BLKGETSIZE64, BLKROGET, BLKSSZGET};
use rustix::{fd::BorrowedFd, io, ioctl};

/// `#define BLKGETSIZE64 _IOR(0x12,114,size_t)`: bytes. The kernel stores a u64 whatever the
/// width of `size_t` (block/ioctl.c, `blkdev_common_ioctl` → `put_u64`).
pub(crate) fn size(device: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 writes one u64 through its argument and reads nothing.
    unsafe { ioctl::ioctl(device, ioctl::Getter::<BLKGETSIZE64, u64>::new()) }
}

/// `#define BLKROGET _IO(0x12,94)`: whether the device refuses writes (`put_int`).
pub(crate) fn read_only(device: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: BLKROGET writes one int through its argument and reads nothing.
    let flag = unsafe { ioctl::ioctl(device, ioctl::Getter::<BLKROGET, i32>::new()) }?;
    Ok(flag != 0)
}

/// `#define BLKSSZGET _IO(0x12,104)`: bytes of a logical sector (`put_int`).
pub(crate) fn sector_size(device: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: BLKSSZGET writes one int through its argument and reads nothing.
    unsafe { ioctl::ioctl(device, ioctl::Getter::<BLKSSZGET, i32>::new()) }
}
