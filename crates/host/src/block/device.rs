//! Open block devices.

use crate::{
    block::{device_node, number::DeviceNumber},
    sys,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// An open block device.
///
/// The last close of an idle autoclear loop device detaches it from its image. A loop device therefore keeps its image
/// at least as long as this value lives, and may be detached afterwards.
#[derive(Debug)]
pub struct Device {
    number: DeviceNumber,
    path: PathBuf,
    file: File,
    backing: Option<File>,
    is_fully_allocated: bool,
}

impl Device {
    /// Opens a device for reading, by its node in /dev if that has the right number, else by a node made for it.
    ///
    /// A kernel that protects mounted devices from writers (`CONFIG_BLK_DEV_WRITE_MOUNTED=n`, Linux 6.8) refuses to
    /// mount a device that any process, this one included, has open for writing (block/bdev.c, `bdev_may_open`). Read
    /// access is enough for everything done to mounted devices, and it keeps an autoclear loop device attached; see
    /// [`Device::writer`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such device, otherwise the error of `open`.
    pub fn open(number: DeviceNumber) -> Result<Self> {
        let (file, path) = device_node::open(number, OFlags::RDONLY).map_err(open_error)?;
        Ok(Device::from_parts(number, path, file))
    }

    /// Opens the device for writing. The file must be closed before the device is mounted.
    ///
    /// # Errors
    /// As for [`Device::open`]; also where the device is mounted and the kernel protects it.
    pub fn writer(&self) -> Result<File> {
        let (file, _) = device_node::open(self.number, OFlags::RDWR).map_err(open_error)?;
        Ok(file)
    }

    pub(crate) fn from_parts(number: DeviceNumber, path: PathBuf, file: File) -> Self {
        Device {
            number,
            path,
            file,
            backing: None,
            is_fully_allocated: false,
        }
    }

    pub(crate) fn with_backing(mut self, image: File) -> Self {
        self.backing = Some(image);
        self
    }

    pub(crate) fn fully_allocated(mut self) -> Self {
        self.is_fully_allocated = true;
        self
    }

    /// Whether all blocks of the device are allocated for good, so that discards on the device release none.
    #[must_use]
    pub fn is_fully_allocated(&self) -> bool {
        self.is_fully_allocated
    }

    /// Number of the device.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Path of a device node that child programs can open.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open node, for reading.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The image behind a loop device, if this process attached the device or found it by that image. The file system
    /// that holds the image knows which ranges were ever written.
    #[must_use]
    pub fn backing(&self) -> Option<&File> {
        self.backing.as_ref()
    }

    /// Returns the size that the kernel reports now (`BLKGETSIZE64`).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn size(&self) -> Result<Bytes> {
        sys::block::size(self.file.as_fd())
            .map(Bytes)
            .map_err(|error| Error::system("ask the size of the device", error))
    }

    /// Claims the device exclusively until the claim is dropped (`O_EXCL`). Other programs that claim it, such as mkfs,
    /// are refused meanwhile.
    ///
    /// A claim detects what mount tables do not show: mounts in other mount namespaces, file systems kept alive by an
    /// open file after a lazy unmount, and other block devices stacked on top.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while anything uses the device exclusively.
    pub fn claim(&self) -> Result<Claim> {
        match device_node::open(self.number, OFlags::RDONLY | OFlags::EXCL) {
            Ok((file, _)) => Ok(Claim(file)),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let holders = device_node::holders(self.number);
                let message = match holders.is_empty() {
                    true => "the volume's device is in use".to_owned(),
                    false => stacked_error(&holders),
                };
                Err(Error::new(ErrorKind::Busy, message)
                    .because(format!("{} is claimed", self.path.display())))
            }
            Err(error) => Err(Error::system("claim the volume's device", error)),
        }
    }

    /// Checks that no other block device is stacked on the volume's.
    ///
    /// A stacked device keeps the volume busy as long as it exists, and no pod is to blame. It may have been assembled
    /// from data that a pod wrote, as udev and mdadm do with a RAID.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], with the names of the devices.
    pub fn expect_not_stacked(&self) -> Result<()> {
        match device_node::holders(self.number) {
            holders if holders.is_empty() => Ok(()),
            holders => Err(Error::new(ErrorKind::Busy, stacked_error(&holders))),
        }
    }

    /// Flushes the device's page cache and asks the storage to make the data durable.
    ///
    /// # Errors
    /// The error of the system call, which may be about much earlier writes.
    pub fn sync(&self) -> Result<()> {
        self.file
            .sync_all()
            .map_err(|error| Error::system("write out the device", error))
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cold]
fn stacked_error(holders: &[String]) -> String {
    format!(
        "the volume's device is in use: {} lies on it; find out on the node who made that, and stop it (`mdadm --stop` a RAID, `dmsetup remove` a mapping)",
        holders.join(", ")
    )
}

fn open_error(error: io::Error) -> Error {
    let gone = [rustix::io::Errno::NXIO, rustix::io::Errno::NODEV]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    if gone || error.kind() == io::ErrorKind::NotFound {
        return Error::new(ErrorKind::NotFound, "the volume's device is gone").because(error);
    }
    Error::system("open the volume's device", error)
}

/// Exclusive claim: no other process can mount, format or claim the device while this lives.
#[derive(Debug)]
pub struct Claim(File);

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_kernel_encoding() {
        for (major, minor) in [(7, 3), (7, 1_048_575), (253, 0), (4095, 255)] {
            let number = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_raw(number.to_raw()), number);
        }
        assert_eq!(DeviceNumber { major: 7, minor: 3 }.to_string(), "7:3");
    }
}
