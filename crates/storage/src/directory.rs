//! Volumes that are directories of a file system of this node.

use crate::{
    backend::DirectoryBackend,
    converge::World,
    directory_world::DirectoryWorld,
    driver::VolumeDriver,
    kind::{Details, Kind},
    pool::Pool,
};
use flexvol_host::{lock::Guard, mount::Target};
use flexvol_sdk::{Bytes, Capabilities, Filesystem, Handle, Result};
use std::marker::PhantomData;

/// The kind of volume that is a directory.
#[derive(Clone, Copy, Debug)]
pub struct Directory<B>(PhantomData<B>);

/// A driver for volumes that are directories: gives a [`DirectoryBackend`] every callout,
/// crash-safe.
pub type DirectoryDriver<B> = VolumeDriver<Directory<B>>;

impl<B: DirectoryBackend> DirectoryDriver<B> {
    /// What such a driver tells kubelet.
    ///
    /// A directory shares its file system with others, so nothing is relabelled for SELinux, the
    /// numbers of the file system are not the volume's, and kubelet is not to go through all
    /// files for an fsGroup: the driver gives the root to the group when it mounts.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        Capabilities {
            attach: false,
            selinux_relabel: false,
            supports_metrics: false,
            fs_group: false,
            requires_fs_resize: B::REQUIRES_FS_RESIZE,
        }
    }
}

impl<B: DirectoryBackend> Kind for Directory<B> {
    type Backend = B;

    const HAS_FILESYSTEM: bool = false;

    fn owner(target: &Target, _pools: &[Pool<B>]) -> Result<Option<Handle>> {
        Ok(target.mount()?.and_then(|mount| mount.volume()))
    }

    fn world<'a>(
        backend: Option<&'a B>,
        volume: Handle,
        _lock: &'a Guard,
        details: Details,
    ) -> Box<dyn World + 'a> {
        Box::new(DirectoryWorld::new(backend, volume, details))
    }

    fn smallest(_: Filesystem) -> Bytes {
        Bytes(0)
    }
}
