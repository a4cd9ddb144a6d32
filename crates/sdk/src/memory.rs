//! Files in memory, for output and answers of processes.

use nix::{
    errno::Errno,
    sys::memfd::{MFdFlags, memfd_create},
};
use std::{ffi::CStr, fs::File, io};

/// `MFD_NOEXEC_SEAL`, include/uapi/linux/memfd.h.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(0x8);

/// Makes a file without a name, which no program can be executed from. A node may refuse all others
/// (`vm.memfd_noexec=2`, Linux 6.3).
///
/// # Errors
/// When the kernel has no memory, or this process no free descriptor.
pub fn file(name: &CStr) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC;
    let made = match memfd_create(name, flags | NOEXEC_SEAL) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        made => made,
    };
    Ok(made?.into())
}
