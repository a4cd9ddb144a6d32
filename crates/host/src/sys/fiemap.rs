//! Extents of a file (Documentation/filesystems/fiemap.rst, linux/fiemap.h).
#![allow(unsafe_code)]

use linux_raw_sys::ioctl::FS_IOC_FIEMAP;
use rustix::{
    fd::BorrowedFd,
    io::{self, Errno},
    ioctl,
};

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    _physical: u64,
    pub(crate) length: u64,
    _reserved: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub(crate) flags: u32,
    _reserved_too: [u32; 3],
}

/// `struct fiemap`.
#[repr(C)]
struct Map<const COUNT: usize> {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; COUNT],
}

/// Returns the first extents of a part of a file, at most `COUNT`, as the kernel has them now: dirty data is not
/// written back first.
pub(crate) fn extents<const COUNT: usize>(
    file: BorrowedFd<'_>,
    start: u64,
    length: u64,
) -> io::Result<Vec<Extent>> {
    let mut map = Map {
        start,
        length,
        flags: 0,
        mapped: 0,
        count: u32::try_from(COUNT).map_err(|_| Errno::OVERFLOW)?,
        reserved: 0,
        extents: [Extent::default(); COUNT],
    };
    // SAFETY: FS_IOC_FIEMAP reads one `struct fiemap`, and writes it and at most `count` extents behind
    // it, for which `map` has room; every bit pattern is a value of them.
    unsafe {
        ioctl::ioctl(file, ioctl::Updater::<FS_IOC_FIEMAP, _>::new(&mut map))?;
    }
    let mapped = usize::try_from(map.mapped).unwrap_or(COUNT);
    Ok(map.extents.iter().take(mapped).copied().collect())
}

const _: () = assert!(size_of::<Extent>() == 56);
const _: () = assert!(size_of::<Map<3>>() == 32 + 3 * 56);
