//! Volumes with a file system on a block device of this node.

use crate::{
    backend::BlockBackend,
    block_world::BlockWorld,
    converge::World,
    driver::VolumeDriver,
    kind::{Details, Kind},
    pool::Pool,
};
use flexvol_host::{format, lock::Guard, mount::Target};
use flexvol_sdk::{Bytes, Capabilities, Filesystem, Handle, Result};
use std::marker::PhantomData;

/// The kind of volume that is a file system on a block device.
#[derive(Clone, Copy, Debug)]
pub struct Block<B>(PhantomData<B>);

/// A driver for block volumes: gives a [`BlockBackend`] every callout, crash-safe.
pub type BlockDriver<B> = VolumeDriver<Block<B>>;

impl<B: BlockBackend> BlockDriver<B> {
    /// What such a driver tells kubelet: each volume has a file system of its own, for kubelet to
    /// relabel, to measure, to give to an fsGroup and to have grown.
    #[must_use]
    pub fn capabilities(attach: bool) -> Capabilities {
        Capabilities {
            attach,
            selinux_relabel: true,
            supports_metrics: true,
            fs_group: true,
            requires_fs_resize: true,
        }
    }
}

impl<B: BlockBackend> Kind for Block<B> {
    type Backend = B;

    const HAS_FILESYSTEM: bool = true;

    fn owner(target: &Target, _pools: &[Pool<B>]) -> Result<Option<Handle>> {
        match target.mounted()? {
            Some(mounted) => B::owner(mounted.device),
            None => Ok(None),
        }
    }

    fn world<'a>(
        backend: Option<&'a B>,
        volume: Handle,
        lock: &'a Guard,
        details: Details,
    ) -> Box<dyn World + 'a> {
        Box::new(BlockWorld::new(backend, volume, lock, details))
    }

    fn smallest(filesystem: Filesystem) -> Bytes {
        format::minimum(filesystem)
    }
}
