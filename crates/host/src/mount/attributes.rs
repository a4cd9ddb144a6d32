//! `mount_setattr(2)`: the one mount call for which there is no safe wrapper.
#![allow(unsafe_code)]

use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct mount_attr` of `include/uapi/linux/mount.h`, version 0.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `MOUNT_ATTR_SIZE_VER0`, which the kernel checks.
const _: () = assert!(size_of::<Attributes>() == 32);

/// Makes one mount read-only or writable. Its file system and the mounts below it are not affected.
///
/// Fails with `ENOSYS` before Linux 5.12, and with `EBUSY` if the mount is to become read-only while files are open for
/// writing through it.
pub(super) fn set_read_only(mount: BorrowedFd<'_>, read_only: bool) -> Result<()> {
    let flag = u64::from(linux_raw_sys::general::MOUNT_ATTR_RDONLY);
    match read_only {
        true => change(mount, flag, 0),
        false => change(mount, 0, flag),
    }
}

/// Sets `nosuid` and `nodev` on one mount, and read-only if asked. Fails as [`set_read_only`].
pub(super) fn confine(mount: BorrowedFd<'_>, read_only: bool) -> Result<()> {
    use linux_raw_sys::general::{MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};
    let read_only = if read_only { MOUNT_ATTR_RDONLY } else { 0 };
    let flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only;
    change(mount, flags.into(), 0)
}

fn change(mount: BorrowedFd<'_>, set: u64, clear: u64) -> Result<()> {
    let attributes = Attributes {
        set,
        clear,
        propagation: 0,
        user_namespace: 0,
    };
    // SAFETY: the path is a static C string, `attributes` is a live `struct mount_attr` whose
    // size is passed along, and the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)))
}
