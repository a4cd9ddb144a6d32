//! Starts of a machine: from the snapshot, or by booting.

use super::{machine::Machine, setup::Setup, snapshot};
use anyhow::Result;

impl Machine {
    /// Restores the snapshot, in half a second. Its machine has not read any disk yet, so this is as good as a boot.
    /// The first call builds the image and the snapshot.
    ///
    /// # Errors
    /// When qemu cannot be started, or the snapshot cannot be created.
    pub fn restore(setup: &Setup) -> Result<Self> {
        let (image, state) = snapshot::kept()?;
        let mut machine = Machine::start_qemu(setup, &image, "", Some(&state))?;
        machine.greet()?;
        Ok(machine)
    }

    /// Boots a machine, in about six seconds.
    ///
    /// # Errors
    /// When qemu cannot be started, or the machine does not boot.
    pub fn boot(setup: &Setup) -> Result<Self> {
        let (image, _) = snapshot::kept()?;
        let (mut machine, _) = Machine::boot_image(setup, &image, "")?;
        machine.greet()?;
        Ok(machine)
    }

    /// Boots a machine with a newer kernel (6.12), which gets `words` on its command line. The first call builds the
    /// image.
    ///
    /// # Errors
    /// As for [`Machine::boot`].
    pub fn boot_newer(setup: &Setup, words: &str) -> Result<Self> {
        let (mut machine, _) = Machine::boot_image(setup, &snapshot::newer()?, words)?;
        machine.greet()?;
        Ok(machine)
    }
}
