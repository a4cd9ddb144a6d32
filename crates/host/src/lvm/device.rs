//! The device of a logical volume: the right one, as large as it should be, and answering.

use super::{
    mapping::{self, Mapping},
    place::Place,
    report::LogicalVolume,
};
use crate::{Device, DeviceNumber};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

/// Makes a device answer that LVM stopped, by LVM alone: resuming it by itself could bring a table
/// to life whose metadata was never committed.
///
/// # Errors
/// [`ErrorKind::Storage`] where it is still stopped.
pub fn resume(device: DeviceNumber) -> Result<()> {
    match mapping::of(device)? {
        Some(found) if found.suspended => refresh(&found).map(drop),
        _ => Ok(()),
    }
}

/// Refreshes a device, after what it lies on, and looks at it again.
fn refresh(found: &Mapping) -> Result<Option<Mapping>> {
    let stopped = || {
        Error::new(
            ErrorKind::Storage,
            "the volume's device is suspended, or its thin pool is, and whoever reads it waits; look for a program of LVM that hangs on the node",
        )
    };
    let place = Place {
        group: found.group.clone(),
        thin_pool: None,
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

/// The device of a volume that is in the metadata of its group with this size: it answers, and has
/// all of the size, or there is none.
///
/// # Errors
/// When that cannot be reached.
pub fn device(
    place: &Place,
    name: &str,
    uuid: &str,
    size: Bytes,
    hint: Option<u32>,
) -> Result<Device> {
    let is_it = |found: &Mapping| found.uuid == uuid;
    let gone = || {
        Error::new(
            ErrorKind::Storage,
            "the volume has no device after it was activated",
        )
    };
    let mut found = match mapping::find(hint, is_it)? {
        Some(found) => found,
        None => {
            place.activate(name)?;
            mapping::find(None, is_it)?.ok_or_else(gone)?
        }
    };
    if found.suspended {
        found = refresh(&found)?.ok_or_else(gone)?;
    }
    let mut device = open(&found)?;
    let mut has = device.size()?;
    // A refresh would take from the device what the metadata has lost, under whoever writes to it.
    if has > size {
        return Err(Error::new(
            ErrorKind::Storage,
            format!("the volume had {has} and has only {size} now; restore its full size"),
        ));
    }
    if has < size {
        drop(device);
        found = refresh(&found)?.ok_or_else(gone)?;
        device = open(&found)?;
        has = device.size()?;
    }
    if has != size {
        return Err(Error::new(
            ErrorKind::Storage,
            format!("the volume has {size} and its device {has}, also after a refresh"),
        ));
    }
    if found.read_only {
        return Err(Error::new(
            ErrorKind::Storage,
            "the volume's device refuses writes; see `lvs` and `lvchange --permission rw`",
        ));
    }
    Ok(device)
}

/// Takes the device from a volume that nobody uses, and looks whether it is gone: where the kernel
/// does not answer LVM, that takes the volume for one without a device (`lv_info` in its
/// lib/activate/activate.c).
///
/// # Errors
/// [`ErrorKind::Storage`] where it is still there, [`ErrorKind::Busy`] where somebody uses it.
pub fn let_go(place: &Place, name: &str, uuid: &str) -> Result<()> {
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
pub fn remove(place: &Place, volume: &LogicalVolume) -> Result<()> {
    if mapping::find(None, |found| found.uuid == volume.uuid)?.is_some() {
        let_go(place, &volume.name, &volume.uuid)?;
    }
    place.remove(&volume.name)
}
