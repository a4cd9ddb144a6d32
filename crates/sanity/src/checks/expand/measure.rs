//! Sizes of a mounted volume, measured in the kernel before and after a growth.

use crate::{
    bench::{Bench, MountPoint},
    callout::call::Call,
    config::Kind,
    system::{block_devices, mounts},
    verdict::{Verdict, wrong},
};
use anyhow::{Context, Result};
use std::path::Path;

pub const MIB: u64 = 1 << 20;

/// Size in bytes of the file system that is mounted there, from statfs.
pub fn size(directory: &Path) -> Result<u64> {
    let found = nix::sys::statvfs::statvfs(directory).context("ask for the size of the volume")?;
    Ok(found.blocks() * found.fragment_size())
}

/// Size in bytes of the device that is mounted there, if it belongs to the volume alone.
fn device(bench: &Bench, mount_point: &MountPoint) -> Result<Option<u64>> {
    if bench.run.config.volume.kind != Kind::Block {
        return Ok(None);
    }
    let mount = mounts::at(&mount_point.dir)?.pop();
    Ok(mount.and_then(|mount| block_devices::size(&mount.device)))
}

/// The sizes of a mounted volume before a growth.
#[derive(Debug)]
pub struct Base {
    pub mount_point: MountPoint,
    /// From statfs: excludes the journal, inodes and bitmaps, whose sizes vary.
    pub filesystem: u64,
    pub device: Option<u64>,
    /// Lower bound of the volume's size. The backend may have rounded up the requested size.
    pub bytes: u64,
}

impl Base {
    pub fn of(bench: &Bench, mount_point: MountPoint) -> Result<Self> {
        let (filesystem, device) = (size(&mount_point.dir)?, device(bench, &mount_point)?);
        // A shared file system may have any size.
        let least = match bench.run.config.volume.kind {
            Kind::Block => mount_point.volume.bytes.max(filesystem),
            Kind::Directory | Kind::Ephemeral => mount_point.volume.bytes,
        };
        Ok(Base {
            bytes: device.map_or(least, |device| least.max(device)),
            mount_point,
            filesystem,
            device,
        })
    }

    /// Checks that the kernel has the size for which the driver returned Success. A part of the added space is
    /// metadata of the file system.
    pub fn check_size(
        &self,
        bench: &Bench,
        call: &Call,
        mount_point: &MountPoint,
        bytes: u64,
    ) -> Verdict {
        let added = bytes.saturating_sub(self.bytes);
        let least = self.filesystem + (added - added / 8).saturating_sub(16 * MIB);
        let now = size(&mount_point.dir)?;
        if now < least.min(bytes) {
            let expected =
                format!("a file system of {bytes} bytes, of which {least} are for files");
            return Err(wrong(call, expected, format!("{now} in statfs")));
        }
        match device(bench, mount_point)? {
            Some(device) if device < bytes => Err(wrong(
                call,
                format!("a device of {bytes} bytes"),
                format!("{device}"),
            )),
            _ => Ok(()),
        }
    }

    /// Checks that nothing shrank. A file system does not notice that its device was cut.
    pub fn check_not_smaller(&self, bench: &Bench, call: &Call) -> Verdict {
        let now = size(&self.mount_point.dir)?;
        if now < self.filesystem {
            let expected = format!("{} bytes as before", self.filesystem);
            return Err(wrong(call, expected, format!("{now}")));
        }
        let has = device(bench, &self.mount_point)?;
        if has < self.device {
            let had = self.device.unwrap_or_default();
            let expected = format!("a device of {had} bytes as before");
            return Err(wrong(
                call,
                expected,
                format!("{}", has.unwrap_or_default()),
            ));
        }
        Ok(())
    }
}
