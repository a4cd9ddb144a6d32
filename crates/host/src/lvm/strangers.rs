//! Devices that say they are a group's and lie on other disks, or on one that has gone. LVM would take them for its
//! own, or find the name taken.

#[cfg(test)]
mod tests;

use super::{
    changed::{Changed, Part, PartRow, volume_of},
    command,
    mapping::{entries, failed, identity},
    own::{Disks, Whose, is_hidden},
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
    whose: Whose,
}

impl Disks {
    /// The devices that a change may come upon, and that are not known to be the group's.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub(super) fn in_the_way(&self, changed: &Changed<'_>) -> Result<Vec<Stranger>> {
        self.strangers(Path::new(DEVICES), |uuid, name| {
            changed.may_come_upon(self, uuid, name)
        })
        .map_err(failed)
    }

    /// Removes those of them that the change does come upon. `rows` are all volumes of the group, parts too.
    ///
    /// LVM may be putting one on the group's disks at this moment, for somebody else; that fails then, and is done again.
    ///
    /// # Errors
    /// [`Busy`](flexvol_sdk::ErrorKind::Busy) where one is in use, [`Storage`](flexvol_sdk::ErrorKind::Storage) where
    /// it is not known whose one is.
    pub(super) fn make_way(
        &self,
        found: Vec<Stranger>,
        changed: &Changed<'_>,
        rows: &[PartRow],
    ) -> Result<()> {
        let found = self.obstacles(found, changed, rows).map_err(failed)?;
        // Before any is removed.
        for stranger in &found {
            if let Whose::Unknown(_) = stranger.whose {
                return stranger.whose.clone().expect_own();
            }
        }
        for stranger in found {
            self.remove(&stranger.path, &stranger.uuid)
                .map_err(|error| error.because(stranger.name))?;
        }
        Ok(())
    }

    fn obstacles(
        &self,
        found: Vec<Stranger>,
        changed: &Changed<'_>,
        rows: &[PartRow],
    ) -> io::Result<Vec<Stranger>> {
        let (parts, mut obstacles) = (changed.with_parts(rows), Vec::new());
        for it in found {
            let is_looked_for = |part: &Part| part.is(changed.group, &it.uuid, &it.name);
            if parts.iter().any(is_looked_for) && !self.carries_own(&it.path)? {
                obstacles.push(it);
            }
        }
        Ok(obstacles)
    }

    /// Whether the group's own lies on a device: a leg that is lost, with the others beside it.
    fn carries_own(&self, device: &Path) -> io::Result<bool> {
        for holder in entries(&device.join("holders"))? {
            if self.judge(&holder)? == Whose::Own || self.carries_own(&holder)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes a device that is another's or lies on nothing, after what lies on it; one that has another UUID by now is
    /// another device.
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
        let whose = self.judge(device).map_err(failed)?;
        if !uuid.starts_with("LVM-") {
            return Err(whose.in_use());
        }
        if let Whose::Own | Whose::Unknown(_) = whose {
            return whose.expect_own();
        }
        // The kernel refuses one that is open.
        self.take(device, uuid)
            .map_err(|error| match error.kind() {
                ErrorKind::Busy => whose.in_use(),
                _ => error,
            })?;
        log::warn!(
            "the device {name} had the identity or the name of a logical volume and did not lie on the disks of its volume group; it was removed"
        );
        Ok(())
    }

    /// Removes a device, and the parts of the group below it on which nothing lies any more: LVM activates no volume
    /// while one of its parts is active by itself (`lv_is_component` in its lib/activate/activate.c).
    fn take(&self, device: &Path, uuid: &str) -> Result<()> {
        let below = entries(&device.join("slaves")).map_err(failed)?;
        // Its own directory goes with it.
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

    /// A device that says it is the group's, or one of its volumes by name, and the one below it that is none of the
    /// group's.
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
        Ok(found.find_map(|found| match found.whose {
            Whose::Foreign(on) => Some((found.name, on)),
            _ => None,
        }))
    }

    /// Those of these devices that are not the group's own.
    fn strangers(
        &self,
        devices: &Path,
        says_so: impl Fn(&str, &str) -> bool,
    ) -> io::Result<Vec<Stranger>> {
        let mut found = Vec::new();
        for path in entries(devices)? {
            if let Some((uuid, name)) = identity(&path)?
                && says_so(&uuid, &name)
                && let whose = self.judge(&path)?
                && whose != Whose::Own
            {
                found.push(Stranger {
                    path,
                    uuid,
                    name,
                    whose,
                });
            }
        }
        Ok(found)
    }
}
