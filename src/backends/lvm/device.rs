//! The block devices of logical volumes.

use super::{
    Group, expect_plain,
    tags::{growing_of, has_state},
};
use flexvol_storage::{
    BlockBackend, VolumeId,
    host::{
        Device, DeviceNumber,
        block::probe::Proof,
        lvm::{self, mapping},
    },
    mark::State,
    sdk::{ErrorKind, Result},
};

impl BlockBackend for Group {
    const PROOF: Proof = Proof::Ends;
    const KEEPS_UNUSED: bool = true;

    fn owner(device: DeviceNumber, _: Option<&VolumeId>) -> Result<Option<VolumeId>> {
        Ok(mapping::of(device)?.and_then(|found| lvm::volume_in(&found.volume)))
    }

    fn resume(device: DeviceNumber) -> Result<()> {
        lvm::resume(device)
    }

    fn is_responsive(device: DeviceNumber) -> Result<bool> {
        Ok(mapping::of(device)?.is_none_or(|found| !found.suspended))
    }

    fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>> {
        let Some(known) = self.logical_volume(volume)? else {
            return Ok(None);
        };
        lvm::mapped(&self.facts()?.disks, &known.uuid, hint)
    }

    fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device> {
        let known = self.existing(volume)?;
        self.place.remember_first(&*self.facts()?);
        let is_blank = has_state(&known, State::Blank)?;
        self.wipe_grown(volume, &known, is_blank)?;
        // The mark of a blank volume does not record a growth.
        let may_be_cut = is_blank || growing_of(&known)?.is_some();
        lvm::device(&self.place, &self.facts()?.disks, &known, may_be_cut, hint)
    }

    fn unmap(&self, device: Device) -> Result<()> {
        // While the device is open, its number cannot be reused.
        let found = mapping::of(device.number())?;
        drop(device);
        let Some(found) = found.filter(|found| found.group == self.place.group) else {
            return Ok(());
        };
        // Deactivating a volume also removes the devices of its snapshots.
        let view = self.view(Some(&found.volume))?;
        if let Some(known) = view.volume(&found.volume) {
            expect_plain(known)?;
        }
        lvm::deactivate_checked(&self.place, &view.disks, &found.volume, &found.uuid)
    }

    fn unused(&self, volume: &VolumeId, hint: Option<u32>) {
        if !self.keys.deactivate {
            return;
        }
        let name = lvm::name_of(volume);
        let of_this =
            |found: &mapping::Mapping| found.group == self.place.group && found.volume == name;
        let deactivated = mapping::find(hint, of_this).and_then(|found| {
            let Some(found) = found else { return Ok(()) };
            // Keep a volume that is mounted elsewhere or is being read.
            match lvm::open(&found)?.claim() {
                Ok(_) => {}
                Err(busy) if busy.kind() == ErrorKind::Busy => return Ok(()),
                Err(error) => return Err(error),
            }
            // The volume may belong to another pool in the group, which may keep volumes active.
            let view = self.view(Some(&name))?;
            let Some(known) = view.volume(&name) else {
                return Ok(());
            };
            expect_plain(known)?;
            lvm::deactivate_checked(&self.place, &view.disks, &name, &known.uuid)
        });
        if let Err(error) = deactivated {
            log::warn!("the volume stays active: {}", error.report());
        }
    }
}
