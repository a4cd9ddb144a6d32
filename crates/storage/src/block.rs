//! Volumes with a file system on a block device of this node.

use crate::{
    backend::BlockBackend,
    block_world::BlockWorld,
    converge::World,
    driver::{Kind, Label, Pool, VolumeDriver},
};
use flexvol_host::{format, mount::Target};
use flexvol_sdk::{Bytes, Filesystem, Handle, Result};
use std::{marker::PhantomData, path::PathBuf};

/// The kind of volume that is a file system on a block device.
#[derive(Clone, Copy, Debug)]
pub struct Block<B>(PhantomData<B>);

/// A driver for block volumes: gives a [`BlockBackend`] every callout, crash-safe.
pub type BlockDriver<B> = VolumeDriver<Block<B>>;

impl<B: BlockBackend> Kind for Block<B> {
    type Backend = B;

    fn owner(target: &Target, _pools: &[Pool<B>]) -> Result<Option<Handle>> {
        match target.mounted()? {
            Some(mounted) => B::owner(mounted.device),
            None => Ok(None),
        }
    }

    fn lock<'a>(
        backend: Option<&'a B>,
        volume: Handle,
        dir: Option<PathBuf>,
        label: Label,
    ) -> Result<Box<dyn World + 'a>> {
        Ok(Box::new(BlockWorld::lock(backend, volume, dir, label)?))
    }

    fn smallest(filesystem: Filesystem) -> Bytes {
        format::minimum(filesystem)
    }
}
