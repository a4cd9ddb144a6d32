//! The ioctls of loop devices (linux/loop.h, drivers/block/loop.c).
#![allow(unsafe_code)]

use linux_raw_sys::loop_device::{
    LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_ADD, LOOP_CTL_GET_FREE, LOOP_CTL_REMOVE,
    LOOP_GET_STATUS64, LOOP_SET_CAPACITY, LOOP_SET_FD, LOOP_SET_STATUS64, loop_config, loop_info64,
};
use rustix::{
    fd::{AsRawFd, BorrowedFd},
    io::{self, Errno},
    ioctl,
};
use std::ffi::c_void;

const _: () = assert!(size_of::<loop_info64>() == 232);
const _: () = assert!(size_of::<loop_config>() == 304);

/// `LO_FLAGS_AUTOCLEAR`: the last close detaches.
pub(crate) const AUTOCLEAR: u32 = 4;

/// Sector size to request explicitly: a file system made for one sector size does not mount on a larger one.
pub(crate) const SECTOR: u32 = 512;

/// Returns a status for attaching a whole file: no offset, no limit, detached at the last close. `label` goes into
/// `lo_file_name`, whose 64 bytes include a terminating zero.
pub(crate) fn whole_file(label: &str) -> loop_info64 {
    let mut lo_file_name = [0; 64];
    for (to, from) in lo_file_name.iter_mut().take(63).zip(label.bytes()) {
        *to = from;
    }
    loop_info64 {
        lo_device: 0,
        lo_inode: 0,
        lo_rdevice: 0,
        lo_offset: 0,
        lo_sizelimit: 0,
        lo_number: 0,
        lo_encrypt_type: 0,
        lo_encrypt_key_size: 0,
        lo_flags: AUTOCLEAR,
        lo_file_name,
        lo_crypt_name: [0; 64],
        lo_encrypt_key: [0; 32],
        lo_init: [0; 2],
    }
}

/// `LOOP_GET_STATUS64`; `None` where nothing is attached, or no longer (ENXIO).
pub(crate) fn status(device: BorrowedFd<'_>) -> io::Result<Option<loop_info64>> {
    // SAFETY: LOOP_GET_STATUS64 writes one loop_info64 and reads nothing; every bit pattern is a
    // valid loop_info64, which has integers only.
    let answer = unsafe {
        ioctl::ioctl(
            device,
            ioctl::Getter::<LOOP_GET_STATUS64, loop_info64>::new(),
        )
    };
    match answer {
        Ok(info) => Ok(Some(info)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `LOOP_CONFIGURE`, Linux 5.8: binds a file and sets its status in one step. Older kernels
/// answer EINVAL.
pub(crate) fn configure(
    device: BorrowedFd<'_>,
    image: BorrowedFd<'_>,
    info: loop_info64,
) -> io::Result<()> {
    let config = loop_config {
        fd: image.as_raw_fd().cast_unsigned(),
        block_size: SECTOR,
        info,
        __reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one loop_config and writes nothing.
    unsafe { ioctl::ioctl(device, ioctl::Setter::<LOOP_CONFIGURE, _>::new(config)) }
}

/// `LOOP_SET_FD`: binds a file, with 512-byte sectors and without autoclear.
pub(crate) fn bind(device: BorrowedFd<'_>, image: BorrowedFd<'_>) -> io::Result<()> {
    let fd = usize::try_from(image.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the argument of LOOP_SET_FD is a descriptor's number, not a pointer.
    unsafe { ioctl::ioctl(device, ioctl::IntegerSetter::<LOOP_SET_FD>::new_usize(fd)) }
}

/// `LOOP_SET_STATUS64`.
pub(crate) fn set_status(device: BorrowedFd<'_>, info: loop_info64) -> io::Result<()> {
    // SAFETY: LOOP_SET_STATUS64 reads one loop_info64 and writes nothing.
    unsafe { ioctl::ioctl(device, ioctl::Setter::<LOOP_SET_STATUS64, _>::new(info)) }
}

/// `LOOP_CLR_FD`: detaches the file. While other processes have the device open, the last close detaches it instead.
pub(crate) fn clear(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl::ioctl(device, ioctl::NoArg::<LOOP_CLR_FD>::new()) }
}

/// `LOOP_SET_CAPACITY`: makes the device as large as its file is now.
pub(crate) fn set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    unsafe { ioctl::ioctl(device, ioctl::NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// `LOOP_CTL_GET_FREE` on /dev/loop-control: returns the index of a device that is unbound now, created if there was
/// none.
pub(crate) fn free_index(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers by its return value.
    unsafe { ioctl::ioctl(control, FreeIndex) }
}

/// `LOOP_CTL_REMOVE` and `LOOP_CTL_ADD` on /dev/loop-control: replaces an unbound device that no process has open
/// (EBUSY otherwise) by a new one with the same index.
pub(crate) fn renew(control: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
    // SAFETY: the argument of LOOP_CTL_REMOVE is a device's index, not a pointer.
    unsafe {
        ioctl::ioctl(
            control,
            ioctl::IntegerSetter::<LOOP_CTL_REMOVE>::new_usize(index),
        )?;
    }
    // SAFETY: the argument of LOOP_CTL_ADD is a device's index, not a pointer.
    unsafe {
        ioctl::ioctl(
            control,
            ioctl::IntegerSetter::<LOOP_CTL_ADD>::new_usize(index),
        )
    }
}

struct FreeIndex;

// SAFETY: the opcode is LOOP_CTL_GET_FREE; there is no argument to be read or written.
unsafe impl ioctl::Ioctl for FreeIndex {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(answer: ioctl::IoctlOutput, _: *mut c_void) -> io::Result<u32> {
        answer.try_into().map_err(|_| Errno::RANGE)
    }
}
