//! The device of a logical volume: the right one, as large as it should be, and answering.

use super::{
    command,
    group_or_thin_pool::GroupOrThinPool,
    mapping::{self, Mapping},
    own::{Disks, Whose},
    view::LogicalVolume,
};
use crate::{Device, DeviceNumber, deadline::Deadline, fs::grow::measure_unmounted, mountinfo};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::{fs, time::Duration};

/// Makes a device answer that LVM stopped, by LVM alone: resuming it by itself could bring a table
/// to life whose metadata was never committed.
///
/// # Errors
/// [`ErrorKind::Storage`] where it is still stopped.
pub fn resume(device: DeviceNumber) -> Result<()> {
    match mapping::of(device)? {
        Some(found) if found.suspended => {
            let place = GroupOrThinPool {
                group: found.group.clone(),
                thin_pool: None,
            };
            refresh(&place, &found).map(drop)
        }
        _ => Ok(()),
    }
}

/// Refreshes a device, after what it lies on, and looks at it again.
fn refresh(place: &GroupOrThinPool, found: &Mapping) -> Result<Option<Mapping>> {
    let stopped = || {
        Error::new(
            ErrorKind::Storage,
            "the volume's device is suspended, or its thin pool is, and whoever reads it waits; look for a program of LVM that hangs on the node",
        )
    };
    if let Some(below) = &found.stopped_below
        && *below != found.volume
    {
        place.refresh(below)?;
        // LVM would wait for it too.
        if mapping::of(found.number)?.is_some_and(|now| now.stopped_below.is_some()) {
            return Err(stopped());
        }
    }
    place.refresh(&found.volume)?;
    match mapping::of(found.number)? {
        Some(found) if found.suspended => Err(stopped()),
        found => Ok(found),
    }
}

/// Opens a volume's device. Its number may have become another volume's a moment ago; from here on
/// it cannot.
///
/// # Errors
/// [`ErrorKind::Busy`] where it has.
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

/// The device of a volume that has one.
///
/// # Errors
/// [`ErrorKind::Busy`] where somebody uses one on other disks that has its UUID.
pub fn mapped(disks: &Disks, uuid: &str, hint: Option<u32>) -> Result<Option<Device>> {
    let Some(found) = mapping::find(hint, |found| found.uuid == uuid)? else {
        return Ok(None);
    };
    let device = open(&found)?;
    // While it is open its number is no other's.
    match disks.whose(found.number)? {
        Whose::Own => Ok(Some(device)),
        whose => match device.claim() {
            // A stranger's goes before the volume gets its own; what is unknown keeps it from that.
            Ok(_) => Ok(None),
            // The lost disk of the group, with a pod on it, most likely: it counts as in use.
            Err(error)
                if !matches!(whose, Whose::Foreign(_)) && error.kind() == ErrorKind::Busy =>
            {
                Ok(Some(device))
            }
            Err(error) if error.kind() == ErrorKind::Busy => whose.expect_own().map(|()| None),
            Err(error) => Err(error),
        },
    }
}

/// The device of a volume that is in the metadata of its group: it lies on the group's disks, answers, and has
/// the size of the volume, or there is none. Where a growth of it `may_be_cut`, a larger device becomes as large as
/// the volume, unless a file system spans more.
///
/// # Errors
/// When that cannot be reached.
pub fn device(
    place: &GroupOrThinPool,
    disks: &Disks,
    volume: &LogicalVolume,
    may_be_cut: bool,
    hint: Option<u32>,
) -> Result<Device> {
    let (size, before) = (volume.size, command::changes());
    let is_it = |found: &Mapping| found.uuid == volume.uuid;
    let gone = || {
        Error::new(
            ErrorKind::Storage,
            "the volume has no device after it was activated",
        )
    };
    let known = match mapping::find(hint, is_it)? {
        Some(found) => match disks.whose(found.number)? {
            Whose::Foreign(_) | Whose::Gone(_) => None,
            whose => whose.expect_own().map(|()| Some(found))?,
        },
        None => None,
    };
    let mut found = match known {
        Some(found) => found,
        None => {
            place.activate(&volume.name, Some(&volume.uuid))?;
            mapping::find(None, is_it)?.ok_or_else(gone)?
        }
    };
    if found.suspended {
        found = refresh(place, &found)?.ok_or_else(gone)?;
    }
    let mut device = open(&found)?;
    let mut has = device.size()?;
    // A refresh would take from the device what the metadata has lost, under whoever writes to it. After a cut it may be
    // what a killed `lvextend` left, a table that was never committed, which a resume takes.
    if has > size && !(may_be_cut && ends_before(&device, size)?) {
        return Err(Error::new(
            ErrorKind::Storage,
            format!("the volume had {has} and has only {size} now; restore its full size"),
        ));
    }
    if has != size {
        drop(device);
        found = refresh(place, &found)?.ok_or_else(gone)?;
        device = open(&found)?;
        has = device.size()?;
    }
    if has != size {
        return Err(Error::new(
            ErrorKind::Storage,
            format!("the volume has {size} and its device {has}, also after a refresh"),
        ));
    }
    // A disk may have come or gone since.
    let now = (command::changes() != before).then(|| place.disks());
    let now = now.transpose()?;
    // While it is open its number is no other's.
    let whose = now.as_ref().unwrap_or(disks).whose(found.number)?;
    whose.expect_own()?;
    if found.read_only {
        return Err(Error::new(
            ErrorKind::Storage,
            "the volume's device refuses writes; see `lvs` and `lvchange --permission rw`",
        ));
    }
    Ok(device)
}

/// Whether the file system on a device, if there is one, ends where the volume does, or before.
fn ends_before(device: &Device, end: Bytes) -> Result<bool> {
    let found = measure_unmounted(device.file())?;
    Ok(found.is_none_or(|(superblock, _)| superblock.size <= end))
}

/// udev reads a device for a moment after a program that wrote it has closed it.
const UDEV_READS: Duration = Duration::from_secs(2);

/// Checks that nobody has the volume's device open, this process included. A claim sees only those
/// who claim it too, which mounts do and programs such as qemu do not; device-mapper counts all.
///
/// # Errors
/// [`ErrorKind::Busy`] where somebody has, [`ErrorKind::Storage`] where that is not known.
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
            // It may have gone a moment ago.
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

/// Who has a device open, as far as the kernel tells.
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

/// Takes the device from a volume that nobody uses, and looks whether it is gone: where the kernel
/// does not answer LVM, that takes the volume for one without a device (`lv_info` in its
/// lib/activate/activate.c).
///
/// # Errors
/// [`ErrorKind::Storage`] where it is still there, [`ErrorKind::Busy`] where somebody uses it.
pub fn let_go(place: &GroupOrThinPool, name: &str, uuid: &str) -> Result<()> {
    place.deactivate(name)?;
    match mapping::find(None, |found| found.uuid == uuid)? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Storage,
            "lvm let the volume's device go, and it is still there; is /dev/mapper/control there, and can it be opened?",
        )),
    }
}

/// Removes a volume, its device first: a device whose volume is gone lies on space that the next
/// volume gets.
///
/// # Errors
/// When it may still be there.
pub fn remove(place: &GroupOrThinPool, volume: &LogicalVolume) -> Result<()> {
    if mapping::find(None, |found| found.uuid == volume.uuid)?.is_some() {
        let_go(place, &volume.name, &volume.uuid)?;
    }
    place.remove(volume)
}

/// Takes the device from a volume that LVM was to make, and that is not in the group's metadata: where
/// the kernel does not answer LVM while it gives up, it takes back the metadata alone (see [`let_go`]).
/// No command of LVM finds such a device, and the next volume gets the space below it.
///
/// # Errors
/// When it may still be there.
pub fn clear(place: &GroupOrThinPool, name: &str) -> Result<()> {
    let is_it = |found: &Mapping| found.group == place.group && found.volume == name;
    match mapping::find(None, is_it)? {
        Some(found) => command::remove_mapping(&found.uuid),
        None => Ok(()),
    }
}
