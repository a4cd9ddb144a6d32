//! Flags of files that refuse even root (`chattr +i`, `chattr +a`). A pod with CAP_LINUX_IMMUTABLE
//! sets them, and nobody could delete what has them.

use crate::fs::confine;
use rustix::{
    fs::{FileType, IFlags, OFlags, fstat, ioctl_getflags, ioctl_setflags},
    io::Errno,
};
use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd},
};

pub(crate) const REFUSING: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// Those that a file or directory has which is open for reading.
///
/// # Errors
/// What the system call says.
pub(crate) fn flags(file: impl AsFd) -> io::Result<IFlags> {
    all(file).map(|flags| flags.intersection(REFUSING))
}

fn all(file: impl AsFd) -> io::Result<IFlags> {
    match ioctl_getflags(file) {
        // A file system without flags.
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL) => Ok(IFlags::empty()),
        flags => Ok(flags?),
    }
}

/// Takes such flags from a file or directory that is open for reading; whether it had any.
///
/// # Errors
/// What the system calls say; EPERM without CAP_LINUX_IMMUTABLE.
pub(crate) fn open_up(file: &File) -> io::Result<bool> {
    let flags = all(file)?;
    if !flags.intersects(REFUSING) {
        return Ok(false);
    }
    ioctl_setflags(file, flags.difference(REFUSING))?;
    Ok(true)
}

/// Gives a file or directory such flags.
///
/// # Errors
/// As for [`open_up`].
pub(crate) fn set(file: &File, refusing: IFlags) -> io::Result<()> {
    Ok(ioctl_setflags(file, all(file)?.union(refusing))?)
}

/// The same for a directory and one of its entries. Links, devices and pipes have no flags, and
/// opening these could do something.
///
/// # Errors
/// As for [`open_up`].
pub(crate) fn open_up_entry(directory: &File, name: &CStr) -> io::Result<bool> {
    let changed = open_up(directory)?;
    let found = confine::open_entry(directory, name, OFlags::PATH)?;
    let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(changed);
    }
    // What was looked at, whatever has its name by now.
    let entry = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    Ok(open_up(&entry)? || changed)
}
