//! Making the logical volume that a volume is.

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
    /// After a volume was not made.
    fn clear(&self, name: &str) -> Result<()> {
        match self.view(Some(name))?.volume(name) {
            Some(_) => Ok(()),
            None => lvm::clear(&self.place, name),
        }
    }

    /// Makes a logical volume with no mark yet, or goes on with one that was cut.
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
            Some(found) => lvm::remove(&self.place, found)?,
            None => {}
        }
        let view = self.view_to_take_from(name)?;
        lvm::expect_metadata_to_make(&view, rules)?;
        self.place.expect_room(Bytes(0), size, &view, rules)?;
        let layout = rules.layout;
        let made = self
            .place
            .create(name, size, UNFINISHED, layout, hold.as_fd());
        if let Err(error) = made {
            // Unless LVM goes on by itself.
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

    /// The volume that was made, unless the group's metadata are too full with it: each free piece that it was made of
    /// takes some of them.
    fn made(&self, view: &View, name: &str) -> Result<LogicalVolume> {
        let made = view.volume(name).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Storage,
                "lvm made the volume, and it is not there",
            )
        })?;
        if let Err(full) = lvm::expect_metadata_to_grow(view, &self.keys.rules) {
            lvm::remove(&self.place, &made)?;
            return Err(full);
        }
        Ok(made)
    }
}
