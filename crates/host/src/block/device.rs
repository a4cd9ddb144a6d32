//! Block devices, by number.

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
/// The last close of an idle autoclear loop device detaches it from its image, so a loop device
/// stays what it is at least as long as this value lives, and may be gone afterwards.
#[derive(Debug)]
pub struct Device {
    number: DeviceNumber,
    path: PathBuf,
    file: File,
    backing: Option<File>,
    keeps_blocks: bool,
}

impl Device {
    /// Opens a device for reading, through its node in /dev if that is what it should be, else
    /// through a node made for it.
    ///
    /// A kernel that protects mounted devices from writers (`CONFIG_BLK_DEV_WRITE_MOUNTED=n`,
    /// Linux 6.8) mounts nothing that anybody has open for writing, this process included
    /// (block/bdev.c, `bdev_may_open`). Reading is enough for all that is done to mounted devices,
    /// and holds a device that goes with its last user; see [`Device::writer`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such device, otherwise what `open` says.
    pub fn open(number: DeviceNumber) -> Result<Self> {
        let (file, path) = device_node::open(number, OFlags::RDONLY).map_err(open_error)?;
        Ok(Device::from_parts(number, path, file))
    }

    /// Opens the device for writing, of whom nobody may be left when it is mounted.
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
            keeps_blocks: false,
        }
    }

    pub(crate) fn with_backing(mut self, image: File) -> Self {
        self.backing = Some(image);
        self
    }

    pub(crate) fn keeping_blocks(mut self) -> Self {
        self.keeps_blocks = true;
        self
    }

    /// Whether the storage below was promised as a whole, and nothing on the device gives any of it
    /// back.
    #[must_use]
    pub fn keeps_blocks(&self) -> bool {
        self.keeps_blocks
    }

    /// Which device this is.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// A node that child programs can open.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open node, for reading.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The image behind a loop device, where this process attached or found it by that image:
    /// the file system that holds the image knows which ranges were ever written.
    #[must_use]
    pub fn backing(&self) -> Option<&File> {
        self.backing.as_ref()
    }

    /// The size as the kernel has it now (`BLKGETSIZE64`).
    ///
    /// # Errors
    /// What the system call says.
    pub fn size(&self) -> Result<Bytes> {
        sys::block::size(self.file.as_fd())
            .map(Bytes)
            .map_err(|error| Error::system("ask the size of the device", error))
    }

    /// Takes the device for this process alone, until the claim is dropped (`O_EXCL`). A program
    /// that claims it too, mkfs for one, is refused meanwhile.
    ///
    /// This sees what mount tables do not: mounts in other namespaces, file systems kept alive by
    /// an open file after a lazy unmount, other device drivers on top.
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
                    false => lies_on(&holders),
                };
                Err(Error::new(ErrorKind::Busy, message)
                    .because(format!("{} is claimed", self.path.display())))
            }
            Err(error) => Err(Error::system("claim the volume's device", error)),
        }
    }

    /// Refuses a volume on which another device lies: that keeps it for as long as it is there, and no
    /// pod is to blame. It may have been made of what a pod wrote, as a RAID is by udev and mdadm.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], with the names of the devices.
    pub fn expect_no_holder(&self) -> Result<()> {
        match device_node::holders(self.number) {
            holders if holders.is_empty() => Ok(()),
            holders => Err(Error::new(ErrorKind::Busy, lies_on(&holders))),
        }
    }

    /// Writes out what the device's cache holds and asks the storage to make it durable.
    ///
    /// # Errors
    /// What the system call says, which may be about writes long ago.
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
fn lies_on(holders: &[String]) -> String {
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

/// A device that nobody else can mount, format or claim while this lives.
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
