//! Creation of the logical volume behind a volume.

use super::{
    Group,
    tags::{UNFINISHED, is_unfinished},
};
use flexvol_storage::{
    host::{
        lock::PoolGuard,
        lvm::{self, LogicalVolume, View},
    },
    sdk::{Bytes, Error, ErrorKind, Result},
};
use std::os::fd::AsFd;

impl Group {
    /// Cleans up after a failed creation, if there is no such volume.
    fn clear(&self, name: &str) -> Result<()> {
        match self.view(Some(name))?.volume(name) {
            Some(_) => Ok(()),
            None => lvm::remove_orphan_device(&self.place, name),
        }
    }

    /// Makes a logical volume without a mark, or continues with that of an interrupted call.
    pub(super) fn begin(&self, name: &str, size: Bytes, hold: &PoolGuard) -> Result<LogicalVolume> {
        let view = self.view_to_take_from(name)?;
        let rules = &self.keys.rules;
        let size = self.place.fitting(size, &view, rules)?;
        match view.volume(name) {
            Some(found) if !is_unfinished(found) => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    "the volume already has storage",
                ));
            }
            Some(found) if found.size == size => return self.made(&view, name),
            Some(found) => lvm::remove(&self.place, &view.disks, found)?,
            None => {}
        }
        let view = self.view_to_take_from(name)?;
        lvm::expect_metadata_to_make(&view, rules)?;
        self.place.expect_room(Bytes(0), size, &view, rules)?;
        let layout = rules.layout;
        let (place, disks) = (&self.place, &view.disks);
        let made = place.create(disks, name, size, UNFINISHED, layout, hold.as_fd());
        if let Err(error) = made {
            // After a timeout LVM is still running and may yet make it.
            if error.kind() != ErrorKind::TimedOut
                && let Err(left) = self.clear(name)
            {
                log::warn!(
                    "a device may be left of a volume that was not made: {}",
                    left.report()
                );
            }
            return Err(error);
        }
        self.made(&*self.view(Some(name))?, name)
    }

    /// Returns the new volume. Removes it if too little of the group's metadata is left: each free piece of which
    /// the volume is made uses some.
    fn made(&self, view: &View, name: &str) -> Result<LogicalVolume> {
        let made = view.volume(name).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Storage,
                "lvm made the volume, and it is not there",
            )
        })?;
        if let Err(full) = lvm::expect_metadata_to_grow(view, &self.keys.rules) {
            lvm::remove(&self.place, &view.disks, &made)?;
            return Err(full);
        }
        Ok(made)
    }
}
