//! The origin of an adopted volume.

use flexvol_host::half_digest;
use flexvol_sdk::{Handle, Result};
use std::{fmt, os::unix::ffi::OsStrExt, path::Path};

/// Identifies the file or logical volume of which a volume was made: half of the SHA-256 of the last component
/// of its path. The name itself may contain characters that a mark cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin([u8; 16]);

impl Origin {
    /// Makes the origin of a path.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Origin(half_digest(&[b"flexvol adopted", name.as_bytes()]))
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        Handle::parse(text).map(|bits| Origin(*bits.as_bytes()))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Handle::from_bytes(self.0).fmt(f)
    }
}
