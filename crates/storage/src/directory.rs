//! Volumes that are directories of a file system of this node.

mod world;

use crate::{
    backend::DirectoryBackend,
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
    VolumeId,
    lock::Guard,
    mount::{Mounted, Target},
    mountinfo,
};
use flexvol_sdk::{Bytes, Capabilities, Filesystem, Result};
use std::marker::PhantomData;
use world::DirectoryWorld;

/// The kind of volume that is a directory.
#[derive(Clone, Copy, Debug)]
pub struct Directory<B>(PhantomData<B>);

/// A driver for directory volumes: implements every callout crash-safely on top of a [`DirectoryBackend`].
#[derive(Clone, Copy, Debug)]
pub struct DirectoryDriver<B>(PhantomData<B>);

impl<B: DirectoryBackend> DirectoryDriver<B> {
    /// Returns the capabilities of such a driver.
    ///
    /// A directory shares its file system with others. So files are not relabelled for SELinux (a backend whose
    /// files have labels of their own can change that), and `statfs` does not describe the volume. Kubelet must
    /// not walk all files for an fsGroup either: the driver gives the root directory to the group when it
    /// mounts.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        let mut capabilities = Capabilities::local();
        capabilities.selinux_relabel = false;
        capabilities.supports_metrics = false;
        capabilities.fs_group = false;
        capabilities.requires_fs_resize = B::REQUIRES_FS_RESIZE;
        capabilities.concurrent_fs_resize = B::REQUIRES_FS_RESIZE;
        capabilities
    }

    /// Makes a driver for these pools.
    #[must_use]
    pub fn over(pools: Vec<Pool<B>>, settings: Settings) -> VolumeDriver {
        VolumeDriver::over::<Directory<B>>(&pools.into(), settings)
    }

    /// Makes a driver for one pool, with default settings. `open` is called only when a callout needs the pool.
    #[must_use]
    pub fn with_pool(open: impl Fn() -> Result<B> + 'static) -> VolumeDriver {
        let pool = Pool::new("default", Policy::default(), open);
        Self::over(vec![pool], Settings::default())
    }
}

impl<B: DirectoryBackend> Kind for Directory<B> {
    type Backend = B;

    const HAS_FILESYSTEM: bool = false;

    fn owner(target: &Target) -> Result<Option<VolumeId>> {
        Ok(target.mount()?.and_then(|mount| mount.volume()))
    }

    fn is_in_use(volume: &VolumeId) -> Result<bool> {
        mountinfo::has_volume(volume)
    }

    fn world<'a>(
        backend: Option<&'a B>,
        volume: VolumeId,
        _lock: &'a Guard,
        context: CallContext,
    ) -> Box<dyn World + 'a> {
        Box::new(DirectoryWorld::new(backend, volume, context))
    }

    fn complete_report(backend: &B, mounts: &Mounts, report: &mut VolumeReport) -> Result<()> {
        inventory::directory::complete_report(backend, mounts, report)
    }

    fn shows(target: &Target, _: &Mounted, volume: &VolumeReport) -> Result<bool> {
        let mount = target.mount()?;
        Ok(mount.is_some_and(|mount| mount.volume() == Some(volume.id)))
    }

    fn smallest(_: Filesystem) -> Bytes {
        Bytes(0)
    }
}
