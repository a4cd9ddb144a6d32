//! Reports about directory volumes.

use crate::{
    backend::DirectoryBackend,
    mounts::{Mounts, Shown},
    observed::Content,
    volume_report::VolumeReport,
};
use flexvol_sdk::{Bytes, Result};
use std::os::fd::AsFd;

/// Completes the report of a volume with its mounts. Its file system spans its whole limit.
pub(crate) fn complete_report<B: DirectoryBackend>(
    backend: &B,
    mounts: &Mounts,
    report: &mut VolumeReport,
) -> Result<()> {
    let directory = backend.outermost(&report.id)?;
    let subtree = mounts.subtree(directory.as_fd())?;
    report.mounts = mounts.of(report.id, Shown::Directory(subtree));
    report.is_directory = true;
    report.content = Content::Ours {
        size: report.asset.size,
        slack: Bytes(0),
    };
    Ok(())
}
