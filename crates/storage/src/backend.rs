//! The storage technology below a volume, as ten small methods.
//!
//! Every method is idempotent and leaves, when it is cut, what its next call completes. None
//! needs to know of callouts: the driver calls them under the volume's lock, one step at a time.

use crate::{mark::Mark, observed::Asset};
use flexvol_host::{Device, DeviceNumber, PoolId, VolumeId, block::probe::Proof, pool::Pool};
use flexvol_sdk::{Bytes, Handle, Options, Result, VolumeName};
use std::{fs::File, os::fd::OwnedFd};

/// Which volumes a pool has, and what they are called. Names lead to handles, which stand where only
/// root reads; everything else that processes may see is called by the id that a handle has.
pub trait Catalog {
    /// The pool's own id, which its volumes' marks repeat.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn id(&self) -> Result<PoolId>;

    /// Every volume of the pool.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn volume_ids(&self) -> Result<Vec<VolumeId>>;

    /// Binds `name` to `handle` unless it is bound already, and returns what it is bound to: a
    /// provisioner that repeats itself finds the volume it made before.
    ///
    /// # Errors
    /// When it may not be bound.
    fn bind(&self, name: &VolumeName, handle: &Handle) -> Result<Handle>;

    /// What `name` is bound to.
    ///
    /// # Errors
    /// When it cannot be known.
    fn lookup(&self, name: &VolumeName) -> Result<Option<Handle>>;

    /// Frees `name` if it is bound to `volume`.
    ///
    /// # Errors
    /// When it may still be bound.
    fn free(&self, name: &VolumeName, volume: &VolumeId) -> Result<()>;

    /// Removes what a [`Backend::create`] that was cut left of a volume that [`Backend::find`] does not find.
    /// Called under its lock, before its name goes, without which nobody would go on with it.
    ///
    /// # Errors
    /// When it may still be there.
    fn discard(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }
}

/// One pool of volumes.
pub trait Backend: 'static {
    /// Invalidates cached state. Called immediately after a volume's lock is acquired; until the next
    /// such call nobody but the caller changes that volume.
    fn invalidate_cache(&self) {}

    /// Makes durable what an earlier call changed of a volume before it died. Called after its lock
    /// was taken: what is found done may be answered as done.
    ///
    /// # Errors
    /// When it may not be durable.
    fn make_durable(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// Which volumes it has.
    fn catalog(&self) -> &dyn Catalog;

    /// The volume with this id.
    ///
    /// # Errors
    /// When it cannot be known whether there is one.
    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>>;

    /// Allocates the volume and marks it: both or nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where there is no room.
    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()>;

    /// Replaces the mark, durably. Where there is no room for the word that the volume is being deleted, it may be
    /// removed at once, if that is one step.
    ///
    /// # Errors
    /// When the old mark may still be there.
    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()>;

    /// Grows the storage, never to less than it has.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where there is no room; then
    /// the volume is as it was.
    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()>;

    /// Removes the volume and its data.
    ///
    /// # Errors
    /// When it may still be there.
    fn destroy(&self, volume: &VolumeId) -> Result<()>;

    /// The largest volume that could be created now with these parameters.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn capacity(&self, parameters: &Options) -> Result<Bytes>;

    /// All that the pool is carved from; `None` where that is not known.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn size(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// What the pool stores of a volume beside its data, where that could become too much.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn metadata(&self, _: &VolumeId) -> Result<Bytes> {
        Ok(Bytes(0))
    }

    /// How much [`Backend::metadata`] of volumes that were deleted and are kept may be together; `None` while the pool
    /// has room enough.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn max_kept_metadata(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// What the pool's volumes were promised as a whole and do not have; `None` where nothing is
    /// promised that way, or that is not known.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn missing(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }
}

/// A pool whose volumes are block devices.
pub trait BlockBackend: Backend {
    /// What proves that a new volume is blank. Where parts of it may hold what others wrote
    /// before, [`Backend::create`] leaves its ends zero ([`wipe_ends`](flexvol_host::block::probe::wipe_ends)).
    const PROOF: Proof = Proof::Whole;

    /// Devices stay when nobody uses them, so that [`BlockBackend::unused`] must be told.
    const KEEPS_UNUSED: bool = false;

    /// The volume on a device that may be a volume of this technology; `None` where it is none.
    /// Unmounting is told a directory and nothing else, and must work while the pool is missing.
    ///
    /// Where a volume is `expected`, no other matters: what cannot be that one need not be asked, and may be a stranger's
    /// that never answers.
    ///
    /// # Errors
    /// When the device cannot be asked.
    fn owner(device: DeviceNumber, expected: Option<&VolumeId>) -> Result<Option<VolumeId>>;

    /// Makes a device answer that was stopped: whoever reads or writes it would wait for ever.
    /// Asked before a device that was found is used, and before a volume is unmounted, also while
    /// the pool is missing.
    ///
    /// # Errors
    /// When it may still be stopped.
    fn resume(_device: DeviceNumber) -> Result<()> {
        Ok(())
    }

    /// Whether a device answers now; nobody who only looks reads one that was stopped.
    ///
    /// # Errors
    /// When it cannot be known.
    fn answers(_device: DeviceNumber) -> Result<bool> {
        Ok(true)
    }

    /// The volume's block device, if it has one. `hint` is the minor number it had last.
    ///
    /// # Errors
    /// When it cannot be known.
    fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>>;

    /// The volume's bytes, for looking at them while it has no block device; `None` where there is
    /// no other way to them.
    ///
    /// # Errors
    /// When they cannot be opened.
    fn image(&self, _volume: &VolumeId) -> Result<Option<File>> {
        Ok(None)
    }

    /// The volume's block device, made if it has none; the kernel sees all of its size afterwards.
    ///
    /// # Errors
    /// When there is no such device afterwards.
    fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device>;

    /// Lets an unused block device go; one that goes with its last user needs no more than that.
    ///
    /// # Errors
    /// When it is still there.
    fn unmap(&self, device: Device) -> Result<()> {
        drop(device);
        Ok(())
    }

    /// A volume, of this pool or another, was unmounted from a directory and may be unused now;
    /// its lock is held. What cannot be done is logged: the volume is unmounted all the same.
    fn unused(&self, _volume: &VolumeId, _hint: Option<u32>) {}
}

/// A pool whose volumes are directories of a file system that is mounted on this node.
///
/// [`Backend::find`] reports a volume's limit as its size; where nothing limits it, that of the
/// whole file system. It finds a volume until its removal is complete, and the marks it keeps are
/// [`State::Ready`](crate::mark::State::Ready) from the beginning, with no file system in them.
pub trait DirectoryBackend: Backend {
    /// Kubelet must call `expandfs` when a claim has grown, which is when the limit is raised.
    /// Without it, stock Kubernetes tells the driver nothing of a growth.
    const REQUIRES_FS_RESIZE: bool = true;

    /// The root directory of the volume, open for reading. It is what pods see; its name, the
    /// last one of its path in its file system, is the volume's id, by which the volume is
    /// recognised where it is mounted.
    ///
    /// # Errors
    /// When it cannot be had.
    fn open(&self, volume: &VolumeId) -> Result<OwnedFd>;

    /// The outermost directory that goes with the volume, open for reading: whoever has mounted any part
    /// of it uses the volume. By default that of [`DirectoryBackend::open`].
    ///
    /// # Errors
    /// When it cannot be had.
    fn outermost(&self, volume: &VolumeId) -> Result<OwnedFd> {
        self.open(volume)
    }

    /// Sees that the volume is limited as it should be, before a pod gets it. By default nothing.
    ///
    /// # Errors
    /// When it cannot be.
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
