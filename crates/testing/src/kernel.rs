//! System calls without a safe wrapper: queries of loop devices, and a filter that simulates an old kernel.
#![allow(unsafe_code)]

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
    sock_filter, sock_fprog,
};
use linux_raw_sys::loop_device::{LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_GET_STATUS64, loop_info64};
use std::{fs::File, io, mem::offset_of, os::fd::AsRawFd};

/// Returns device and inode of a loop device's backing file, and whether the loop device is released with its last user
/// (`LO_FLAGS_AUTOCLEAR`). `None` if it is not bound.
pub(crate) fn backing_file(device: &File) -> io::Result<Option<(u64, u64, bool)>> {
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    // SAFETY: loop_info64 is integers and arrays of integers, for which zeros are valid.
    let mut info: loop_info64 = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and LOOP_GET_STATUS64 writes one loop_info64.
    let answer = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            LOOP_GET_STATUS64.into(),
            std::ptr::from_mut(&mut info),
        )
    };
    if answer == 0 {
        let autoclear = info.lo_flags & LO_FLAGS_AUTOCLEAR != 0;
        return Ok(Some((info.lo_device, info.lo_inode, autoclear)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        _ => Err(error),
    }
}

/// Releases a loop device that a test left behind.
pub(crate) fn clear(device: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and LOOP_CLR_FD takes no argument.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD.into()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel appear older than 5.2 to this process and its children: later system calls and `LOOP_CONFIGURE` are
/// unknown. Irreversible.
pub(crate) fn become_older() -> io::Result<()> {
    let unknown = [
        libc::SYS_fsopen,
        libc::SYS_move_mount,
        libc::SYS_openat2,
        libc::SYS_close_range,
        libc::SYS_mount_setattr,
        libc::SYS_quotactl_fd,
    ];
    let load = |offset: usize| instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, narrow(offset));
    let skip_unless = |value: u32, skip: u8| instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, skip, value);
    let refuse = |errno: i32| instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | narrow(errno));

    let mut program = vec![load(offset_of!(libc::seccomp_data, nr))];
    for number in unknown {
        program.extend([skip_unless(narrow(number), 1), refuse(libc::ENOSYS)]);
    }
    program.extend([
        skip_unless(narrow(libc::SYS_ioctl), 3),
        // The low half of the second argument: supported kernels are little-endian.
        load(offset_of!(libc::seccomp_data, args) + 8),
        skip_unless(LOOP_CONFIGURE, 1),
        refuse(libc::EINVAL),
        instruction(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
    ]);
    let filter = sock_fprog {
        len: u16::try_from(program.len()).expect("a filter of a few instructions"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: PR_SET_NO_NEW_PRIVS takes 1 and three zeros and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `filter` points to `program`, which outlives the call; the kernel copies both.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            std::ptr::from_ref(&filter),
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: without a name fsopen(2) opens nothing; the filter answers before the kernel looks.
    let opened = unsafe { libc::syscall(libc::SYS_fsopen, std::ptr::null::<u8>(), 0) };
    let error = io::Error::last_os_error();
    assert_eq!(
        (opened, error.raw_os_error()),
        (-1, Some(libc::ENOSYS)),
        "the filter is not in force"
    );
    Ok(())
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).expect("instruction codes have 16 bits"),
        jt,
        jf,
        k,
    }
}

fn narrow<T: TryInto<u32>>(number: T) -> u32
where
    T::Error: std::fmt::Debug,
{
    number.try_into().expect("a number of 32 bits")
}
