//! Strangers: devices that claim to be a group's and lie on other disks, or on a disk that is gone. LVM would take them
//! for the group's own, or find the name in use.

#[cfg(test)]
mod tests;

use super::{
    changed::{Changed, Part, PartRow, volume_of},
    command,
    mapping::{entries, failed, identity},
    own::{DeviceOwner, Disks, is_hidden},
};
use flexvol_sdk::{ErrorKind, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const DEVICES: &str = "/sys/block";

/// A device that is not known to be the group's.
pub(super) struct Stranger {
    /// Its directory in sysfs.
    path: PathBuf,
    uuid: String,
    name: String,
    owner: DeviceOwner,
}

impl Disks {
    /// Returns the devices that a change may run into and that are not known to be the group's.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub(super) fn possible_conflicts(&self, changed: &Changed<'_>) -> Result<Vec<Stranger>> {
        self.strangers(Path::new(DEVICES), |uuid, name| {
            changed.may_conflict(self, uuid, name)
        })
        .map_err(failed)
    }

    /// Removes those of the found devices that the change does run into. `rows` are all volumes of the group and their
    /// parts.
    ///
    /// Another process' LVM may be moving such a device to the group's disks at this moment. Its command then fails and
    /// is retried.
    ///
    /// [`Busy`](flexvol_sdk::ErrorKind::Busy) when a device is in use, [`Storage`](flexvol_sdk::ErrorKind::Storage)
    /// when a device's owner is unknown.
    pub(super) fn remove_conflicts(
        &self,
        found: Vec<Stranger>,
        changed: &Changed<'_>,
        rows: &[PartRow],
    ) -> Result<()> {
        let found = self.conflicts(found, changed, rows).map_err(failed)?;
        // Check all before any is removed.
        for stranger in &found {
            if let DeviceOwner::Unknown(_) = stranger.owner {
                return stranger.owner.clone().expect_own();
            }
        }
        for stranger in found {
            self.remove(&stranger.path, &stranger.uuid)
                .map_err(|error| error.because(stranger.name))?;
        }
        Ok(())
    }

    fn conflicts(
        &self,
        found: Vec<Stranger>,
        changed: &Changed<'_>,
        rows: &[PartRow],
    ) -> io::Result<Vec<Stranger>> {
        let (parts, mut conflicts) = (changed.with_parts(rows), Vec::new());
        for it in found {
            let is_looked_for = |part: &Part| part.is(changed.group, &it.uuid, &it.name);
            if parts.iter().any(is_looked_for) && !self.carries_own(&it.path)? {
                conflicts.push(it);
            }
        }
        Ok(conflicts)
    }

    /// Whether a device of the group lies on this one: it is a lost leg, and the other legs remain.
    fn carries_own(&self, device: &Path) -> io::Result<bool> {
        for holder in entries(&device.join("holders"))? {
            if self.judge(&holder)? == DeviceOwner::Own || self.carries_own(&holder)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes a device that is another's or lies on nothing, after the devices on top of it. A device whose UUID has
    /// changed is another one and is left alone.
    fn remove(&self, device: &Path, uuid: &str) -> Result<()> {
        for holder in entries(&device.join("holders")).map_err(failed)? {
            if let Some((uuid, _)) = identity(&holder).map_err(failed)? {
                self.remove(&holder, &uuid)?;
            }
        }
        let Some((_, name)) = identity(device)
            .map_err(failed)?
            .filter(|now| now.0 == uuid)
        else {
            return Ok(());
        };
        let owner = self.judge(device).map_err(failed)?;
        if !uuid.starts_with("LVM-") {
            return Err(owner.in_use());
        }
        if let DeviceOwner::Own | DeviceOwner::Unknown(_) = owner {
            return owner.expect_own();
        }
        // The kernel refuses while the device is open.
        self.take(device, uuid)
            .map_err(|error| match error.kind() {
                ErrorKind::Busy => owner.in_use(),
                _ => error,
            })?;
        log::warn!(
            "the device {name} had the identity or the name of a logical volume and did not lie on the disks of its volume group; it was removed"
        );
        Ok(())
    }

    /// Removes a device, and then the group's parts below it that nothing else lies on: LVM activates no volume while
    /// one of its parts is active by itself (`lv_is_component` in its lib/activate/activate.c).
    fn take(&self, device: &Path, uuid: &str) -> Result<()> {
        let below = entries(&device.join("slaves")).map_err(failed)?;
        // Removal also removes the device's own directory in sysfs.
        let below: Vec<_> = below.iter().flat_map(fs::canonicalize).collect();
        command::remove_mapping(uuid)?;
        for part in below {
            let holders = entries(&part.join("holders")).map_err(failed)?;
            let found = identity(&part).map_err(failed)?;
            if let Some((uuid, name)) = found
                && holders.is_empty()
                && self.names(&uuid)
                && is_hidden(&uuid, &name)
            {
                self.take(&part, &uuid)?;
            }
        }
        Ok(())
    }

    /// Returns a device that claims to belong to the group, or has the name of one of its volumes, and the foreign
    /// device below it.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn impostor(
        &self,
        group: &str,
        is_volume: impl Fn(&str) -> bool,
    ) -> Result<Option<(String, String)>> {
        let found = self.strangers(Path::new(DEVICES), |uuid, name| {
            self.names(uuid)
                || volume_of(uuid, name, group).is_some_and(|volume| is_volume(&volume))
        });
        let mut found = found.map_err(failed)?.into_iter();
        Ok(found.find_map(|found| match found.owner {
            DeviceOwner::Foreign(on) => Some((found.name, on)),
            _ => None,
        }))
    }

    /// Returns the devices with a matching claim that are not the group's own.
    fn strangers(
        &self,
        devices: &Path,
        says_so: impl Fn(&str, &str) -> bool,
    ) -> io::Result<Vec<Stranger>> {
        let mut found = Vec::new();
        for path in entries(devices)? {
            if let Some((uuid, name)) = identity(&path)?
                && says_so(&uuid, &name)
                && let owner = self.judge(&path)?
                && owner != DeviceOwner::Own
            {
                found.push(Stranger {
                    path,
                    uuid,
                    name,
                    owner,
                });
            }
        }
        Ok(found)
    }
}
