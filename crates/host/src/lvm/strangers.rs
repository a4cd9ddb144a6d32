//! Devices that say they are a group's and lie on other disks. LVM would take them for its own, or find the name
//! taken.

#[cfg(test)]
mod tests;

use super::{
    command,
    mapping::{entries, failed, identity, parts},
    own::{Disks, Whose, impersonated},
};
use flexvol_sdk::Result;
use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

const DEVICES: &str = "/sys/block";

/// What a change is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed<'a> {
    pub(super) group: &'a str,
    pub(super) volume: &'a str,
    /// Its device-mapper UUID, if it is there.
    pub(super) uuid: Option<&'a str>,
}

impl Changed<'_> {
    /// Whether LVM would come upon a device: it has the identity or the name of the volume, or the identity of a
    /// part of what volumes lie on. Another whole volume is in nobody's way, and somebody may have made a copy of
    /// the group.
    fn comes_upon(&self, disks: &Disks, uuid: &str, name: &str) -> bool {
        disks.hides(uuid, name)
            || self.uuid == Some(uuid)
            || volume_of(uuid, name, self.group).as_deref() == Some(self.volume)
    }
}

struct Stranger {
    /// Its directory in sysfs.
    path: PathBuf,
    name: String,
    whose: Whose,
}

impl Disks {
    /// Whether a change comes upon devices that are not known to be the group's.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub(super) fn are_obstructed(&self, changed: &Changed<'_>) -> Result<bool> {
        let found = self.in_the_way(Path::new(DEVICES), changed);
        found.map(|found| !found.is_empty()).map_err(failed)
    }

    /// Removes the devices that a change comes upon and that are others'. `lock` is LVM's lock of the group, since
    /// before its disks were asked for: meanwhile LVM puts none of them on the group's disks.
    ///
    /// # Errors
    /// [`Busy`](flexvol_sdk::ErrorKind::Busy) where one is in use, [`Storage`](flexvol_sdk::ErrorKind::Storage) where
    /// it is not known whose one is.
    pub(super) fn remove_strangers(
        &self,
        changed: &Changed<'_>,
        lock: BorrowedFd<'_>,
    ) -> Result<()> {
        let found = self.in_the_way(Path::new(DEVICES), changed);
        for stranger in found.map_err(failed)? {
            self.remove(&stranger.path, lock)
                .map_err(|error| error.because(stranger.name))?;
        }
        Ok(())
    }

    /// Removes a device that is another's, after what lies on it.
    fn remove(&self, device: &Path, lock: BorrowedFd<'_>) -> Result<()> {
        for holder in entries(&device.join("holders")).map_err(failed)? {
            self.remove(&holder, lock)?;
        }
        let Some((uuid, name)) = identity(device).map_err(failed)? else {
            return Ok(());
        };
        let on = match self.judge(device).map_err(failed)? {
            Whose::Foreign(on) if uuid.starts_with("LVM-") => on,
            whose => return whose.expect_own(),
        };
        // The kernel refuses one that is open.
        command::remove_mapping(&uuid, &[lock])
            .map_err(|error| impersonated(&on).because(error.report()))?;
        log::warn!(
            "the device {name} had the identity or the name of a logical volume and lay on {on}, which is not of the volume group; it was removed"
        );
        Ok(())
    }

    fn in_the_way(&self, devices: &Path, changed: &Changed<'_>) -> io::Result<Vec<Stranger>> {
        let mut found =
            self.strangers(devices, |uuid, name| changed.comes_upon(self, uuid, name))?;
        found.retain(|found| !matches!(found.whose, Whose::Gone(_)));
        Ok(found)
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
                found.push(Stranger { path, name, whose });
            }
        }
        Ok(found)
    }
}

/// The volume of this group that a device is by its name alone.
fn volume_of(uuid: &str, name: &str, group: &str) -> Option<String> {
    match parts(name).as_mut_slice() {
        [of, volume] if of == group && uuid.starts_with("LVM-") => Some(std::mem::take(volume)),
        _ => None,
    }
}
