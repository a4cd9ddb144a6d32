//! Adoption of logical volumes, and cleaning up.

use super::{
    Group,
    tags::{is_unfinished, mark_of, opened},
};
use flexvol_storage::{
    ManagedBackend, Mark, VolumeId,
    host::{
        Device, DeviceNumber,
        lvm::{self, LogicalVolume, mapping},
    },
    sdk::{Error, ErrorKind, Result, VolumeName},
};
use std::{ffi::OsStr, fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

/// A logical volume that may be adopted.
pub(super) struct Unmanaged(LogicalVolume);

impl ManagedBackend for Group {
    type Unmanaged = Unmanaged;

    fn open_unmanaged(&self, path: &Path) -> Result<Option<Unmanaged>> {
        let unfit = |what: &str| Err(Error::new(ErrorKind::Conflict, what.to_owned()));
        let (group, name) = match fs::metadata(path) {
            Ok(metadata) => match mapping::of(DeviceNumber::from_raw(metadata.rdev()))? {
                Some(found) => (found.group, found.volume),
                None => return unfit("that is no logical volume"),
            },
            // An inactive volume has no device to look at.
            Err(_) => {
                let mut parts = path.iter().rev().map(OsStr::to_string_lossy);
                match (parts.next(), parts.next()) {
                    (Some(name), Some(group)) => (group.into_owned(), name.into_owned()),
                    _ => return unfit("name a logical volume, as GROUP/NAME or by its device"),
                }
            }
        };
        if group != self.place.group {
            return unfit("the logical volume is in another volume group than the pool");
        }
        self.forget();
        let Some(found) = self.view(None)?.volume(&name).cloned() else {
            return Ok(None);
        };
        if let Some(volume) = lvm::volume_in(&name)
            && let Some(tag) = mark_of(&found)?
        {
            let key = self.facts()?.key()?;
            // A copy is no volume.
            if opened(tag, &volume, &key)?.is_of(&volume, key.id()) {
                return unfit("the logical volume is a volume of the pool already");
            }
        }
        if !found.is_removed_alone {
            return unfit("the logical volume is part of something else, or has snapshots");
        }
        lvm::expect_closed(&self.place, &found)?;
        Ok(Some(Unmanaged(found)))
    }

    fn device_of(&self, unmanaged: &Unmanaged, _: &VolumeId) -> Result<Device> {
        let found = &unmanaged.0;
        lvm::device(&self.place, &self.facts()?.disks, found, false, None)
    }

    /// Writes the mark before renaming. If interrupted in between, it is still a logical volume that the next call
    /// adopts.
    fn adopt(&self, unmanaged: Unmanaged, volume: &VolumeId, mark: &Mark) -> Result<()> {
        let found = unmanaged.0;
        let _lock = self.lock_space()?;
        self.forget();
        // Another call may have adopted it meanwhile, under another name.
        let view = self.view(None)?;
        if view.volume(&found.name) != Some(&found) {
            return Err(Error::new(
                ErrorKind::Busy,
                "somebody changed the logical volume meanwhile; look at it again",
            ));
        }
        lvm::expect_closed(&self.place, &found)?;
        let (old, new) = (mark_of(&found)?, self.tag(volume, mark)?);
        if old != Some(new.as_str()) {
            self.commit(volume, &view.disks, |place, disks| {
                place.retag(disks, &found.name, old, &new)
            })?;
        }
        self.commit(volume, &view.disks, |place, disks| {
            place.rename(disks, &found, &lvm::name_of(volume))
        })
    }

    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        let promised = self.names()?.older_than(age)?;
        let view = self.view(None)?;
        let dangling = promised
            .into_iter()
            .filter(|(_, volume)| view.volume(&lvm::name_of(volume)).is_none());
        Ok(dangling.collect())
    }

    fn is_leftover(&self, _: &Device) -> Result<bool> {
        Ok(self.keys.deactivate)
    }

    fn unfinished(&self) -> Result<Vec<VolumeId>> {
        let view = self.view(None)?;
        let unfinished = view.volumes.iter().filter(|found| is_unfinished(found));
        Ok(unfinished
            .filter_map(|found| lvm::volume_in(&found.name))
            .collect())
    }
}
