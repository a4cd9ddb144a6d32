//! Identifies the backing file of a loop device, and the volume it belongs to.

use crate::{
    VolumeId,
    block::{device_node, number::DeviceNumber},
    image::{Image, Inode},
    mountinfo, sys,
};
use flexvol_sdk::{Error, Result};
use linux_raw_sys::loop_device::loop_info64;
use rustix::{fs::OFlags, io::Errno};
use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
};

/// Returns the backing file's inode. `LOOP_GET_STATUS64` encodes the device as `stat` does (`huge_encode_dev`).
pub(super) fn inode_under(info: &loop_info64) -> Inode {
    Inode {
        device: info.lo_device,
        number: info.lo_inode,
    }
}

/// Backing file of a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file, which may have been deleted meanwhile.
    pub inode: Inode,
    /// The label that [`super::attach`] was given, or that of another program's loop device.
    pub label: String,
}

/// Returns the backing file of a device; `None` where the device is no loop device, or nothing is attached to it.
///
/// # Errors
/// The errors of the system calls.
pub fn backing(number: DeviceNumber) -> Result<Option<Backing>> {
    if number.major != device_node::LOOP_MAJOR {
        return Ok(None);
    }
    let failed = |error: io::Error| Error::system("ask the loop device for its file", error);
    // Read-only, because udev examines every device that was opened for writing when it is closed.
    let (file, _) = match device_node::open(number, OFlags::RDONLY) {
        Err(error) if is_absent(&error) => return Ok(None),
        result => result.map_err(failed)?,
    };
    let info = sys::loops::status(file.as_fd()).map_err(|error| failed(error.into()))?;
    Ok(info.map(|info| Backing {
        inode: inode_under(&info),
        label: label_of(&info),
    }))
}

/// Returns the volume whose image is attached to a device: the id that [`super::attach`] set as the label. `None` where
/// the device is no loop device of a volume.
///
/// A backing file on a network or FUSE file system, or without a path in this mount namespace, is examined only if its
/// name is that of `expected`, or without `expected` that of any volume. Otherwise the kernel could wait for a dead
/// server.
///
/// The kernel asks the image before it returns the label, so the label is not available when the disk below has failed.
/// Unmounting must still be possible then. The name under which the image was opened is good enough for that, because
/// the caller says what is to be unmounted.
///
/// # Errors
/// As for [`backing`].
pub fn owner(number: DeviceNumber, expected: Option<&VolumeId>) -> Result<Option<VolumeId>> {
    if number.major != device_node::LOOP_MAJOR || !may_be_asked(number, expected) {
        return Ok(None);
    }
    match backing(number) {
        Ok(backing) => Ok(backing.and_then(|backing| VolumeId::parse(&backing.label).ok())),
        Err(error) => match name_of_image(number) {
            Some(volume) => {
                log::warn!("the disk of volume {volume} fails: {}", error.report());
                Ok(Some(volume))
            }
            None => Err(error),
        },
    }
}

/// Takes the volume's id from the path that sysfs shows.
fn name_of_image(number: DeviceNumber) -> Option<VolumeId> {
    let path = path_under(number)?;
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    VolumeId::parse(str::from_utf8(last(path)?).ok()?).ok()
}

/// Whether the image can be the device's backing file, judged by its name alone. Asked for more, the kernel asks the
/// file system of the backing file, whose server may have died. An image has one name, and a file has that name in
/// every path to it except a bind mount of the file alone.
pub(super) fn may_be_on(number: DeviceNumber, image: &Image) -> bool {
    paths(number, image).is_none_or(|[ours, theirs]| last(&ours) == last(&theirs))
}

/// Returns the devices whose backing file has the path of the image. None of them is asked anything.
///
/// # Errors
/// When sysfs cannot be read.
pub(crate) fn on_path_of(image: &Image) -> Result<Vec<DeviceNumber>> {
    let has_path =
        |number: &DeviceNumber| paths(*number, image).is_some_and(|[ours, theirs]| ours == theirs);
    let all = bound().map_err(|error| Error::system("look for the image's loop device", error))?;
    Ok(all.into_iter().filter(has_path).collect())
}

/// Returns all loop devices that have a backing file.
pub(super) fn bound() -> io::Result<Vec<DeviceNumber>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Only bound loop devices have this directory.
        if !entry.path().join("loop").exists() {
            continue;
        }
        match device_node::number_in(&entry.path().join("dev")) {
            Err(error) if is_absent(&error) => {}
            number => found.push(number?),
        }
    }
    Ok(found)
}

fn paths(number: DeviceNumber, image: &Image) -> Option<[Vec<u8>; 2]> {
    let ours = fs::read_link(format!("/proc/self/fd/{}", image.file().as_raw_fd())).ok()?;
    Some([ours.into_os_string().into_vec(), path_under(number)?])
}

/// Whether the backing file is on a local file system, as far as the mount table tells. The file's name does not matter
/// here: the file may have been renamed, or attached through a bind mount of the file alone.
pub(super) fn is_local(number: DeviceNumber) -> bool {
    path_under(number).is_none_or(|path| is_local_path(as_path(&path)))
}

/// Whether the path leads to an existing file on a local file system. It does not if the file was opened in another
/// mount namespace, or through a mount that is gone, for example by `umount -l` of a dead server, whose file must not
/// be asked for anything.
fn has_local_path(number: DeviceNumber) -> bool {
    path_under(number).is_some_and(|path| {
        let path = as_path(&path);
        is_local_path(path) && fs::symlink_metadata(path).is_ok()
    })
}

fn is_local_path(path: &Path) -> bool {
    match mountinfo::is_on_remote(path) {
        Ok(is_remote) => !is_remote,
        Err(error) => {
            log::warn!("{}", error.report());
            true
        }
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn may_be_asked(number: DeviceNumber, expected: Option<&VolumeId>) -> bool {
    let is_named = match (name_of_image(number), expected) {
        (Some(name), Some(expected)) => name == *expected,
        (name, _) => name.is_some(),
    };
    is_named || has_local_path(number)
}

/// Reads the backing file's path from sysfs. The kernel keeps it in memory, so this never blocks.
fn path_under(number: DeviceNumber) -> Option<Vec<u8>> {
    let mut path = fs::read(format!("/sys/dev/block/{number}/loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(path)
}

fn last(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|byte| *byte == b'/').next()
}

/// Whether the error says that a loop device has disappeared, which can happen at any time during a scan.
pub(super) fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || [Errno::NXIO, Errno::NODEV].contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
}

pub(super) fn label_of(info: &loop_info64) -> String {
    let name = &info.lo_file_name;
    let end = name.iter().position(|&c| c == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_fits_or_is_cut_before_the_zero() {
        let label = |text: &str| label_of(&sys::loops::whole_file(text));
        assert_eq!(label(""), "");
        assert_eq!(
            label("00112233445566778899aabbccddeeff"),
            "00112233445566778899aabbccddeeff"
        );
        assert_eq!(label(&"x".repeat(100)), "x".repeat(63));
    }
}
