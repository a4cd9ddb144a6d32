//! Inode flags that deny changes even to root (`chattr +i`, `chattr +a`). A pod with CAP_LINUX_IMMUTABLE sets them, and
//! the files could then not be deleted.

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

/// Returns the denying flags of a file or directory that is open for reading.
///
/// # Errors
/// The error of the system call.
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

/// Clears the denying flags of a file or directory that is open for reading. Returns whether any were set.
///
/// # Errors
/// The errors of the system calls; EPERM without CAP_LINUX_IMMUTABLE.
pub(crate) fn clear_flags(file: &File) -> io::Result<bool> {
    let flags = all(file)?;
    if !flags.intersects(REFUSING) {
        return Ok(false);
    }
    ioctl_setflags(file, flags.difference(REFUSING))?;
    Ok(true)
}

/// Sets denying flags of a file or directory.
///
/// # Errors
/// As for [`clear_flags`].
pub(crate) fn set(file: &File, refusing: IFlags) -> io::Result<()> {
    Ok(ioctl_setflags(file, all(file)?.union(refusing))?)
}

/// Clears the denying flags of a directory and one of its entries. Returns whether any were set. Links, devices and
/// FIFOs have no flags, and opening devices and FIFOs can have side effects.
///
/// # Errors
/// As for [`clear_flags`].
pub(crate) fn clear_entry_flags(directory: &File, name: &CStr) -> io::Result<bool> {
    let changed = clear_flags(directory)?;
    let found = confine::open_entry(directory, name, OFlags::PATH)?;
    let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(changed);
    }
    // Opens the inode that was examined, even if the name has been reused.
    let entry = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    Ok(clear_flags(&entry)? || changed)
}
