//! The sizes of what is mounted, as the kernel has them before and after a growth.

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

/// Bytes of the file system that is mounted there, as statfs counts them.
pub fn size(directory: &Path) -> Result<u64> {
    let found = nix::sys::statvfs::statvfs(directory).context("ask for the size of the volume")?;
    Ok(found.blocks() * found.fragment_size())
}

/// Bytes of the device that is mounted there, where it is the volume's own.
fn device(bench: &Bench, mount_point: &MountPoint) -> Result<Option<u64>> {
    if bench.run.config.volume.kind == Kind::Directory {
        return Ok(None);
    }
    let mount = mounts::at(&mount_point.dir)?.pop();
    Ok(mount.and_then(|mount| block_devices::size(&mount.device)))
}

/// A mounted volume as the kernel has it.
#[derive(Debug)]
pub struct Base {
    pub mount_point: MountPoint,
    /// In statfs: without the file system's own journals, inodes and bitmaps, which differ.
    pub filesystem: u64,
    pub device: Option<u64>,
    /// What it has at least: the backend may have rounded up what was asked for.
    pub bytes: u64,
}

impl Base {
    pub fn of(bench: &Bench, mount_point: MountPoint) -> Result<Self> {
        let (filesystem, device) = (size(&mount_point.dir)?, device(bench, &mount_point)?);
        // One that is shared may be any size.
        let least = match bench.run.config.volume.kind {
            Kind::Block => mount_point.volume.bytes.max(filesystem),
            Kind::Directory => mount_point.volume.bytes,
        };
        Ok(Base {
            bytes: device.map_or(least, |device| least.max(device)),
            mount_point,
            filesystem,
            device,
        })
    }

    /// Success was said for this size, and the kernel must have it. Of what was added a part is the
    /// file system's own.
    pub fn has(&self, bench: &Bench, call: &Call, mount_point: &MountPoint, bytes: u64) -> Verdict {
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

    /// Nothing may be smaller than it was. A file system does not notice that its device was cut.
    pub fn is_whole(&self, bench: &Bench, call: &Call) -> Verdict {
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
