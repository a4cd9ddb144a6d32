//! Flags of a volume's root that refuse changes of it, also ours (`chattr +i`, `chattr +a`).
//!
//! Whoever runs in a pod and has CAP_LINUX_IMMUTABLE can set them, and finds them as he left them.
//! While they are gone an attribute of the directory around it says so: who is killed meanwhile leaves
//! that to the next one who grows the volume or mounts it.

use super::{Directory, sync};
use crate::fs::{attribute, immutable};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{fs::IFlags, io::Errno};
use std::io;

/// Which flags were taken away, as a number.
const NOTE: &str = "trusted.flexvol.flags";

impl Directory {
    /// Does something that flags of the root may forbid.
    pub(super) fn despite_flags<T>(&self, change: &dyn Fn() -> Result<T>) -> Result<T> {
        let changed = match change() {
            Err(error) if error.kind() == ErrorKind::CapabilityMissing && self.take_flags()? => {
                change()
            }
            changed => changed,
        };
        self.give_flags_back()?;
        changed
    }

    /// Takes such flags away; whether there were any.
    fn take_flags(&self) -> Result<bool> {
        let found = immutable::flags(&self.root).map_err(failed)?;
        if found.is_empty() {
            return Ok(false);
        }
        let taken = self.taken_flags()?.union(found);
        attribute::write(&self.around, NOTE, &taken.bits())?;
        sync(&self.around)?;
        immutable::open_up(&self.root).map_err(failed)
    }

    /// Gives the root back what was taken, also what a process took that was killed.
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
        // Whoever got this far has read the volume's record there.
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
