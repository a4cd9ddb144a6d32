//! Finds the loop device of an image.

use super::{
    LOOK,
    backing::{bound, inode_under, is_absent, is_local, may_be_on},
};
use crate::{
    block::{device::Device, device_node, number::DeviceNumber},
    deadline::Deadline,
    image::Image,
    sys,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::{io, os::fd::AsFd};

/// Finds the loop device that is attached to `image`. `hint` is the minor number of the device to try first.
///
/// Without a good hint, the kernel is asked whether any other process or device has the image open. Only then are all
/// loop devices examined, which takes time in proportion to the volumes of the node.
///
/// # Errors
/// [`ErrorKind::Conflict`] if two devices are found attached to the image: a file system could be mounted twice.
pub fn find(image: &Image, hint: Option<u32>) -> Result<Option<Device>> {
    if let Some(minor) = hint {
        let number = loop_number(minor);
        let on_image = match may_be_on(number, image) {
            true => open_on(number, image),
            false => Ok(None),
        };
        match on_image {
            Ok(Some(device)) => return Ok(Some(device)),
            Ok(None) => {}
            // The device may belong to another process by now, in any state.
            Err(error) => log::debug!("no use in the hint {minor}: {}", error.report()),
        }
    }
    let is_only_opener = || sys::file_lease::is_only_opener(image.file().as_fd());
    if is_only_opener() {
        return Ok(None);
    }
    let failed = |error| Error::system("look through the loop devices", error);
    let mut found = scan(image, may_be_on).map_err(failed)?;
    if found.is_empty() {
        let mut deadline = Deadline::after(LOOK);
        while deadline.pause() {
            if is_only_opener() {
                return Ok(None);
            }
        }
        // A device may keep the image open that was attached when the image had another name.
        found = scan(image, |number, _| is_local(number)).map_err(failed)?;
    }
    match found[..] {
        [] => Ok(None),
        [number] => open_on(number, image),
        _ => Err(Error::new(
            ErrorKind::Conflict,
            "the volume's image is attached to several loop devices; detach those that are not mounted",
        )
        .because(found
            .iter()
            .map(|number| format!("/dev/loop{number}"))
            .collect::<Vec<_>>()
            .join(", "))),
    }
}

fn loop_number(minor: u32) -> DeviceNumber {
    DeviceNumber {
        major: device_node::LOOP_MAJOR,
        minor,
    }
}

/// Opens the device if it is attached to `image`.
pub(super) fn open_on(number: DeviceNumber, image: &Image) -> Result<Option<Device>> {
    let device = match Device::open(number) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    match is_on(&device, image)? {
        true => with_image(device, image).map(Some),
        false => Ok(None),
    }
}

/// Whether the device is attached to `image`.
pub(super) fn is_on(device: &Device, image: &Image) -> Result<bool> {
    let info = sys::loops::status(device.as_fd())
        .map_err(|error| Error::system("ask the loop device for its file", error))?;
    Ok(info.is_some_and(|info| inode_under(&info) == image.inode()))
}

pub(super) fn with_image(device: Device, image: &Image) -> Result<Device> {
    let file = image
        .file()
        .try_clone()
        .map_err(|error| Error::system("keep the image open", error))?;
    Ok(device.with_backing(file))
}

fn scan(
    image: &Image,
    may_be_on: fn(DeviceNumber, &Image) -> bool,
) -> io::Result<Vec<DeviceNumber>> {
    let (mut found, mut refused) = (Vec::new(), None);
    for number in bound()? {
        // Checked before the open, because even the close may block, on pending writes.
        if !may_be_on(number, image) {
            continue;
        }
        let file = match device_node::open(number, OFlags::RDONLY) {
            Err(error) if is_absent(&error) => continue,
            result => result?.0,
        };
        match sys::loops::status(file.as_fd()).map_err(io::Error::from) {
            Ok(Some(info)) if inode_under(&info) == image.inode() => found.push(number),
            Ok(_) => {}
            Err(error) if is_absent(&error) => {}
            Err(error) => refused = Some(error),
        }
    }
    // The kernel asks the backing file system of each device (`loop_get_status`), and that of another volume may be
    // dead. If the image's is dead, the image's metadata cannot be read either.
    match refused {
        Some(error) if image.file().metadata().is_err() => Err(error),
        _ => Ok(found),
    }
}
