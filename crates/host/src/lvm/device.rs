//! Devices of logical volumes: the right device, with the right size, not suspended.

use super::{
    command,
    group_or_thin_pool::GroupOrThinPool,
    mapping::{self, Mapping},
    own::{DeviceOwner, Disks},
    view::LogicalVolume,
};
use crate::{Device, DeviceNumber, deadline::Deadline, fs::grow::measure_unmounted, mountinfo};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::{fs, time::Duration};

/// Resumes a device that LVM suspended. Only LVM itself does that: a plain resume could load a table whose metadata was
/// never committed.
///
/// # Errors
/// [`ErrorKind::Storage`] when the device is still suspended.
pub fn resume(device: DeviceNumber) -> Result<()> {
    match mapping::of(device)? {
        Some(found) if found.suspended => {
            let place = GroupOrThinPool {
                group: found.group.clone(),
                thin_pool: None,
            };
            refresh(&place, &place.disks()?, &found).map(drop)
        }
        _ => Ok(()),
    }
}

/// Refreshes what the device lies on and then the device, and reads its state again.
fn refresh(place: &GroupOrThinPool, disks: &Disks, found: &Mapping) -> Result<Option<Mapping>> {
    let stopped = || {
        Error::new(
            ErrorKind::Storage,
            "the volume's device is suspended, or its thin pool is, and whoever reads it waits; look for a program of LVM that hangs on the node",
        )
    };
    if let Some(below) = &found.stopped_below
        && *below != found.volume
    {
        place.refresh(disks, below)?;
        // LVM would hang on the suspended device too.
        if mapping::of(found.number)?.is_some_and(|now| now.stopped_below.is_some()) {
            return Err(stopped());
        }
    }
    place.refresh(disks, &found.volume)?;
    match mapping::of(found.number)? {
        Some(found) if found.suspended => Err(stopped()),
        found => Ok(found),
    }
}

/// Opens a volume's device and checks its identity: the device number may have been reused a moment ago. While the
/// device is open, the number cannot be reused.
///
/// # Errors
/// [`ErrorKind::Busy`] when the number was reused.
pub fn open(found: &Mapping) -> Result<Device> {
    let device = Device::open(found.number)?;
    match mapping::of(found.number)? {
        Some(now) if now.uuid == found.uuid => Ok(device),
        _ => Err(Error::new(
            ErrorKind::Busy,
            "the volume's device went away while it was opened; try again",
        )),
    }
}

/// Opens the device of a volume, if it has one.
///
/// # Errors
/// [`ErrorKind::Busy`] when a device with its UUID on other disks is in use.
pub fn mapped(disks: &Disks, uuid: &str, hint: Option<u32>) -> Result<Option<Device>> {
    let Some(found) = mapping::find(hint, |found| found.uuid == uuid)? else {
        return Ok(None);
    };
    let device = open(&found)?;
    // While the device is open, its number cannot be reused.
    match disks.owner_of(found.number)? {
        DeviceOwner::Own => Ok(Some(device)),
        owner => match device.claim() {
            // `remove_conflicts` removes a stranger's device before the volume is activated; an unknown one prevents
            // activation.
            Ok(_) => Ok(None),
            // Most likely a pod uses the volume on a lost disk of the group: the device counts as in use.
            Err(error)
                if !matches!(owner, DeviceOwner::Foreign(_)) && error.kind() == ErrorKind::Busy =>
            {
                Ok(Some(device))
            }
            Err(error) if error.kind() == ErrorKind::Busy => owner.expect_own().map(|()| None),
            Err(error) => Err(error),
        },
    }
}

/// Returns the device of a volume that is in its group's metadata; activates the volume if needed. The device lies on
/// the group's disks, is not suspended, and has the volume's size. If a growth `may_be_cut`, a larger device is reduced
/// to the volume's size, unless its file system is larger.
///
/// # Errors
/// When no such device can be provided.
pub fn device(
    place: &GroupOrThinPool,
    disks: &Disks,
    volume: &LogicalVolume,
    may_be_cut: bool,
    hint: Option<u32>,
) -> Result<Device> {
    let size = volume.size;
    let is_it = |found: &Mapping| found.uuid == volume.uuid;
    let gone = || {
        Error::new(
            ErrorKind::Storage,
            "the volume has no device after it was activated",
        )
    };
    let known = match mapping::find(hint, is_it)? {
        Some(found) => match disks.owner_of(found.number)? {
            DeviceOwner::Foreign(_) | DeviceOwner::Gone(_) => None,
            owner => owner.expect_own().map(|()| Some(found))?,
        },
        None => None,
    };
    let mut found = match known {
        Some(found) => found,
        None => {
            place.activate(disks, &volume.name, Some(&volume.uuid))?;
            mapping::find(None, is_it)?.ok_or_else(gone)?
        }
    };
    if found.suspended {
        found = refresh(place, disks, &found)?.ok_or_else(gone)?;
    }
    let mut device = open(&found)?;
    let mut has = device.size()?;
    // A refresh would shrink the device to the size in the metadata, under its writers. After an interrupted growth,
    // the larger size may come from a table that a killed `lvextend` loaded and never committed, and that a resume
    // activated.
    if has > size && !(may_be_cut && ends_before(&device, size)?) {
        return Err(Error::new(
            ErrorKind::Storage,
            format!("the volume had {has:#} and has only {size:#} now; restore its full size"),
        ));
    }
    if has != size {
        drop(device);
        found = refresh(place, disks, &found)?.ok_or_else(gone)?;
        device = open(&found)?;
        has = device.size()?;
    }
    if has != size {
        return Err(Error::new(
            ErrorKind::Storage,
            format!("the volume has {size:#} and its device {has:#}, also after a refresh"),
        ));
    }
    // While the device is open, its number cannot be reused.
    if disks.owner_of(found.number)? != DeviceOwner::Own {
        // A disk may have been added or removed since.
        place.disks()?.owner_of(found.number)?.expect_own()?;
    }
    if found.read_only {
        return Err(Error::new(
            ErrorKind::Storage,
            "the volume's device refuses writes; see `lvs` and `lvchange --permission rw`",
        ));
    }
    Ok(device)
}

/// Whether the device has no file system beyond `end`.
fn ends_before(device: &Device, end: Bytes) -> Result<bool> {
    let found = measure_unmounted(device.file())?;
    Ok(found.is_none_or(|(superblock, _)| superblock.size <= end))
}

/// Time for udev to close a device: it reads the device after a writer has closed it.
const UDEV_READS: Duration = Duration::from_secs(2);

/// Checks that no process, including this one, has the volume's device open. An exclusive open would detect only other
/// exclusive ones, as mounts take and programs such as qemu do not; device-mapper counts all.
///
/// # Errors
/// [`ErrorKind::Busy`] when the device is open, [`ErrorKind::Storage`] when that is not known.
pub fn expect_closed(place: &GroupOrThinPool, volume: &LogicalVolume) -> Result<()> {
    let mut deadline = Deadline::after(UDEV_READS);
    loop {
        let Some(found) = mapping::find(None, |found| found.uuid == volume.uuid)? else {
            return Ok(());
        };
        match place.says_open(&volume.name)? {
            Some(false) => return Ok(()),
            Some(true) if deadline.pause() => {}
            Some(true) => return Err(opened(found.number)?),
            // The device may have been removed a moment ago.
            None if deadline.pause() => {}
            None => {
                return Err(Error::new(
                    ErrorKind::Storage,
                    "lvm does not know whether anybody has the logical volume's device open; is /dev/mapper/control there, and can it be opened?",
                ));
            }
        }
    }
}

/// Returns the error for an open device, with its user as far as the kernel tells.
fn opened(number: DeviceNumber) -> Result<Error> {
    let holders = format!("/sys/dev/block/{number}/holders");
    let is_held = fs::read_dir(holders).is_ok_and(|mut holders| holders.next().is_some());
    let by = if mountinfo::is_anywhere(number, |_| true)? {
        "it is mounted; unmount it first (`findmnt` shows where)"
    } else if is_held {
        "another device lies on it; remove that first (`lsblk` shows which)"
    } else {
        "a program has it open; end that first (`fuser -v` on its device shows which)"
    };
    Ok(Error::new(
        ErrorKind::Busy,
        format!("the logical volume is in use: {by}"),
    ))
}

/// Deactivates a volume that is not in use, and checks that its device is gone: if LVM gets no answer from the kernel,
/// it takes the volume for inactive (`lv_info` in its lib/activate/activate.c).
///
/// # Errors
/// [`ErrorKind::Storage`] when the device is still there or in use.
pub fn deactivate_checked(
    place: &GroupOrThinPool,
    disks: &Disks,
    name: &str,
    uuid: &str,
) -> Result<()> {
    place.deactivate(disks, name)?;
    match mapping::find(None, |found| found.uuid == uuid)? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Storage,
            "lvm let the volume's device go, and it is still there; is /dev/mapper/control there, and can it be opened?",
        )),
    }
}

/// Removes a volume, its device first: a device without a volume would lie on space that the next volume gets.
///
/// # Errors
/// When the volume may still be there.
pub fn remove(place: &GroupOrThinPool, disks: &Disks, volume: &LogicalVolume) -> Result<()> {
    if mapping::find(None, |found| found.uuid == volume.uuid)?.is_some() {
        deactivate_checked(place, disks, &volume.name, &volume.uuid)?;
    }
    place.remove(disks, volume)
}

/// Removes the device of a volume that LVM failed to create and that is not in the group's metadata. If the kernel does
/// not answer LVM while it rolls back, LVM rolls back only the metadata (see [`deactivate_checked`]). No LVM command
/// finds such a device, and the next volume gets the space below it.
///
/// # Errors
/// When the device may still be there.
pub fn remove_orphan_device(place: &GroupOrThinPool, name: &str) -> Result<()> {
    let is_it = |found: &Mapping| found.group == place.group && found.volume == name;
    match mapping::find(None, is_it)? {
        Some(found) => command::remove_mapping(&found.uuid),
        None => Ok(()),
    }
}
