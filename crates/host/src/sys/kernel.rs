//! Asking the kernel which system calls it has.
#![allow(unsafe_code)]

use std::{io, ptr};

/// A system call that younger kernels have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Fsopen,
    MoveMount,
    Openat2,
    CloseRange,
    MountSetattr,
    QuotactlFd,
}

/// Makes the call with arguments that a kernel which has it refuses, or that mean nothing to it.
/// A filter on system calls that answers ENOSYS is taken at its word; EPERM, which a process
/// without CAP_SYS_ADMIN gets as well, counts as known here and for those who make the calls.
pub(crate) fn knows(call: Call) -> bool {
    let null = ptr::null::<libc::c_void>();
    let invalid: libc::c_int = -1;
    // SAFETY: every pointer is null and of length zero, so that the kernel has nothing to read
    // or write; the calls return EINVAL, EFAULT or EPERM before they look at anything.
    // close_range(~0, ~0, CLOEXEC) names a descriptor that cannot be open.
    let result = unsafe {
        match call {
            Call::Fsopen => libc::syscall(libc::SYS_fsopen, null, libc::c_uint::MAX),
            Call::MoveMount => libc::syscall(
                libc::SYS_move_mount,
                invalid,
                null,
                invalid,
                null,
                libc::c_uint::MAX,
            ),
            Call::Openat2 => libc::syscall(libc::SYS_openat2, invalid, null, null, 0_usize),
            Call::CloseRange => libc::syscall(
                libc::SYS_close_range,
                libc::c_uint::MAX,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            ),
            Call::MountSetattr => libc::syscall(
                libc::SYS_mount_setattr,
                invalid,
                null,
                libc::c_uint::MAX,
                null,
                0_usize,
            ),
            Call::QuotactlFd => libc::syscall(libc::SYS_quotactl_fd, invalid, invalid, 0, null),
        }
    };
    let error = io::Error::last_os_error().raw_os_error();
    let missing = match call {
        // The flag came later than the call.
        Call::CloseRange => [libc::ENOSYS, libc::EINVAL].map(Some).contains(&error),
        _ => error == Some(libc::ENOSYS),
    };
    result == 0 || !missing
}
