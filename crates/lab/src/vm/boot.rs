//! How a machine comes to run: from the snapshot, or by booting.

use super::{machine::Machine, setup::Setup, snapshot};
use anyhow::Result;

impl Machine {
    /// Goes on from the snapshot: half a second. The machine has read nothing of its disks yet, so
    /// this is as good as a boot on them. The first time the image and the snapshot are built.
    ///
    /// # Errors
    /// When qemu cannot be started, or the snapshot cannot be made.
    pub fn restore(setup: &Setup) -> Result<Self> {
        let (image, state) = snapshot::kept()?;
        let mut machine = Machine::start_qemu(setup, &image, "", Some(&state))?;
        machine.greet()?;
        Ok(machine)
    }

    /// Boots: some six seconds.
    ///
    /// # Errors
    /// When qemu cannot be started, or the machine does not come up.
    pub fn boot(setup: &Setup) -> Result<Self> {
        let (image, _) = snapshot::kept()?;
        let (mut machine, _) = Machine::boot_image(setup, &image, "")?;
        machine.greet()?;
        Ok(machine)
    }

    /// Boots with a newer kernel (6.12), which is told these words too. Its image is built the first
    /// time.
    ///
    /// # Errors
    /// As for [`Machine::boot`].
    pub fn boot_newer(setup: &Setup, words: &str) -> Result<Self> {
        let (mut machine, _) = Machine::boot_image(setup, &snapshot::newer()?, words)?;
        machine.greet()?;
        Ok(machine)
    }
}
