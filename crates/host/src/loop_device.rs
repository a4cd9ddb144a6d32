//! Loop devices: files as block devices, by the ioctls of linux/loop.h.
//!
//! A device's backing file is identified only by its device and inode numbers, read from the open loop device. Paths
//! are not reliable: images are deleted, replaced and renamed while attached.
//!
//! Devices are attached with `LO_FLAGS_AUTOCLEAR`: the last close, of a file descriptor or of a mount, detaches. A
//! driver that is killed between attaching and mounting leaves nothing behind, and no reference counts are needed.

mod backing;
mod discards;
mod find;

pub use crate::image::Inode;
pub(crate) use backing::on_path_of;
pub use backing::{Backing, backing, owner};
pub use find::find;

use crate::{
    VolumeId,
    block::{device::Device, device_node},
    deadline::Deadline,
    image::{Allocation, Image},
    sys,
};
use backing::{inode_under, is_absent, label_of};
use find::{is_on, open_on, with_image};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use linux_raw_sys::loop_device::loop_info64;
use rustix::io::Errno;
use std::{fs::File, io, os::fd::AsFd, thread, time::Duration};

/// Attempts to get a free device while other processes are faster. With 32 processes that attach at once, the
/// unluckiest needed 7.
const ATTEMPTS: usize = 64;

/// Devices without discards that are replaced before one is used as it is: an image that gives no blocks back is better
/// than none.
const RENEWALS: usize = 8;

/// Time for which another process usually keeps a device or an image open to examine it.
const LOOK: Duration = Duration::from_millis(5);

/// Time to wait for a device to be detached: udev opens every device that was open for writing, for some milliseconds.
const RELEASE: Duration = Duration::from_secs(2);

/// Finds the loop device that is attached to `image`, or attaches one.
///
/// The device then has 512-byte sectors and at least the size of the image, carries the volume's id as its label, and
/// is detached with its last user. With [`Allocation::Full`] it gives none of the image's blocks back.
///
/// The caller holds the volume's lock: two processes that attach one image at once would get two devices.
///
/// # Errors
/// [`ErrorKind::Conflict`] where another program attached the image in an unsuitable way, [`ErrorKind::Busy`] where
/// other processes take every free device.
pub fn attach(
    image: &Image,
    label: &VolumeId,
    hint: Option<u32>,
    allocation: Allocation,
) -> Result<Device> {
    let label = label.to_string();
    let device = match find(image, hint)? {
        Some(device) => device,
        None => make(image, &label, allocation)?,
    };
    complete(device, image, &label, allocation)
}

/// Does the same with a device that [`attach`] or [`find`] returned before. While it is open it can be detached, but
/// not attached to another file.
///
/// # Errors
/// As for [`attach`].
pub fn attach_again(
    held: Device,
    image: &Image,
    label: &VolumeId,
    hint: Option<u32>,
    allocation: Allocation,
) -> Result<Device> {
    match is_on(&held, image)? {
        true => complete(held, image, &label.to_string(), allocation),
        false => attach(image, label, hint, allocation),
    }
}

fn complete(device: Device, image: &Image, label: &str, allocation: Allocation) -> Result<Device> {
    adopt(&device, label)?;
    grow_to_image(&device, image)?;
    Ok(match allocation {
        Allocation::Thin => device,
        Allocation::Full => {
            discards::refuse(device.number());
            device.fully_allocated()
        }
    })
}

/// Closes a device from [`attach`] or [`find`] and waits until it is detached.
///
/// Closing is all that an autoclear device needs. A device without that flag is detached explicitly: a driver on an old
/// kernel was interrupted while it attached the device, or a person attached it.
///
/// # Errors
/// [`ErrorKind::Busy`] where another process keeps the device open; the device is detached when that closes it.
pub fn release(device: Device) -> Result<()> {
    let failed = |error: io::Error| Error::system("detach the loop device", error);
    let Some(image) = device.backing() else {
        return Ok(());
    };
    let ours = Inode::of(image).map_err(failed)?;
    match sys::loops::status(device.as_fd()).map_err(|error| failed(error.into()))? {
        Some(info) if inode_under(&info) != ours => return Ok(()),
        Some(info) if info.lo_flags & sys::loops::AUTOCLEAR == 0 => {
            sys::loops::clear(device.as_fd()).map_err(|error| failed(error.into()))?;
        }
        _ => {}
    }
    let number = device.number();
    drop(device);
    let mut deadline = Deadline::after(RELEASE);
    while backing(number)?.is_some_and(|found| found.inode == ours) {
        if !deadline.pause() {
            return Err(Error::new(
                ErrorKind::Busy,
                "something on the node keeps the volume's device open",
            )
            .because(number.to_string()));
        }
    }
    Ok(())
}

/// Whether the device stays attached after its last close because a driver on an old kernel was interrupted while it
/// attached the device.
///
/// Such a device is bound and nothing more, because label and autoclear are set in one step. Any other one without
/// autoclear was attached by a person, to inspect the image: every `losetup` sets a label, and that of busybox can be the
/// volume's id, as it sets the path as it was typed.
///
/// # Errors
/// The error of the system call.
pub fn is_half_attached(device: &Device) -> Result<bool> {
    let info = sys::loops::status(device.as_fd())
        .map_err(|error| Error::system("examine the loop device", error))?;
    Ok(info.as_ref().is_some_and(is_unfinished))
}

/// Whether the device is bound and nothing more: no flags, no label.
fn is_unfinished(info: &loop_info64) -> bool {
    info.lo_flags == 0 && info.lo_file_name[0] == 0
}

/// Detaches the image from a device whose attachment before Linux 5.8 was interrupted: bound and nothing more, without
/// a label, and in nobody's use. Returns whether there was one. Only devices on the image's path are asked.
pub(crate) fn drop_unfinished(image: &Image) -> Result<bool> {
    let failed = |error: io::Error| Error::system("look for the image's loop device", error);
    let [number] = on_path_of(image)?[..] else {
        return Ok(false);
    };
    let Some(device) = open_on(number, image)? else {
        return Ok(false);
    };
    let info = sys::loops::status(device.as_fd()).map_err(|error| failed(error.into()))?;
    let unfinished = info.as_ref().is_some_and(is_unfinished);
    if !unfinished || device.claim().is_err() {
        return Ok(false);
    }
    release(device)?;
    Ok(true)
}

fn make(image: &Image, label: &str, allocation: Allocation) -> Result<Device> {
    let failed = |error: io::Error| Error::system("attach the volume's image", error);
    let control = device_node::open_loop_control().map_err(|error| {
        Error::system(
            "reach the loop driver (is the kernel module \"loop\" there?)",
            error,
        )
    })?;
    // The loop device keeps the open file description it is given. If that were the image's own, the next `find` would
    // see no other opener.
    let file = image.reopen().map_err(failed)?;
    let mut renewals = 0;
    for _ in 0..ATTEMPTS {
        let index = sys::loops::free_index(control.as_fd()).map_err(|e| failed(e.into()))?;
        // A device bound by a read-only descriptor refuses writes (`loop_configure`).
        let (writer, number) = match device_node::open_loop(index) {
            Err(error) if is_absent(&error) => continue,
            result => result.map_err(failed)?,
        };
        match configure(&writer, &file, label) {
            Ok(())
                if allocation == Allocation::Thin
                    && renewals < RENEWALS
                    && discards::are_refused(number) =>
            {
                renewals += 1;
                undo(&writer, &file);
                drop(writer);
                // Another process may have the device open, or may have taken it already.
                if let Err(error) = sys::loops::renew(control.as_fd(), index) {
                    log::debug!("loop device {index} is not made anew: {error}");
                    thread::sleep(LOOK);
                }
            }
            Ok(()) => return with_image(Device::open(number)?, image),
            // A process that releases or examines a device has it open for a moment, while it counts as free.
            Err(Errno::BUSY) => thread::sleep(LOOK),
            Err(error) => return Err(failed(error.into())),
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        "other processes take every free loop device",
    ))
}

fn configure(node: &File, image: &File, label: &str) -> Result<(), Errno> {
    let info = sys::loops::whole_file(label);
    match sys::loops::configure(node.as_fd(), image.as_fd(), info) {
        Err(Errno::INVAL) => {}
        result => return result,
    }
    // Before Linux 5.8. An interruption between the two steps leaves a device without autoclear; the next attach finds
    // and adopts it.
    sys::loops::bind(node.as_fd(), image.as_fd())?;
    sys::loops::set_status(node.as_fd(), info).inspect_err(|_| undo(node, image))
}

/// Detaches the image that was just attached, if the device still has it.
fn undo(node: &File, image: &File) {
    let ours = Inode::of(image).ok();
    if let Ok(Some(info)) = sys::loops::status(node.as_fd())
        && Some(inode_under(&info)) == ours
        && let Err(error) = sys::loops::clear(node.as_fd())
    {
        log::warn!("a loop device stays attached: {error}");
    }
}

/// Brings a device into the state that [`make`] gives it. Another program may have attached it, or an attachment may
/// have been interrupted.
fn adopt(device: &Device, label: &str) -> Result<()> {
    let unfit = |found: &str| {
        Error::new(
            ErrorKind::Conflict,
            format!("the volume's image is attached {found}; detach it first"),
        )
        .because(device.path().display().to_string())
    };
    let failed = |error: Errno| Error::system("examine the loop device", error);
    let Some(info) = sys::loops::status(device.as_fd()).map_err(failed)? else {
        return Err(Error::new(
            ErrorKind::Busy,
            "the volume's image is being detached",
        ));
    };
    if info.lo_offset != 0 || info.lo_sizelimit != 0 {
        return Err(unfit("in part only"));
    }
    if sys::block::read_only(device.as_fd()).map_err(failed)? {
        return Err(unfit("read-only"));
    }
    let sector = sys::block::sector_size(device.as_fd()).map_err(failed)?;
    if sector.cast_unsigned() != sys::loops::SECTOR {
        return Err(unfit(&format!("with {sector}-byte sectors instead of 512")));
    }
    if info.lo_flags & sys::loops::AUTOCLEAR == 0 || label_of(&info) != label {
        let mut wanted = sys::loops::whole_file(label);
        wanted.lo_flags |= info.lo_flags;
        sys::loops::set_status(device.as_fd(), wanted)
            .map_err(|error| Error::system("label the loop device", error))?;
    }
    Ok(())
}

/// Grows the device to the size of its image. The device is never shrunk: a file system may be mounted on the part that
/// the image has lost.
fn grow_to_image(device: &Device, image: &Image) -> Result<()> {
    let whole_sectors = |size: Bytes| Bytes(size.0 - size.0 % u64::from(sys::loops::SECTOR));
    let wanted = whole_sectors(image.size()?);
    if device.size()? >= wanted {
        return Ok(());
    }
    sys::loops::set_capacity(device.as_fd())
        .map_err(|error| Error::system("grow the loop device", error))?;
    let reached = device.size()?;
    if reached < wanted {
        return Err(Error::new(
            ErrorKind::SizeNotReached,
            format!("the loop device has {reached} where the image has {wanted}"),
        ));
    }
    Ok(())
}
