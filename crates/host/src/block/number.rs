//! Numbers of block devices.

use flexvol_sdk::{Error, Result};
use std::{fmt, io};

/// Number that identifies a block device; paths are only ways to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Number of the driver: 7 for loop devices.
    pub major: u32,
    /// Number of the device within its driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Splits a `dev_t` as `stat` reports it (`st_dev`, `st_rdev`).
    #[must_use]
    pub fn from_raw(raw: u64) -> Self {
        DeviceNumber {
            major: rustix::fs::major(raw),
            minor: rustix::fs::minor(raw),
        }
    }

    /// Returns the `dev_t`.
    #[must_use]
    pub fn to_raw(self) -> u64 {
        rustix::fs::makedev(self.major, self.minor)
    }

    /// Lists all block devices that exist now.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn all() -> Result<Vec<DeviceNumber>> {
        let failed = |error: io::Error| Error::system("list the block devices", error);
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/sys/dev/block").map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let numbers = name.to_str().and_then(|name| name.split_once(':'));
            if let Some((major, minor)) = numbers
                && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
            {
                all.push(DeviceNumber { major, minor });
            }
        }
        Ok(all)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}
