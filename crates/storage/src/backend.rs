//! The storage technology below a volume.
//!
//! Every method is idempotent, and a repeated call completes an interrupted one. Backends need not know of
//! callouts: the driver calls them under the volume's lock, one step at a time.

use crate::{mark::Mark, observed::Asset};
use flexvol_host::{Device, DeviceNumber, PoolId, VolumeId, block::probe::Proof, pool::Pool};
use flexvol_sdk::{Bytes, Handle, Options, Result, VolumeName};
use std::{fs::File, os::fd::OwnedFd};

/// The volumes of a pool, by name and by id.
///
/// A name leads to a handle, which is stored where only root can read. Everything that other processes can see
/// is named by the id, which is the hash of the handle.
pub trait Catalog {
    /// Returns the pool's own id, which the marks of its volumes repeat.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn id(&self) -> Result<PoolId>;

    /// Lists the volumes of the pool.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn volume_ids(&self) -> Result<Vec<VolumeId>>;

    /// Binds `name` to `handle` unless the name is bound already, and returns the handle that it is bound to.
    /// So a provisioner that retries finds the volume that it made before.
    ///
    /// # Errors
    /// When the name may not be bound.
    fn bind(&self, name: &VolumeName, handle: &Handle) -> Result<Handle>;

    /// Returns the handle that `name` is bound to.
    ///
    /// # Errors
    /// When it is not certain.
    fn lookup(&self, name: &VolumeName) -> Result<Option<Handle>>;

    /// Frees `name` if it is bound to `volume`.
    ///
    /// # Errors
    /// When the name may still be bound.
    fn free(&self, name: &VolumeName, volume: &VolumeId) -> Result<()>;

    /// Removes what an interrupted [`Backend::create`] left of a volume that [`Backend::find`] does not find.
    /// Called under the volume's lock and before its name is freed, since without the name no retry would reach
    /// it.
    ///
    /// # Errors
    /// When something of it may still be there.
    fn discard(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }
}

/// The space of a pool. What is `None` is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The size of the largest volume that could be created now.
    pub largest: Bytes,
    /// The total size of the pool.
    pub size: Option<Bytes>,
    /// What the pool can still give to volumes in total.
    pub free: Option<Bytes>,
    /// The sizes of all volumes in total, deleted ones that are kept included.
    pub promised: Option<Bytes>,
    /// By how much the pool falls short of what it promised its volumes in total.
    pub shortfall: Option<Bytes>,
}

/// One pool of volumes.
pub trait Backend: 'static {
    /// Invalidates cached state. Called immediately after a volume's lock is acquired; until the next such call
    /// only the caller changes that volume.
    fn invalidate_cache(&self) {}

    /// Makes durable what an interrupted call may have changed of a volume. Called after the volume's lock is
    /// acquired, so that a change that is found done may be answered as done.
    ///
    /// # Errors
    /// When the change may not be durable.
    fn make_durable(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// Returns the catalog of the pool's volumes.
    fn catalog(&self) -> &dyn Catalog;

    /// Returns the storage of the volume with this id.
    ///
    /// # Errors
    /// When it is not certain whether there is such a volume.
    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>>;

    /// Allocates the volume and marks it, atomically.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) if there is no space.
    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()>;

    /// Replaces the mark durably. If there is no space for a mark that says that the volume is being deleted,
    /// the volume may be removed at once, provided that is atomic.
    ///
    /// # Errors
    /// When the old mark may still be there.
    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()>;

    /// Grows the storage; never shrinks it.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) if there is no space; the volume is
    /// unchanged then.
    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()>;

    /// Removes the volume and its data.
    ///
    /// # Errors
    /// When the volume may still be there.
    fn destroy(&self, volume: &VolumeId) -> Result<()>;

    /// Returns the size of the largest volume that could be created now with these parameters.
    ///
    /// # Errors
    /// When the pool does not answer.
    fn capacity(&self, parameters: &Options) -> Result<Bytes>;

    /// Returns the total size of the pool; `None` if unknown.
    ///
    /// # Errors
    /// When the pool does not answer.
    fn size(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Returns the size of what the pool stores for a volume in addition to its data; zero if that never
    /// matters.
    ///
    /// # Errors
    /// When the pool does not answer.
    fn metadata(&self, _: &VolumeId) -> Result<Bytes> {
        Ok(Bytes(0))
    }

    /// Returns how much [`Backend::metadata`] all kept volumes may have together; `None` while the pool has
    /// enough space.
    ///
    /// # Errors
    /// When the pool does not answer.
    fn max_kept_metadata(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Returns the pool's space, with the [`Backend::capacity`] for these parameters.
    ///
    /// # Errors
    /// When the pool does not answer.
    fn space(&self, parameters: &Options) -> Result<Space> {
        Ok(Space {
            largest: self.capacity(parameters)?,
            size: self.size()?,
            free: None,
            promised: None,
            shortfall: None,
        })
    }
}

/// A pool whose volumes are block devices.
pub trait BlockBackend: Backend {
    /// What must be read to prove that a new volume is blank. If parts of a new volume may hold data of earlier
    /// users, [`Backend::create`] must zero its ends ([`wipe_ends`](flexvol_host::block::probe::wipe_ends)).
    const PROOF: Proof = Proof::Whole;

    /// Whether devices stay when they are no longer used, so that [`BlockBackend::unused`] must be called.
    const KEEPS_UNUSED: bool = false;

    /// Returns the volume behind a device; `None` if the device is no volume of this technology. Unmounting
    /// knows only a directory, and must work while the pool is missing.
    ///
    /// If a volume is `expected`, only that one matters. Devices that cannot be it need not be queried: they
    /// may belong to others and never answer.
    ///
    /// # Errors
    /// When the device does not answer.
    fn owner(device: DeviceNumber, expected: Option<&VolumeId>) -> Result<Option<VolumeId>>;

    /// Resumes a suspended device, whose readers and writers would wait for ever. Called before a device that
    /// was found is used, and before a volume is unmounted, even while the pool is missing.
    ///
    /// # Errors
    /// When the device may still be suspended.
    fn resume(_device: DeviceNumber) -> Result<()> {
        Ok(())
    }

    /// Whether a device answers now. Code that only inspects must not read a suspended one.
    ///
    /// # Errors
    /// When it is not certain.
    fn is_responsive(_device: DeviceNumber) -> Result<bool> {
        Ok(true)
    }

    /// Returns the volume's block device, if it has one. `hint` is the minor number that it had last.
    ///
    /// # Errors
    /// When it is not certain.
    fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>>;

    /// Opens the volume's bytes for inspection while it has no block device; `None` if that is impossible.
    ///
    /// # Errors
    /// When they cannot be opened.
    fn image(&self, _volume: &VolumeId) -> Result<Option<File>> {
        Ok(None)
    }

    /// Returns the volume's block device, making it if necessary. The kernel sees its whole size afterwards.
    ///
    /// # Errors
    /// When there is no such device afterwards.
    fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device>;

    /// Does the same where the volume's device is held already. A backend that looks for a device in other ways than
    /// by its name can examine this one instead.
    ///
    /// # Errors
    /// As for [`BlockBackend::map`].
    fn map_again(&self, volume: &VolumeId, held: Device, hint: Option<u32>) -> Result<Device> {
        let device = self.map(volume, hint);
        drop(held);
        device
    }

    /// Releases an unused block device. One that disappears with its last user needs only to be closed.
    ///
    /// # Errors
    /// When the device is still there.
    fn unmap(&self, device: Device) -> Result<()> {
        drop(device);
        Ok(())
    }

    /// Called after a volume of this pool or another was unmounted from a directory and may be unused now; its
    /// lock is held. Errors are only logged, since the volume is unmounted in any case.
    fn unused(&self, _volume: &VolumeId, _hint: Option<u32>) {}
}

/// A pool whose volumes are directories of a file system that is mounted on this node.
///
/// [`Backend::find`] reports a volume's limit as its size, or the size of the whole file system if there is no
/// limit. It finds a volume until its removal is complete. Its marks are
/// [`State::Ready`](crate::mark::State::Ready) from the beginning and name no file system.
pub trait DirectoryBackend: Backend {
    /// Whether kubelet must call `expandfs` when a claim has grown, which raises the limit. Without it, stock
    /// Kubernetes never tells the driver of a growth.
    const REQUIRES_FS_RESIZE: bool = true;

    /// Opens the volume's root directory for reading, which is what pods see. The last component of its path in
    /// its file system must be the volume's id, by which a mount of it is recognised.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self, volume: &VolumeId) -> Result<OwnedFd>;

    /// Opens the outermost directory that belongs to the volume for reading: a mount of any part of it is a use
    /// of the volume. By default the same as [`DirectoryBackend::open`].
    ///
    /// # Errors
    /// When it cannot be opened.
    fn outermost(&self, volume: &VolumeId) -> Result<OwnedFd> {
        self.open(volume)
    }

    /// Ensures that the volume has its limit, before a pod gets it. By default nothing.
    ///
    /// # Errors
    /// When the limit cannot be set.
    fn restore(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }
}

impl Catalog for Pool {
    fn id(&self) -> Result<PoolId> {
        Ok(Pool::id(self))
    }

    fn volume_ids(&self) -> Result<Vec<VolumeId>> {
        Pool::volume_ids(self)
    }

    fn bind(&self, name: &VolumeName, handle: &Handle) -> Result<Handle> {
        self.reserve_name(name, handle)
    }

    fn lookup(&self, name: &VolumeName) -> Result<Option<Handle>> {
        self.lookup_name(name)
    }

    fn free(&self, name: &VolumeName, volume: &VolumeId) -> Result<()> {
        self.release_name(name, volume)
    }

    fn discard(&self, volume: &VolumeId) -> Result<()> {
        self.discard_unfinished(volume)
    }
}
