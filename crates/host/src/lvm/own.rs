//! Whether a device is its group's own: all that it lies on is the group's.
//!
//! The UUIDs of a group and of its volumes stand in sysfs for every container to read, and whoever writes a raw
//! disk can give them to a group of his own. Whatever activates that tells the kernel of devices on his disk,
//! which then have the identity, or the names, of the pool's. Only what is below a device cannot be made up.

#[cfg(test)]
mod tests;

use super::{
    command,
    mapping::{UUID_LENGTH, failed, identity, is_gone, parts, text},
};
use crate::block::{device_node, number::DeviceNumber};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The disks of a group; by default none is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disks {
    /// What the device-mapper UUIDs of the group's devices begin with.
    prefix: String,
    /// Those that are there, and that LVM takes as they are.
    paths: Vec<String>,
    /// All that have a device, also those that were away for a while, and the paths of a multipath disk.
    own: BTreeSet<DeviceNumber>,
    /// LVM finds every disk of the group.
    complete: bool,
}

/// Whose a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The group's.
    Own,
    /// It lies on this device, which is none of the group's.
    Foreign(String),
    /// It lies on this device, which has gone; or the group has a disk that LVM does not find, and it may be that. Or
    /// it is this device itself, whose table names no other.
    Unknown(String),
}

impl Whose {
    /// Why a device that is not the group's cannot be used.
    pub(super) fn expect_own(self) -> Result<()> {
        match self {
            Whose::Own => Ok(()),
            Whose::Foreign(on) => Err(impersonated(&on)),
            Whose::Unknown(on) => Err(Error::new(
                ErrorKind::Storage,
                format!(
                    "the volume's device lies on {on}, of which lvm does not say that it is a disk of the volume group; see `pvs`, and `dmsetup table`"
                ),
            )),
        }
    }
}

impl Disks {
    /// The disks of the group with this UUID, each with whether LVM says that it is missing.
    pub(super) fn new(group: &str, disks: Vec<(String, bool)>) -> Self {
        let mut own = BTreeSet::new();
        let mut complete = !disks.is_empty();
        for (path, _) in &disks {
            match fs::metadata(path) {
                Ok(disk) => {
                    let number = DeviceNumber::from_raw(disk.rdev());
                    own.extend(paths_of(number));
                    own.insert(number);
                }
                Err(_) => complete = false,
            }
        }
        let there = disks.into_iter().filter(|(_, is_missing)| !is_missing);
        Disks {
            prefix: format!("LVM-{}", group.replace('-', "")),
            paths: there.map(|(path, _)| path).collect(),
            own,
            complete,
        }
    }

    /// The paths of those that are there.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Whose a device is.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn whose(&self, device: DeviceNumber) -> Result<Whose> {
        self.judge(&directory(device)).map_err(failed)
    }

    fn judge(&self, device: &Path) -> io::Result<Whose> {
        let below = below(device)?;
        if below.is_empty() && !stands_for_nothing(device)? {
            return Ok(Whose::Unknown(name_of(device)));
        }
        let (mut has_own, mut dead) = (below.is_empty(), None);
        for (number, device) in below {
            match number {
                Some(number) if self.own.contains(&number) => has_own = true,
                Some(_) if self.is_layer(&device)? => match self.judge(&device)? {
                    Whose::Own => has_own = true,
                    Whose::Unknown(on) => dead = Some(on),
                    foreign @ Whose::Foreign(_) => return Ok(foreign),
                },
                Some(_) => return Ok(self.stranger(&device)),
                // Its disk has gone, and whatever it was, nothing can be read from it: one leg of a mirror, perhaps.
                None => dead = Some(name_of(&device)),
            }
        }
        Ok(match dead {
            Some(on) if !has_own => Whose::Unknown(on),
            _ => Whose::Own,
        })
    }

    fn stranger(&self, device: &Path) -> Whose {
        match self.complete {
            true => Whose::Foreign(name_of(device)),
            false => Whose::Unknown(name_of(device)),
        }
    }

    /// Whether it is a part of the group's volumes that LVM hides. A whole volume is none: a tenant may have one
    /// as his raw disk.
    fn is_layer(&self, device: &Path) -> io::Result<bool> {
        let found = identity(device)?;
        Ok(found
            .is_some_and(|(uuid, name)| uuid.starts_with(&self.prefix) && is_hidden(&uuid, &name)))
    }

    /// Removes the devices that have the group's UUIDs, or the name of the volume that is changed, and lie on other
    /// disks: LVM would take them for its own, or find the name taken. `uuid` is that of the volume, if it is there.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where the volume's, or a part of what it lies on, is open.
    pub(super) fn remove_foreign(
        &self,
        group: &str,
        volume: &str,
        uuid: Option<&str>,
    ) -> Result<()> {
        let mut left = self.foreign(group, |name| name == volume).map_err(failed)?;
        // What lies on another one goes first, and what is in use stays.
        loop {
            let before = left.len();
            left.retain(|found| {
                let is_held = fs::read_dir(found.path.join("holders"))
                    .is_ok_and(|mut holders| holders.next().is_some());
                if is_held || command::remove_mapping(&found.uuid).is_err() {
                    return true;
                }
                log::warn!(
                    "the device {} had the identity of a logical volume of {group} and lay on {}, which is not the group's; it was removed",
                    found.name,
                    found.on
                );
                false
            });
            if left.is_empty() || left.len() == before {
                break;
            }
        }
        let in_the_way = left.iter().find(|found| {
            found.uuid.starts_with(&self.prefix)
                && (is_hidden(&found.uuid, &found.name) || Some(found.uuid.as_str()) == uuid)
        });
        match in_the_way {
            Some(found) => Err(impersonated(&found.on).because(found.name.clone())),
            None => Ok(()),
        }
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
        let found = self.foreign(group, is_volume).map_err(failed)?;
        Ok(found.into_iter().next().map(|found| (found.name, found.on)))
    }

    fn foreign(&self, group: &str, is_volume: impl Fn(&str) -> bool) -> io::Result<Vec<Foreign>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir("/sys/block") {
            Err(error) if is_gone(&error) => return Ok(found),
            entries => entries?,
        };
        for entry in entries {
            let device = entry?.path();
            let Some((uuid, name)) = identity(&device)? else {
                continue;
            };
            if (uuid.starts_with(&self.prefix)
                || volume_of(&uuid, &name, group).is_some_and(|volume| is_volume(&volume)))
                && let Whose::Foreign(on) = self.judge(&device)?
            {
                found.push(Foreign {
                    path: device,
                    uuid,
                    name,
                    on,
                });
            }
        }
        Ok(found)
    }
}

struct Foreign {
    /// Its directory in sysfs.
    path: PathBuf,
    uuid: String,
    name: String,
    /// The device below it that is not the group's.
    on: String,
}

/// That a device which is in use says that it is the volume's.
fn impersonated(on: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "a device on the disk {on}, which is not the volume group's, says that it is the volume's and is in use; let LVM on the node see its own disks alone (`lvmdevices`, or a global_filter), and detach that disk"
        ),
    )
}

fn name_of(device: &Path) -> String {
    let name = device.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The volume of this group that a device is by its name alone.
fn volume_of(uuid: &str, name: &str, group: &str) -> Option<String> {
    match parts(name).as_mut_slice() {
        [of, volume] if of == group && uuid.starts_with("LVM-") => Some(std::mem::take(volume)),
        _ => None,
    }
}

/// What LVM hides has a third part in its UUID, or a reserved name (`_lvname_has_reserved_string` in
/// lib/misc/lvm-string.c).
fn is_hidden(uuid: &str, name: &str) -> bool {
    const RESERVED: [&str; 18] = [
        "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_iorig", "_imeta", "_mimage", "_mlog",
        "_pmspare", "_rimage", "_rmeta", "_tdata", "_tmeta", "_tpool", "_vdata", "_vorigin",
        "_wcorig",
    ];
    let parts = parts(name);
    let volume = parts.get(1).map_or("", String::as_str);
    uuid.len() > UUID_LENGTH
        || volume.starts_with("pvmove")
        || RESERVED.iter().any(|part| volume.contains(part))
}

/// A device that has no table yet, or that LVM puts in the place of a disk that is missing.
fn stands_for_nothing(device: &Path) -> io::Result<bool> {
    let Some(name) = text(device.join("dm/name"))? else {
        return Ok(false);
    };
    let is_placeholder = parts(&name)
        .get(2)
        .is_some_and(|layer| layer.starts_with("missing_"));
    Ok(is_placeholder || text(device.join("size"))?.as_deref() == Some("0"))
}

fn directory(number: DeviceNumber) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{number}"))
}

/// The devices that one lies on, each with its directory in sysfs; one that has gone has no number.
fn below(device: &Path) -> io::Result<Vec<(Option<DeviceNumber>, PathBuf)>> {
    let entries = match fs::read_dir(device.join("slaves")) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let device = entry?.path();
        let number = match device_node::number_in(&device.join("dev")) {
            Err(error) if is_gone(&error) => None,
            number => Some(number?),
        };
        found.push((number, device));
    }
    Ok(found)
}

/// The paths of a multipath disk: a volume may have been activated on one before they were put together.
fn paths_of(disk: DeviceNumber) -> Vec<DeviceNumber> {
    let disk = directory(disk);
    match text(disk.join("dm/uuid")) {
        Ok(Some(uuid)) if uuid.starts_with("mpath-") => {
            let paths = below(&disk).unwrap_or_default();
            paths.into_iter().filter_map(|(number, _)| number).collect()
        }
        _ => Vec::new(),
    }
}
