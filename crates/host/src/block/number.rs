//! Which block device: its number, as the kernel has it.

use flexvol_sdk::{Error, Result};
use std::{fmt, io};

/// Which block device; paths are only ways to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The driver: 7 for loop devices.
    pub major: u32,
    /// The device of that driver.
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

    /// The `dev_t`.
    #[must_use]
    pub fn to_raw(self) -> u64 {
        rustix::fs::makedev(self.major, self.minor)
    }

    /// Every block device there is now.
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
