//! Btrfs subvolumes and the limits of their quota groups (linux/btrfs.h, linux/btrfs_tree.h).
#![allow(unsafe_code)]

use super::btrfs_tree::{Part, search, word};
use linux_raw_sys::{
    btrfs::{
        BTRFS_FIRST_FREE_OBJECTID, BTRFS_QGROUP_INFO_KEY, BTRFS_QGROUP_LIMIT_KEY,
        BTRFS_QGROUP_LIMIT_MAX_RFER, BTRFS_QGROUP_STATUS_FLAG_INCONSISTENT,
        BTRFS_QGROUP_STATUS_FLAG_ON, BTRFS_QGROUP_STATUS_FLAG_RESCAN, BTRFS_QGROUP_STATUS_KEY,
        BTRFS_QUOTA_TREE_OBJECTID, BTRFS_SUBVOL_RDONLY, btrfs_ioctl_ino_lookup_args,
        btrfs_ioctl_qgroup_create_args, btrfs_ioctl_qgroup_limit_args,
        btrfs_ioctl_quota_rescan_args, btrfs_ioctl_vol_args, btrfs_qgroup_limit,
    },
    ioctl::{
        BTRFS_IOC_INO_LOOKUP, BTRFS_IOC_QGROUP_CREATE, BTRFS_IOC_QGROUP_LIMIT,
        BTRFS_IOC_QUOTA_RESCAN_STATUS, BTRFS_IOC_SNAP_DESTROY, BTRFS_IOC_START_SYNC,
        BTRFS_IOC_SUBVOL_CREATE, BTRFS_IOC_SUBVOL_GETFLAGS, BTRFS_IOC_SUBVOL_SETFLAGS,
        BTRFS_IOC_WAIT_SYNC,
    },
};
use rustix::{
    fd::BorrowedFd,
    io::{self, Errno},
    ioctl,
};

/// The inode number of every subvolume's root.
pub(crate) const ROOT_INODE: u64 = BTRFS_FIRST_FREE_OBJECTID as u64;

/// Value of a limit that means no limit: `(u64)-1` clears it (fs/btrfs/qgroup.c, `btrfs_limit_qgroup`).
const NONE: u64 = u64::MAX;

/// Creates a subvolume in a directory, with mode 0777 less the umask.
pub(crate) fn create(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let name = named(name)?;
    // SAFETY: BTRFS_IOC_SUBVOL_CREATE reads one `btrfs_ioctl_vol_args`, whose name ends in a NUL.
    unsafe {
        ioctl::ioctl(
            parent,
            ioctl::Setter::<BTRFS_IOC_SUBVOL_CREATE, _>::new(name),
        )
    }
}

/// Removes a subvolume from a directory with everything in it, except nested subvolumes: these make it fail with
/// ENOTEMPTY. Btrfs frees the blocks later, in the background.
pub(crate) fn destroy(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let name = named(name)?;
    // SAFETY: BTRFS_IOC_SNAP_DESTROY reads one `btrfs_ioctl_vol_args`, whose name ends in a NUL.
    unsafe {
        ioctl::ioctl(
            parent,
            ioctl::Setter::<BTRFS_IOC_SNAP_DESTROY, _>::new(name),
        )
    }
}

fn named(name: &[u8]) -> io::Result<btrfs_ioctl_vol_args> {
    let mut arguments = btrfs_ioctl_vol_args {
        fd: 0,
        name: [0; 4088],
    };
    if name.len() >= arguments.name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in arguments.name.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    Ok(arguments)
}

/// Clears the read-only flag of a subvolume, given its root. Returns whether the flag was set.
pub(crate) fn make_writable(root: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: BTRFS_IOC_SUBVOL_GETFLAGS writes one `u64`, and BTRFS_IOC_SUBVOL_SETFLAGS reads one.
    unsafe {
        let flags = ioctl::ioctl(root, ioctl::Getter::<BTRFS_IOC_SUBVOL_GETFLAGS, u64>::new())?;
        if flags & u64::from(BTRFS_SUBVOL_RDONLY) == 0 {
            return Ok(false);
        }
        let flags = flags & !u64::from(BTRFS_SUBVOL_RDONLY);
        ioctl::ioctl(
            root,
            ioctl::Setter::<BTRFS_IOC_SUBVOL_SETFLAGS, u64>::new(flags),
        )?;
    }
    Ok(true)
}

/// Returns the id of the subvolume that a file lies in. Ids are never reused, and the id is also that of the
/// subvolume's quota group.
pub(crate) fn subvolume(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut arguments = btrfs_ioctl_ino_lookup_args {
        treeid: 0,
        objectid: ROOT_INODE,
        name: [0; 4080],
    };
    // SAFETY: BTRFS_IOC_INO_LOOKUP reads and writes one `btrfs_ioctl_ino_lookup_args`, for which
    // every bit pattern is a value.
    unsafe {
        ioctl::ioctl(
            file,
            ioctl::Updater::<BTRFS_IOC_INO_LOOKUP, _>::new(&mut arguments),
        )?;
    }
    Ok(arguments.treeid)
}

/// Limits the bytes that a subvolume may refer to; `None` lifts the limit.
pub(crate) fn limit(file: BorrowedFd<'_>, subvolume: u64, most: Option<u64>) -> io::Result<()> {
    let arguments = btrfs_ioctl_qgroup_limit_args {
        qgroupid: subvolume,
        lim: btrfs_qgroup_limit {
            flags: BTRFS_QGROUP_LIMIT_MAX_RFER.into(),
            max_rfer: most.unwrap_or(NONE),
            max_excl: 0,
            rsv_rfer: 0,
            rsv_excl: 0,
        },
    };
    // SAFETY: BTRFS_IOC_QGROUP_LIMIT reads one `btrfs_ioctl_qgroup_limit_args`, whatever the
    // direction in its number says.
    unsafe {
        ioctl::ioctl(
            file,
            ioctl::Setter::<BTRFS_IOC_QGROUP_LIMIT, _>::new(arguments),
        )
    }
}

/// Removes the quota group of a deleted subvolume; EBUSY until all of the subvolume is gone.
pub(crate) fn forget(file: BorrowedFd<'_>, subvolume: u64) -> io::Result<()> {
    let arguments = btrfs_ioctl_qgroup_create_args {
        create: 0,
        qgroupid: subvolume,
    };
    // SAFETY: BTRFS_IOC_QGROUP_CREATE reads one `btrfs_ioctl_qgroup_create_args`.
    unsafe {
        ioctl::ioctl(
            file,
            ioctl::Setter::<BTRFS_IOC_QGROUP_CREATE, _>::new(arguments),
        )
    }
}

/// Whether what subvolumes refer to is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accounting {
    /// Quotas are turned off.
    Off,
    On,
    /// The count is wrong. Since Linux 6.1 nothing is counted any more, and no rescan is running.
    Lost,
}

/// Whether what subvolumes refer to is counted.
pub(crate) fn accounting(file: BorrowedFd<'_>) -> io::Result<Accounting> {
    let told = || {
        // version, generation, flags, rescan
        let status = item(file, BTRFS_QGROUP_STATUS_KEY, 0)?;
        let flags = status.and_then(|status| word(&status, 16)).unwrap_or(0);
        let has = |flag: u32| flags & u64::from(flag) != 0;
        Ok(match has(BTRFS_QGROUP_STATUS_FLAG_ON) {
            false => Accounting::Off,
            true if has(BTRFS_QGROUP_STATUS_FLAG_INCONSISTENT)
                && !has(BTRFS_QGROUP_STATUS_FLAG_RESCAN) =>
            {
                Accounting::Lost
            }
            true => Accounting::On,
        })
    };
    match told()? {
        // The status item shows a rescan only after a commit; until then only the ioctl does.
        Accounting::Lost if is_rescanning(file)? => Ok(Accounting::On),
        Accounting::Lost => {
            commit(file)?;
            told()
        }
        accounting => Ok(accounting),
    }
}

fn is_rescanning(file: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: BTRFS_IOC_QUOTA_RESCAN_STATUS writes one `btrfs_ioctl_quota_rescan_args`, for which
    // every bit pattern is a value.
    let status = unsafe {
        ioctl::ioctl(
            file,
            ioctl::Getter::<BTRFS_IOC_QUOTA_RESCAN_STATUS, btrfs_ioctl_quota_rescan_args>::new(),
        )?
    };
    Ok(status.flags != 0)
}

/// Usage and limit of a subvolume in bytes, as of the last commit.
pub(crate) struct Usage {
    /// The most bytes it may refer to; `None` without a limit.
    pub(crate) limit: Option<u64>,
    /// Bytes that it refers to and no other subvolume does. Shared bytes stay allocated when they are overwritten here.
    pub(crate) exclusive: u64,
}

pub(crate) fn usage(file: BorrowedFd<'_>, subvolume: u64) -> io::Result<Usage> {
    // flags, max_rfer, max_excl, rsv_rfer, rsv_excl
    let limit = item(file, BTRFS_QGROUP_LIMIT_KEY, subvolume)?.and_then(|limit| {
        let flags = word(&limit, 0)?;
        let is_set = flags & u64::from(BTRFS_QGROUP_LIMIT_MAX_RFER) != 0;
        word(&limit, 8).filter(|most| is_set && *most != NONE)
    });
    // generation, rfer, rfer_cmpr, excl, excl_cmpr
    let info = item(file, BTRFS_QGROUP_INFO_KEY, subvolume)?;
    Ok(Usage {
        limit,
        exclusive: info.and_then(|info| word(&info, 24)).unwrap_or(0),
    })
}

/// Returns one item of the quota tree; `None` also where there is no quota tree (ENOENT).
fn item(file: BorrowedFd<'_>, kind: u32, offset: u64) -> io::Result<Option<Vec<u8>>> {
    let part = Part {
        tree: BTRFS_QUOTA_TREE_OBJECTID.into(),
        object: 0,
        kind,
        offsets: offset..=offset,
    };
    match search(file, part) {
        Ok(items) => Ok(items.into_iter().next().map(|item| item.bytes)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Commits the current transaction. Delayed allocations are not waited for.
pub(crate) fn commit(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: BTRFS_IOC_START_SYNC writes one `u64`, and BTRFS_IOC_WAIT_SYNC reads one.
    unsafe {
        let transaction = ioctl::ioctl(file, ioctl::Getter::<BTRFS_IOC_START_SYNC, u64>::new())?;
        ioctl::ioctl(
            file,
            ioctl::Setter::<BTRFS_IOC_WAIT_SYNC, u64>::new(transaction),
        )
    }
}

const _: () = assert!(size_of::<btrfs_ioctl_vol_args>() == 4096);
const _: () = assert!(size_of::<btrfs_ioctl_ino_lookup_args>() == 4096);
const _: () = assert!(size_of::<btrfs_ioctl_qgroup_limit_args>() == 48);
const _: () = assert!(size_of::<btrfs_ioctl_qgroup_create_args>() == 16);
const _: () = assert!(size_of::<btrfs_ioctl_quota_rescan_args>() == 64);
