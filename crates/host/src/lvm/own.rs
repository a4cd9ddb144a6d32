//! Ownership of devices: a device belongs to a group if all devices below it do.
//!
//! Every container can read the UUIDs of a group and its volumes in sysfs, and a user of a raw disk can give them to a
//! group of his own. When that is activated, the kernel has devices on his disk with the identity or the names of the
//! pool's. Only the devices below a device cannot be forged.

#[cfg(test)]
pub(super) mod tests;

use super::mapping::{UUID_LENGTH, entries, failed, identity, is_gone, parts, text};
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
    /// Prefix of the device-mapper UUIDs of the group's devices.
    prefix: String,
    /// Paths of the disks that are present and not marked as missing.
    paths: Vec<String>,
    /// Device numbers at these paths.
    numbers: Vec<Option<DeviceNumber>>,
    /// LVM's UUIDs of all disks.
    uuids: Vec<String>,
    /// Number of disks that are not present or marked as missing.
    away: usize,
    /// Device numbers of all disks that have one, including those marked as missing, and of the paths of multipath
    /// disks.
    own: BTreeSet<DeviceNumber>,
    /// Whether LVM finds every disk of the group.
    pub(super) complete: bool,
}

/// Owner of a device: the worst result of the devices below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceOwner {
    /// The group.
    Own,
    /// The device lies on this device, which is gone, or which is a part of a volume and lies on nothing: it cannot be
    /// read.
    Gone(String),
    /// The device lies on this one, which may be a disk of the group, because LVM does not find all of them. Or this is
    /// the device itself, and its table refers to no device.
    Unknown(String),
    /// The device lies on this device, which does not belong to the group.
    Foreign(String),
}

impl DeviceOwner {
    /// Returns an error unless the device belongs to the group.
    pub(super) fn expect_own(self) -> Result<()> {
        let (said, on) = match self {
            DeviceOwner::Own => return Ok(()),
            DeviceOwner::Foreign(_) | DeviceOwner::Gone(_) => return Err(self.in_use()),
            DeviceOwner::Unknown(on) => (
                "the volume's device, or what it lies on, is on a disk of which lvm does not say that it is one of the volume group; see `pvs`, and `dmsetup ls --tree`",
                on,
            ),
        };
        Err(Error::new(ErrorKind::Storage, said).because(on))
    }

    /// Returns the error for a device in use that does not belong to the group.
    pub(super) fn in_use(self) -> Error {
        let (said, on) = match self {
            DeviceOwner::Gone(on) => (
                "the volume's device, or what it lies on, is on a disk that has gone, and is still in use; end what uses it or another volume of its thin pool (`dmsetup ls --tree`), and try again",
                on,
            ),
            DeviceOwner::Own => ("the volume's device is in use", String::new()),
            DeviceOwner::Foreign(on) | DeviceOwner::Unknown(on) => (
                "a device on a disk that is not the volume group's says that it is the volume's and is in use; let LVM on the node see its own disks alone (`lvmdevices`, or a global_filter), and detach that disk: `flexvol doctor` tells which",
                on,
            ),
        };
        Error::new(ErrorKind::Busy, said).because(on)
    }
}

impl Disks {
    /// Builds the disks of the group with this UUID: each path, and whether LVM reports the disk as missing.
    pub(super) fn new(group: &str, disks: Vec<(String, bool)>) -> Self {
        let mut own = BTreeSet::new();
        let mut complete = !disks.is_empty();
        for (path, _) in &disks {
            match number_at(path) {
                Some(number) => {
                    own.extend(paths_of(&directory(number)).unwrap_or_default());
                    own.insert(number);
                }
                None => complete = false,
            }
        }
        let away = disks.iter().filter(|(_, is_missing)| *is_missing).count();
        let there = disks.into_iter().filter(|(_, is_missing)| !is_missing);
        let paths: Vec<_> = there.map(|(path, _)| path).collect();
        Disks {
            prefix: format!("LVM-{}", group.replace('-', "")),
            numbers: paths.iter().map(|path| number_at(path)).collect(),
            paths,
            uuids: Vec::new(),
            away,
            own,
            complete,
        }
    }

    pub(super) fn with_uuids(self, uuids: Vec<String>) -> Self {
        Disks { uuids, ..self }
    }

    /// Whether no disk of the group has this UUID.
    fn lacks(&self, uuid: &str) -> bool {
        !self.uuids.iter().any(|known| known == uuid)
    }

    /// Paths of the disks that are present.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Checks that no disk is missing. LVM creates and extends nothing then; any other change marks the disk as missing
    /// in the metadata, and LVM does not use it any more when it is back.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when a disk is missing.
    pub(super) fn expect_none_away(&self) -> Result<()> {
        if self.away == 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{} of {} disks of the volume group are away; attach them, or where lvm does not use one that is back, `vgextend --restoremissing`; where one is lost for good, repair (`lvconvert --repair`) or remove what lies on it, and take it out with `vgreduce --removemissing`",
                self.away,
                self.paths.len() + self.away
            ),
        ))
    }

    /// Checks that every disk is still where LVM found it. LVM would mark one that has gone as missing in the metadata, or
    /// believe what another disk at its path says.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when a disk has gone or has another number.
    pub(super) fn expect_in_place(&self) -> Result<()> {
        let mut disks = self.paths.iter().zip(&self.numbers);
        match disks.find(|(path, number)| number_at(path) != **number) {
            None => Ok(()),
            Some((path, _)) => {
                Err(changed().because(format!("{path} has gone, or is another disk")))
            }
        }
    }

    /// Checks that these are the disks that the group has `now`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when a disk was added or removed.
    pub(super) fn expect_same(&self, now: &Disks) -> Result<()> {
        match (&self.own, self.away) == (&now.own, now.away) {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// Whether a disk that LVM says is missing was none of the missing ones when these disks were read.
    pub(super) fn is_newly_missing(&self, uuid: &str) -> bool {
        self.away == 0 || self.lacks(uuid)
    }

    /// Returns the owner of a device.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub fn owner_of(&self, device: DeviceNumber) -> Result<DeviceOwner> {
        self.judge(&directory(device)).map_err(failed)
    }

    pub(super) fn judge(&self, device: &Path) -> io::Result<DeviceOwner> {
        let (uuid, name) = identity(device)?.unwrap_or_default();
        // A UUID of another group is certain, even if disks of this group are missing.
        let is_certain = self.complete || !self.names(&uuid);
        let below = below(device)?;
        if below.is_empty() && !stands_for_nothing(device)? {
            // An administrator replaced the table of a whole volume by one without devices, and must undo that.
            return Ok(match (self.names(&uuid), is_hidden(&uuid, &name)) {
                (true, true) => DeviceOwner::Gone(name_of(device)),
                (true, false) => DeviceOwner::Unknown(name_of(device)),
                (false, _) => DeviceOwner::Foreign(name_of(device)),
            });
        }
        let is_on_cachevol = is_on_cachevol(device)?;
        let (mut worst, mut spared) = (None, None);
        for (number, device) in below {
            let owner = match number {
                None => DeviceOwner::Gone(name_of(&device)),
                Some(number) if self.own.contains(&number) => DeviceOwner::Own,
                Some(_) if self.is_layer(&device, is_on_cachevol)? => self.judge(&device)?,
                Some(_) if is_certain => DeviceOwner::Foreign(name_of(&device)),
                Some(_) => DeviceOwner::Unknown(name_of(&device)),
            };
            // The other legs of a mirror have the same data. While a disk is missing, other volumes work with what is
            // there; once LVM finds all disks, the table is the original one again.
            let is_spared = match owner {
                DeviceOwner::Gone(_) => !self.complete || is_leg(&device)?,
                DeviceOwner::Unknown(_) => is_leg(&device)?,
                _ => false,
            };
            let list = if is_spared { &mut spared } else { &mut worst };
            *list = list.take().max(Some(owner));
        }
        Ok(worst.or(spared).unwrap_or(DeviceOwner::Own))
    }

    /// Whether a device is a hidden part of the group's volumes. A whole volume is not: a tenant may have it as a raw
    /// disk.
    fn is_layer(&self, device: &Path, is_cachevol: bool) -> io::Result<bool> {
        let found = identity(device)?;
        Ok(found.is_some_and(|(uuid, name)| {
            self.names(&uuid) && (is_cachevol || is_hidden(&uuid, &name))
        }))
    }

    /// Whether a device-mapper UUID belongs to the group.
    pub(super) fn names(&self, uuid: &str) -> bool {
        uuid.starts_with(&self.prefix)
    }
}

fn changed() -> Error {
    Error::new(
        ErrorKind::Busy,
        "the disks of the volume group changed meanwhile; try again",
    )
}

fn number_at(path: &str) -> Option<DeviceNumber> {
    let disk = fs::metadata(path).ok()?;
    Some(DeviceNumber::from_raw(disk.rdev()))
}

/// Returns the kernel's name of a device.
fn name_of(device: &Path) -> String {
    let name = device.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Whether LVM hides a device: its UUID or name has a third part, or it has a reserved name
/// (`_lvname_has_reserved_string` in lib/misc/lvm-string.c).
pub(super) fn is_hidden(uuid: &str, name: &str) -> bool {
    const RESERVED: [&str; 18] = [
        "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_iorig", "_imeta", "_mimage", "_mlog",
        "_pmspare", "_rimage", "_rmeta", "_tdata", "_tmeta", "_tpool", "_vdata", "_vorigin",
        "_wcorig",
    ];
    let parts = parts(name);
    let volume = parts.get(1).map_or("", String::as_str);
    uuid.len() > UUID_LENGTH
        || parts.len() > 2
        || volume.starts_with("pvmove")
        || RESERVED.iter().any(|part| volume.contains(part))
}

/// Whether a device is a leg or the log of a mirror or RAID.
fn is_leg(device: &Path) -> io::Result<bool> {
    const LEGS: [&str; 4] = ["_rimage_", "_rmeta_", "_mimage_", "_mlog"];
    let volume = text(device.join("dm/name"))?.and_then(|name| parts(&name).into_iter().nth(1));
    Ok(volume.is_some_and(|volume| LEGS.iter().any(|leg| volume.contains(leg))))
}

/// Whether a device lies on a cache volume. Before LVM 2.03.06 that has a name like a whole volume, and only
/// `VG-NAME-_cdata` and `VG-NAME-_cmeta` lie on it (`_add_new_lv_to_dtree` in its lib/activate/dev_manager.c).
fn is_on_cachevol(device: &Path) -> io::Result<bool> {
    let layer = text(device.join("dm/name"))?.and_then(|name| parts(&name).into_iter().nth(2));
    Ok(layer.is_some_and(|layer| ["_cdata", "_cmeta"].contains(&layer.as_str())))
}

/// Whether a device has no table yet, or is LVM's placeholder for a missing disk.
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

/// Returns the devices directly below a device, with their directories in sysfs; one that is gone has no number.
fn below(device: &Path) -> io::Result<Vec<(Option<DeviceNumber>, PathBuf)>> {
    let mut found = Vec::new();
    for device in entries(&device.join("slaves"))? {
        let number = match device_node::number_in(&device.join("dev")) {
            Err(error) if is_gone(&error) => None,
            number => Some(number?),
        };
        found.push((number, device));
    }
    Ok(found)
}

/// Returns the paths of a multipath disk, or of one of its partitions: a volume may have been activated on one path
/// before they were combined.
fn paths_of(disk: &Path) -> io::Result<Vec<DeviceNumber>> {
    let uuid = text(disk.join("dm/uuid"))?.unwrap_or_default();
    if uuid.starts_with("mpath-") {
        let paths = below(disk)?.into_iter();
        return Ok(paths.filter_map(|(number, _)| number).collect());
    }
    // Name format of kpartx.
    let partition = uuid.strip_prefix("part");
    let Some((partition, _)) = partition.and_then(|rest| rest.split_once("-mpath-")) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for (_, whole) in below(disk)? {
        for (_, path) in below(&whole)? {
            for part in entries(&path)? {
                if part.is_dir() && text(part.join("partition"))?.as_deref() == Some(partition) {
                    found.push(device_node::number_in(&part.join("dev"))?);
                }
            }
        }
    }
    Ok(found)
}
