//! Which file lies under a loop device, and whose it is.

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
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// `LOOP_GET_STATUS64` encodes the device as `stat` does (`huge_encode_dev`).
pub(super) fn inode_under(info: &loop_info64) -> Inode {
    Inode {
        device: info.lo_device,
        number: info.lo_inode,
    }
}

/// What lies under a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file. It may have been deleted meanwhile.
    pub inode: Inode,
    /// What [`super::attach`] was given, or whatever somebody else's loop device is labelled.
    pub label: String,
}

/// What lies under a device; `None` where it is no loop device, or nothing is attached to it.
///
/// # Errors
/// What the system calls say.
pub fn backing(number: DeviceNumber) -> Result<Option<Backing>> {
    if number.major != device_node::LOOP_MAJOR {
        return Ok(None);
    }
    let failed = |error: io::Error| Error::system("ask the loop device for its file", error);
    // For reading: udev looks at every device that was opened for writing when it is closed.
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

/// The volume whose image lies under a device: the id that [`super::attach`] labelled it with. `None`
/// where it is no loop device of a volume.
///
/// A file that somebody serves, or that is at no path here, is nobody's image but by its name: that of `expected`, or where nothing is expected that of
/// any volume.
///
/// The kernel asks the image before it tells the label, so that the label is not to be had when
/// the disk below has failed. Unmounting must still be possible then, and for that the name under
/// which the image was opened is good enough: what is unmounted is told by the caller.
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

/// From the path that sysfs shows.
fn name_of_image(number: DeviceNumber) -> Option<VolumeId> {
    let path = path_under(number)?;
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    VolumeId::parse(str::from_utf8(last(path)?).ok()?).ok()
}

/// Whether the image can be what lies under a device, by its name alone: asked for more than that, the kernel asks the
/// file system of what does, whose server may have died. An image has one name, and a file has it in every path to it but
/// for a mount of the file alone.
pub(super) fn may_be_on(number: DeviceNumber, image: &Image) -> bool {
    let path = fs::read_link(format!("/proc/self/fd/{}", image.file().as_raw_fd()));
    let (Ok(ours), Some(theirs)) = (path, path_under(number)) else {
        return true;
    };
    last(ours.as_os_str().as_bytes()) == last(&theirs)
}

/// Whether whoever has what lies under a device answers, as far as the mount table tells. A file that was renamed, or
/// attached by a mount of the file alone, has any name.
pub(super) fn is_local(number: DeviceNumber) -> bool {
    path_under(number).is_none_or(|path| is_local_path(as_path(&path)))
}

/// Whether the path leads to something, of whoever answers. It does not where the file was opened in another mount namespace,
/// or by a mount that is gone: by `umount -l` of a dead server for example, whose file nobody may ask for anything.
fn is_there(number: DeviceNumber) -> bool {
    path_under(number).is_some_and(|path| {
        let path = as_path(&path);
        is_local_path(path) && fs::symlink_metadata(path).is_ok()
    })
}

fn is_local_path(path: &Path) -> bool {
    match mountinfo::is_on_served(path) {
        Ok(is_served) => !is_served,
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
    is_named || is_there(number)
}

/// The kernel keeps it in memory.
fn path_under(number: DeviceNumber) -> Option<Vec<u8>> {
    let mut path = fs::read(format!("/sys/dev/block/{number}/loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(path)
}

fn last(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|byte| *byte == b'/').next()
}

/// Loop devices come and go while they are looked at.
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
