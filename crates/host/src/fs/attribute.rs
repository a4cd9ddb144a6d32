//! Extended attributes that the driver keeps with files and directories. They are of the class `trusted`, which needs
//! CAP_SYS_ADMIN, so pods do not see them.

use crate::kernel;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{fs::XattrFlags, io::Errno};
use std::{fmt::Display, fs::File};

/// Name of the attribute with a volume's mark.
pub(crate) const MARK: &str = "trusted.flexvol";

/// Longest attribute that is read. ext4 stores attributes of at most one block; the driver's are far smaller.
const MAX_LENGTH: usize = 4096;

/// Reads an attribute; `None` where it does not exist.
pub(crate) fn read(file: &File, name: &str) -> Result<Option<String>> {
    let mut text = vec![0; MAX_LENGTH];
    match rustix::fs::fgetxattr(file, name, &mut text) {
        Ok(length) => text.truncate(length),
        // Without CAP_SYS_ADMIN the kernel claims that no `trusted` attribute exists (fs/xattr.c, xattr_permission).
        Err(Errno::NODATA) => {
            return match kernel::administers_node() {
                Ok(()) => Ok(None),
                Err(reason) => Err(Error::new(
                    ErrorKind::CapabilityMissing,
                    format!("cannot read the volume's mark: {reason}"),
                )),
            };
        }
        Err(error) => return Err(Error::system("read the volume's mark", error)),
    }
    String::from_utf8(text).map(Some).map_err(|error| {
        Error::new(ErrorKind::Storage, "the volume's mark is damaged").because(error)
    })
}

pub(crate) fn write(file: &File, name: &str, text: &(impl Display + ?Sized)) -> Result<()> {
    let text = text.to_string();
    match rustix::fs::fsetxattr(file, name, text.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP) => Err(Error::new(
            ErrorKind::Configuration,
            "the pool's file system has no trusted attributes; use xfs, ext4 or btrfs",
        )),
        Err(error) => Err(Error::system("write the volume's mark", error)),
    }
}

pub(crate) fn remove(file: &File, name: &str) -> Result<()> {
    match rustix::fs::fremovexattr(file, name) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(Error::system("remove an attribute", error)),
    }
}
