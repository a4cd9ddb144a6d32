//! What is told of one volume.

use crate::{
    mark::Mark,
    observed::{Asset, Content},
};
use flexvol_host::{DeviceNumber, VolumeId, mountinfo::Mount};
use flexvol_sdk::{Bytes, Handle, VolumeName};
use std::path::PathBuf;

/// One volume, as it is now.
#[derive(Debug)]
#[non_exhaustive]
pub struct VolumeReport {
    /// What it is called on the node.
    pub id: VolumeId,
    /// The pool it is in.
    pub pool: String,
    /// Size of its storage, and its mark.
    pub asset: Asset,
    /// It is a directory: its size is the limit of what may be in it.
    pub is_directory: bool,
    /// Its block device; `None` while there is none.
    pub device: Option<DeviceReport>,
    /// What it holds, measured through a mount where there is one and read from the superblock
    /// otherwise; [`Content::NotRead`] for a volume that was never formatted.
    pub content: Content,
    /// Its mounts in this process's mount namespace.
    pub mounts: Vec<Mount>,
    /// Where it is mounted in other mount namespaces only, as containers see it.
    pub elsewhere: Vec<PathBuf>,
}

/// A volume's block device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Which one.
    pub number: DeviceNumber,
    /// A node of it.
    pub path: PathBuf,
    /// Its size as the kernel has it.
    pub size: Bytes,
}

impl VolumeReport {
    /// What identifies it to the cluster; `None` where it has no mark.
    #[must_use]
    pub fn handle(&self) -> Option<Handle> {
        Some(self.mark()?.handle)
    }

    /// The persistent volume it was made for.
    #[must_use]
    pub fn name(&self) -> Option<&VolumeName> {
        self.mark()?.name.as_ref()
    }

    /// Its mark, if it has one.
    #[must_use]
    pub fn mark(&self) -> Option<&Mark> {
        self.asset.mark.as_ref()
    }

    /// The bytes its file system spans; `None` where it has none, or that is not known.
    #[must_use]
    pub fn filesystem_size(&self) -> Option<Bytes> {
        match self.content {
            Content::Ours { size, .. } | Content::Truncated { size } => Some(size),
            _ => None,
        }
    }
}
