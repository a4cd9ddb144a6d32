//! Reports about block volumes.

use crate::{
    backend::BlockBackend,
    mark::{Format, Mark, State},
    mounts::{Mounts, Shown},
    observed::Content,
    volume_report::{DeviceReport, VolumeReport},
};
use flexvol_host::{Device, fs::grow, lock, mount::Target};
use flexvol_sdk::{Bytes, Filesystem, Result};
use std::{fs::File, os::fd::AsFd};

/// Completes the report of a volume with its device, mounts and content.
pub(crate) fn complete_report<B: BlockBackend>(
    backend: &B,
    mounts: &Mounts,
    report: &mut VolumeReport,
) -> Result<()> {
    let device = backend.mapped(&report.id, lock::hint(&report.id))?;
    if let Some(device) = &device {
        let number = device.number();
        report.device = Some(DeviceReport {
            number,
            path: device.path().to_owned(),
            size: device.size()?,
        });
        report.mounts = mounts.of(report.id, Shown::Device(number));
        if !B::is_responsive(number)? {
            return Ok(());
        }
    }
    report.content = content(backend, report, device.as_ref())?;
    Ok(())
}

/// Returns the present content of a volume that was formatted.
fn content<B: BlockBackend>(
    backend: &B,
    volume: &VolumeReport,
    device: Option<&Device>,
) -> Result<Content> {
    let Some(Mark {
        state: State::Ready,
        format: Some(format),
        ..
    }) = volume.mark()
    else {
        return Ok(Content::NotRead);
    };
    if let Some(device) = device
        && let Some(size) = through_a_mount(volume, device, format.filesystem)
    {
        return Ok(size);
    }
    match device {
        Some(device) => superblock(device.file(), device.size()?, format),
        None => match backend.image(&volume.id)? {
            Some(image) => superblock(&image, volume.asset.size, format),
            None => Ok(Content::NotRead),
        },
    }
}

/// Returns `None` if there is no mount to ask. The caller then reads the superblock, which may be slightly
/// stale.
fn through_a_mount(
    volume: &VolumeReport,
    device: &Device,
    filesystem: Filesystem,
) -> Option<Content> {
    // The volume's author decides what a pod mounts by `subPath`: it may be a FIFO, which nobody opens for writing.
    volume.mounts.iter().rev().find_map(|mount| {
        let target = Target::open(&mount.mount_point).ok()??;
        let root = target.root().ok()?;
        let still_there = target.mounted().ok()??;
        if !still_there.devices.contains(&device.number()) {
            return None;
        }
        let geometry = grow::measure(root.as_fd(), device, filesystem).ok()?;
        Some(Content::Ours {
            size: geometry.size,
            slack: geometry.slack,
        })
    })
}

fn superblock(file: &File, size: Bytes, format: &Format) -> Result<Content> {
    Ok(match grow::measure_unmounted(file)? {
        None => Content::Foreign("no file system of this driver"),
        Some((found, _)) if found.filesystem != format.filesystem || found.uuid != format.uuid => {
            Content::Foreign("another file system")
        }
        Some((_, geometry)) if geometry.size > size => Content::Truncated {
            size: geometry.size,
        },
        Some((_, geometry)) => Content::Ours {
            size: geometry.size,
            slack: geometry.slack,
        },
    })
}
