//! Inode flags of a volume's root that forbid changes, even by the driver (`chattr +i`, `chattr +a`).
//!
//! A process in a pod with CAP_LINUX_IMMUTABLE can set the flags, and must find them as it left them. While the driver
//! has cleared them, an attribute of the directory around the root holds them. If the driver is killed meanwhile, the
//! next growth or mount restores them.

use super::{Directory, sync};
use crate::fs::{attribute, immutable};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{fs::IFlags, io::Errno};
use std::io;

/// Extended attribute with the cleared flags, as a number.
const NOTE: &str = "trusted.flexvol.flags";

impl Directory {
    /// Runs a change that flags of the root may forbid. Clears the flags for it if needed.
    pub(super) fn with_flags_cleared<T>(&self, change: &dyn Fn() -> Result<T>) -> Result<T> {
        let changed = match change() {
            Err(error) if error.kind() == ErrorKind::CapabilityMissing && self.take_flags()? => {
                change()
            }
            changed => changed,
        };
        self.give_flags_back()?;
        changed
    }

    /// Clears such flags. Returns whether there were any.
    fn take_flags(&self) -> Result<bool> {
        let found = immutable::flags(&self.root).map_err(failed)?;
        if found.is_empty() {
            return Ok(false);
        }
        let taken = self.taken_flags()?.union(found);
        attribute::write(&self.around, NOTE, &taken.bits())?;
        sync(&self.around)?;
        immutable::clear_flags(&self.root).map_err(failed)
    }

    /// Restores the cleared flags, including those that a killed process cleared.
    fn give_flags_back(&self) -> Result<()> {
        let taken = self.taken_flags()?;
        if taken.is_empty() {
            return Ok(());
        }
        immutable::set(&self.root, taken).map_err(failed)?;
        sync(&self.root)?;
        attribute::remove(&self.around, NOTE)
    }

    fn taken_flags(&self) -> Result<IFlags> {
        let mut text = [0; 16];
        // Other errors are unlikely, as the caller read the volume's record from the same directory.
        let length = match rustix::fs::fgetxattr(&self.around, NOTE, &mut text) {
            Err(Errno::NODATA) => return Ok(IFlags::empty()),
            length => length.map_err(|error| failed(error.into()))?,
        };
        let text = str::from_utf8(&text[..length]).ok();
        let bits = text.and_then(|text| text.parse().ok()).unwrap_or_default();
        Ok(IFlags::from_bits_retain(bits).intersection(immutable::REFUSING))
    }
}

fn failed(error: io::Error) -> Error {
    Error::system("change the flags of the volume's root", error)
}
