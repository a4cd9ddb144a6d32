//! Project quotas: `quotactl` in the form that XFS and ext4 share (linux/dqblk_xfs.h), and the project id of a
//! directory.
#![allow(unsafe_code)]

use linux_raw_sys::{
    general::{FS_XFLAG_PROJINHERIT, fsxattr},
    ioctl::{FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR},
};
use rustix::{
    fd::{AsRawFd, BorrowedFd},
    io::{self, Errno},
    ioctl,
};
use std::ffi::{CStr, c_void};

/// `struct fs_disk_quota`; blocks have 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct DiskQuota {
    version: i8,
    flags: i8,
    field_mask: u16,
    id: u32,
    block_hard_limit: u64,
    block_soft_limit: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    blocks: u64,
    inodes: u64,
    inode_timer: i32,
    block_timer: i32,
    inode_warnings: u16,
    block_warnings: u16,
    timers_high: [i8; 4],
    realtime_block_hard_limit: u64,
    realtime_block_soft_limit: u64,
    realtime_blocks: u64,
    realtime_block_timer: i32,
    realtime_block_warnings: u16,
    padding: [u8; 10],
}

/// `struct fs_quota_statv`.
#[repr(C)]
#[derive(Clone, Copy)]
struct QuotaState {
    version: i8,
    padding: u8,
    flags: u16,
    in_core: u32,
    files_limits_and_reserve: [u64; 19],
}

const _: () = assert!(size_of::<DiskQuota>() == 112);
const _: () = assert!(size_of::<QuotaState>() == 160);
const _: () = assert!(size_of::<fsxattr>() == 28);

/// `XQM_CMD(n)`, `('X' << 8) + n`.
const Q_XGETQUOTA: u32 = 0x5803;
const Q_XSETQLIM: u32 = 0x5804;
const Q_XGETQSTATV: u32 = 0x5808;

const PRJQUOTA: u32 = 2;
const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
const FS_DQ_ISOFT: u16 = 1 << 0;
const FS_DQ_IHARD: u16 = 1 << 1;
const FS_DQ_BSOFT: u16 = 1 << 2;
const FS_DQ_BHARD: u16 = 1 << 3;
const FS_PROJ_QUOTA: i8 = 1 << 1;

/// `BBSIZE`.
const BLOCK: u64 = 512;

/// Selects a file system: the one that an open file lies on (Linux 5.14), or the one on a device.
#[derive(Clone, Copy)]
pub(crate) enum FilesystemRef<'a> {
    Holding(BorrowedFd<'a>),
    Device(&'a CStr),
}

/// Limits and usage of a project, with space in bytes. A limit of zero is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Soft limits are set, which may be exceeded for some time. This driver sets none, so the project belongs to
    /// another user.
    pub has_soft_limits: bool,
    pub space: u64,
    pub inodes: u64,
    pub space_used: u64,
    pub inodes_used: u64,
}

/// Whether project limits are enforced. Kernels and file systems without quotas, or with none turned on, answer ENOSYS
/// (fs/quota/quota.c, `quota_getxstatev`).
pub(crate) fn enforced(filesystem: FilesystemRef<'_>) -> io::Result<bool> {
    let mut state = QuotaState {
        version: 1,
        padding: 0,
        flags: 0,
        in_core: 0,
        files_limits_and_reserve: [0; 19],
    };
    // SAFETY: the kernel writes one `fs_quota_statv` of version 1; every bit pattern is a value of
    // it.
    unsafe { quotactl(filesystem, Q_XGETQSTATV, 0, (&raw mut state).cast())? };
    Ok(state.flags & FS_QUOTA_PDQ_ENFD != 0)
}

/// Returns a project's quota. XFS answers ENOENT for a project that never had any usage or limits.
pub(crate) fn get(filesystem: FilesystemRef<'_>, project: u32) -> io::Result<Quota> {
    let mut quota = DiskQuota::default();
    // SAFETY: the kernel writes one `fs_disk_quota`; every bit pattern is a value of it.
    match unsafe { quotactl(filesystem, Q_XGETQUOTA, project, (&raw mut quota).cast()) } {
        Ok(()) => Ok(Quota {
            has_soft_limits: quota.block_soft_limit != 0 || quota.inode_soft_limit != 0,
            space: quota.block_hard_limit.saturating_mul(BLOCK),
            inodes: quota.inode_hard_limit,
            space_used: quota.blocks.saturating_mul(BLOCK),
            inodes_used: quota.inodes,
        }),
        Err(Errno::NOENT) => Ok(Quota::default()),
        Err(error) => Err(error),
    }
}

/// Sets a project's hard limits and clears its soft limits. `space` is in bytes, rounded down to blocks of 512.
pub(crate) fn set(
    filesystem: FilesystemRef<'_>,
    project: u32,
    space: u64,
    inodes: u64,
) -> io::Result<()> {
    let mut quota = DiskQuota {
        version: 1,
        flags: FS_PROJ_QUOTA,
        field_mask: FS_DQ_BSOFT | FS_DQ_BHARD | FS_DQ_ISOFT | FS_DQ_IHARD,
        id: project,
        block_hard_limit: space / BLOCK,
        inode_hard_limit: inodes,
        ..DiskQuota::default()
    };
    // SAFETY: the kernel reads one `fs_disk_quota`.
    unsafe { quotactl(filesystem, Q_XSETQLIM, project, (&raw mut quota).cast()) }
}

/// # Safety
/// `data` must be valid for what the command reads or writes.
unsafe fn quotactl(
    filesystem: FilesystemRef<'_>,
    command: u32,
    project: u32,
    data: *mut c_void,
) -> io::Result<()> {
    // `QCMD(command, type)`.
    let command = (command << 8 | PRJQUOTA).cast_signed();
    // SAFETY: the caller vouches for `data`; a path is a C string that lives meanwhile.
    let answer = unsafe {
        match filesystem {
            FilesystemRef::Holding(file) => libc::syscall(
                libc::SYS_quotactl_fd,
                file.as_raw_fd(),
                command,
                project,
                data,
            ),
            FilesystemRef::Device(path) => {
                let path = path.as_ptr();
                libc::syscall(libc::SYS_quotactl, command, path, project, data)
            }
        }
    };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns a file's project, and for a directory whether new entries inherit it.
pub(crate) fn project(file: BorrowedFd<'_>) -> io::Result<(u32, bool)> {
    let attributes = attributes(file)?;
    let inherits = attributes.fsx_xflags & FS_XFLAG_PROJINHERIT != 0;
    Ok((attributes.fsx_projid, inherits))
}

/// Assigns a directory to a project; with `inherits`, entries created in it from now on belong to the project too.
pub(crate) fn set_project(file: BorrowedFd<'_>, project: u32, inherits: bool) -> io::Result<()> {
    let mut attributes = attributes(file)?;
    attributes.fsx_projid = project;
    if inherits {
        attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    } else {
        attributes.fsx_xflags &= !FS_XFLAG_PROJINHERIT;
    }
    // SAFETY: FS_IOC_FSSETXATTR reads one `fsxattr` and writes nothing.
    unsafe {
        ioctl::ioctl(
            file,
            ioctl::Setter::<FS_IOC_FSSETXATTR, fsxattr>::new(attributes),
        )
    }
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<fsxattr> {
    // SAFETY: FS_IOC_FSGETXATTR writes one `fsxattr`, for which every bit pattern is a value.
    unsafe { ioctl::ioctl(file, ioctl::Getter::<FS_IOC_FSGETXATTR, fsxattr>::new()) }
}
