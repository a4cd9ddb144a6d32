//! The report about one volume.

use crate::{
    mark::Mark,
    observed::{Asset, Content},
};
use flexvol_host::{DeviceNumber, VolumeId, mountinfo::Mount};
use flexvol_sdk::{Bytes, Handle, VolumeName};
use std::path::PathBuf;

/// The present state of one volume.
#[derive(Debug)]
#[non_exhaustive]
pub struct VolumeReport {
    /// The volume's id.
    pub id: VolumeId,
    /// The pool it is in.
    pub pool: String,
    /// The size of its storage, and its mark.
    pub asset: Asset,
    /// Whether it is a directory: its size is then the limit on its content.
    pub is_directory: bool,
    /// Its block device; `None` if there is none.
    pub device: Option<DeviceReport>,
    /// Its content, measured through a mount if there is one, otherwise read from the superblock;
    /// [`Content::NotRead`] for a volume that was never formatted.
    pub content: Content,
    /// Its mounts in this process's mount namespace.
    pub mounts: Vec<Mount>,
    /// The places where only other mount namespaces have it mounted, as their containers see them.
    pub elsewhere: Vec<PathBuf>,
}

/// A volume's block device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device number.
    pub number: DeviceNumber,
    /// The path of a device node.
    pub path: PathBuf,
    /// The size that the kernel reports.
    pub size: Bytes,
}

impl VolumeReport {
    /// Returns the handle; `None` if it has no mark.
    #[must_use]
    pub fn handle(&self) -> Option<Handle> {
        Some(self.mark()?.handle)
    }

    /// Returns the name of the persistent volume for which it was made.
    #[must_use]
    pub fn name(&self) -> Option<&VolumeName> {
        self.mark()?.name.as_ref()
    }

    /// Returns its mark, if it has one.
    #[must_use]
    pub fn mark(&self) -> Option<&Mark> {
        self.asset.mark.as_ref()
    }

    /// Returns the bytes that its file system spans; `None` if it has none, or if unknown.
    #[must_use]
    pub fn filesystem_size(&self) -> Option<Bytes> {
        match self.content {
            Content::Ours { size, .. } | Content::Truncated { size } => Some(size),
            _ => None,
        }
    }
}
