//! The storage technology below a block volume, as ten small methods.

use crate::{mark::Mark, observed::Asset};
use flexvol_host::{Device, DeviceNumber, PoolId};
use flexvol_sdk::{Bytes, Handle, Options, Result, VolumeName};

/// One pool of block volumes.
///
/// Every method is idempotent and leaves, when it is cut, what its next call completes. None
/// needs to know of callouts: [`BlockDriver`](crate::BlockDriver) calls them under the volume's
/// lock, one step at a time.
pub trait BlockBackend: Sized {
    /// The pool's own id, which its volumes' marks repeat.
    fn pool(&self) -> PoolId;

    /// The handle on a device that may be a volume of this technology; `None` where it is none.
    /// Unmounting is told a directory and nothing else, and must work while the pool is missing.
    ///
    /// # Errors
    /// When the device cannot be asked.
    fn owner(device: DeviceNumber) -> Result<Option<Handle>>;

    /// The volume with this handle.
    ///
    /// # Errors
    /// When it cannot be known whether there is one.
    fn find(&self, volume: &Handle) -> Result<Option<Asset>>;

    /// Every volume of the pool.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn list(&self) -> Result<Vec<Handle>>;

    /// Allocates the volume and marks it: both or nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where there is no room.
    fn create(&self, volume: &Handle, size: Bytes, mark: &Mark) -> Result<()>;

    /// Replaces the mark, durably.
    ///
    /// # Errors
    /// When the old mark may still be there.
    fn set_mark(&self, volume: &Handle, mark: &Mark) -> Result<()>;

    /// Grows the storage, never to less than it has.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where there is no room; then
    /// the volume is as it was.
    fn grow(&self, volume: &Handle, to: Bytes) -> Result<()>;

    /// The volume's block device, if it has one. `hint` is the minor number it had last.
    ///
    /// # Errors
    /// When it cannot be known.
    fn mapped(&self, volume: &Handle, hint: Option<u32>) -> Result<Option<Device>>;

    /// The volume's block device, made if it has none; the kernel sees all of its size afterwards.
    ///
    /// # Errors
    /// When there is no such device afterwards.
    fn map(&self, volume: &Handle, hint: Option<u32>) -> Result<Device>;

    /// Lets an unused block device go.
    ///
    /// # Errors
    /// When it is still there.
    fn unmap(&self, device: Device) -> Result<()>;

    /// Removes the volume and its data.
    ///
    /// # Errors
    /// When it may still be there.
    fn destroy(&self, volume: &Handle) -> Result<()>;

    /// The largest volume that could be created now with these parameters.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn capacity(&self, parameters: &Options) -> Result<Bytes>;

    /// Binds `name` to `volume` unless it is bound already, and returns what it is bound to: a
    /// provisioner that repeats itself finds the volume it made before.
    ///
    /// # Errors
    /// When it may not be bound.
    fn bind_name(&self, name: &VolumeName, volume: &Handle) -> Result<Handle>;

    /// What `name` is bound to.
    ///
    /// # Errors
    /// When it cannot be known.
    fn find_name(&self, name: &VolumeName) -> Result<Option<Handle>>;

    /// Frees `name` if it is bound to `volume`.
    ///
    /// # Errors
    /// When it may still be bound.
    fn free_name(&self, name: &VolumeName, volume: &Handle) -> Result<()>;
}
