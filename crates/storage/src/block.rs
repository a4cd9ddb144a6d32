//! Volumes with a file system on a block device of this node.

mod world;

use crate::{
    backend::BlockBackend,
    inventory,
    kind::{CallContext, Kind},
    mounts::Mounts,
    pool::Pool,
    reconcile::World,
    settings::{Policy, Settings},
    volume_driver::VolumeDriver,
    volume_report::VolumeReport,
};
use flexvol_host::{
    DeviceNumber, VolumeId,
    fs::format,
    lock::Guard,
    mount::{Mounted, Target},
};
use flexvol_sdk::{Bytes, Capabilities, Filesystem, Result};
use std::marker::PhantomData;
use world::BlockWorld;

/// The kind of volume that is a file system on a block device.
#[derive(Clone, Copy, Debug)]
pub struct Block<B>(PhantomData<B>);

/// A driver for block volumes: implements every callout crash-safely on top of a [`BlockBackend`].
#[derive(Clone, Copy, Debug)]
pub struct BlockDriver<B>(PhantomData<B>);

impl<B: BlockBackend> BlockDriver<B> {
    /// Returns the capabilities of such a driver. Each volume has a file system of its own, so kubelet may
    /// relabel it, measure it, give it to an fsGroup and have it grown.
    #[must_use]
    pub fn capabilities(attach: bool) -> Capabilities {
        let mut capabilities = match attach {
            true => Capabilities::attached(),
            false => Capabilities::local(),
        };
        capabilities.concurrent_fs_resize = true;
        capabilities
    }

    /// Makes a driver for these pools.
    #[must_use]
    pub fn over(pools: Vec<Pool<B>>, settings: Settings) -> VolumeDriver {
        VolumeDriver::over::<Block<B>>(&pools.into(), settings)
    }

    /// Makes a driver for one pool, with default settings. `open` is called only when a callout needs the pool.
    #[must_use]
    pub fn with_pool(open: impl Fn() -> Result<B> + 'static) -> VolumeDriver {
        let pool = Pool::new("default", Policy::default(), open);
        Self::over(vec![pool], Settings::default())
    }
}

impl<B: BlockBackend> Kind for Block<B> {
    type Backend = B;

    const HAS_FILESYSTEM: bool = true;
    const WANTS_UNMOUNTED: bool = B::KEEPS_UNUSED;

    fn owner(target: &Target) -> Result<Option<VolumeId>> {
        for device in target.devices()? {
            if let Some(owner) = B::owner(device, None)? {
                return Ok(Some(owner));
            }
        }
        Ok(None)
    }

    fn is_in_use(volume: &VolumeId) -> Result<bool> {
        let devices = DeviceNumber::all()?;
        // A device that cannot be queried does not count as the volume's.
        let is_of_volume =
            |device| matches!(B::owner(device, Some(volume)), Ok(Some(owner)) if owner == *volume);
        Ok(devices.into_iter().any(is_of_volume))
    }

    fn world<'a>(
        backend: Option<&'a B>,
        volume: VolumeId,
        lock: &'a Guard,
        context: CallContext,
    ) -> Box<dyn World + 'a> {
        Box::new(BlockWorld::new(backend, volume, lock, context))
    }

    fn complete_report(backend: &B, mounts: &Mounts, report: &mut VolumeReport) -> Result<()> {
        inventory::block::complete_report(backend, mounts, report)
    }

    fn is_responsive(target: &Target) -> Result<bool> {
        for device in target.devices()? {
            if !B::is_responsive(device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn shows(_: &Target, mounted: &Mounted, volume: &VolumeReport) -> Result<bool> {
        let device = volume.device.as_ref();
        Ok(device.is_some_and(|device| mounted.devices.contains(&device.number)))
    }

    fn unmounted(backend: &B, volume: &VolumeId, lock: &Guard) {
        backend.unused(volume, lock.hint());
    }

    fn smallest(filesystem: Filesystem) -> Bytes {
        format::minimum(filesystem)
    }
}
