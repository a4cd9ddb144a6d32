//! The trait that a vendor implements, with one method for each callout.

use crate::{
    Bytes, Error, ErrorKind, FsType, Handle, MountRequest, Options, PoolSpace, Resize, Result,
    Volume, VolumeName,
};
use std::{collections::BTreeMap, path::Path};

/// The reason why a driver method failed.
///
/// Every [`Error`] converts into one. "Not supported" has no public constructor, because kubelet remembers it for
/// all volumes of the driver: only methods that the driver does not implement return it.
#[derive(Debug)]
pub struct Failure(pub(crate) Reason);

#[derive(Debug)]
pub(crate) enum Reason {
    NotSupported,
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(Reason::Failed(error))
    }
}

impl From<Failure> for Error {
    /// For code that calls a driver's methods directly, outside the callout protocol.
    fn from(failure: Failure) -> Self {
        match failure.0 {
            Reason::Failed(error) => error,
            Reason::NotSupported => {
                Error::new(ErrorKind::Invalid, "this driver does not support that")
            }
        }
    }
}

/// The result of a method of [`Driver`].
pub type Answer<T> = Result<T, Failure>;

/// Returns the answer of a method that the driver does not implement, for crates that build drivers from smaller
/// traits. Never use it for a single volume or a temporary state: kubelet asks only once.
#[doc(hidden)]
pub fn not_supported<T>() -> Answer<T> {
    Err(Failure(Reason::NotSupported))
}

/// The result of `capacity`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capacity {
    /// The size of the largest volume that could be provisioned now.
    pub largest: Bytes,
    /// By how much the storage falls short of what it promised its volumes in total; `None` if unknown.
    pub shortfall: Option<Bytes>,
    /// The space of the pool that such a volume would be in; `None` if unknown.
    pub pool: Option<PoolSpace>,
}

impl From<Bytes> for Capacity {
    /// The capacity of storage of which nothing more is known than its largest volume.
    fn from(largest: Bytes) -> Self {
        Capacity {
            largest,
            shortfall: None,
            pool: None,
        }
    }
}

/// The result of `provision`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provisioned {
    /// The options a persistent volume must carry so that later callouts find this volume.
    pub options: BTreeMap<String, String>,
    /// The volume's actual size, at least the requested one.
    pub size: Bytes,
    /// The volume's handle.
    pub handle: Handle,
    /// The file system that the volume will hold; `None` if that is not decided yet.
    pub filesystem: Option<FsType>,
}

impl Provisioned {
    /// Describes a volume of this actual size that is found without further options.
    #[must_use]
    pub fn new(handle: Handle, size: Bytes) -> Self {
        Provisioned {
            options: BTreeMap::new(),
            size,
            handle,
            filesystem: None,
        }
    }

    /// Adds an option that the persistent volume must carry.
    #[must_use]
    pub fn with_option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.insert(key.into(), value.into());
        self
    }

    /// Sets the file system that the volume will hold; `None` if that is not decided yet.
    #[must_use]
    pub fn with_filesystem(mut self, filesystem: Option<FsType>) -> Self {
        self.filesystem = filesystem;
        self
    }
}

/// A FlexVolume driver. Each method answers "Not supported" unless the driver implements it.
///
/// Callers repeat, reorder, interrupt and overlap calls at will. Methods must therefore be idempotent: `mount` of a
/// mounted volume and `unmount` of an unmounted one succeed.
pub trait Driver {
    /// Makes the volume reachable from `node`; the returned text is passed to `wait_for_attach`. Runs in the
    /// controller manager, which cannot see the node.
    ///
    /// # Errors
    /// When `node` cannot reach the volume.
    fn attach(&self, _volume: &Volume, _node: &str) -> Answer<String> {
        not_supported()
    }

    /// Waits on the node until the volume has arrived; returns the device for `mount_device`.
    ///
    /// # Errors
    /// When the volume does not arrive within the caller's timeout of ten minutes.
    fn wait_for_attach(&self, _device: &str, _volume: &Volume) -> Answer<String> {
        not_supported()
    }

    /// Whether the volume is attached to `node`. After `false` the caller may attach it elsewhere, so answer an
    /// error in case of doubt.
    ///
    /// # Errors
    /// When it is not certain.
    fn is_attached(&self, _volume: &Volume, _node: &str) -> Answer<bool> {
        not_supported()
    }

    /// Detaches the volume from `node`; the caller knows only the volume's name.
    ///
    /// # Errors
    /// When the volume is still attached afterwards.
    fn detach(&self, _name: &VolumeName, _node: &str) -> Answer<()> {
        not_supported()
    }

    /// Mounts the volume on kubelet's own directory for it on the node.
    ///
    /// # Errors
    /// When the volume is not mounted there afterwards.
    fn mount_device(&self, _dir: &Path, _device: &str, _volume: &Volume) -> Answer<()> {
        not_supported()
    }

    /// Undoes `mount_device`; only the directory is known.
    ///
    /// # Errors
    /// When something is still mounted there afterwards.
    fn unmount_device(&self, _dir: &Path) -> Answer<()> {
        not_supported()
    }

    /// Mounts the volume on the directory of one pod.
    ///
    /// # Errors
    /// When the volume is not mounted there afterwards. The caller does not call `unmount` then.
    fn mount(&self, _request: &MountRequest) -> Answer<()> {
        not_supported()
    }

    /// Undoes `mount`; only the directory is known.
    ///
    /// # Errors
    /// When something is still mounted there afterwards.
    fn unmount(&self, _dir: &Path) -> Answer<()> {
        not_supported()
    }

    /// Grows the storage behind the volume to at least `size.new` and returns its actual size, or `None` if this
    /// host cannot measure it. Stock Kubernetes never calls it; flexvol's agent does.
    ///
    /// Measure the storage first, and never make it smaller: if it has `size.new` or more, nothing changes and its
    /// size is returned. `size.old` is what the caller last knew and proves nothing, because an earlier call may have
    /// grown the storage without its answer arriving, or before it failed. Equal sizes ask for a measurement.
    ///
    /// # Errors
    /// When the size was not reached.
    fn expand_volume(
        &self,
        _volume: &Volume,
        _dir: Option<&Path>,
        _size: Resize,
    ) -> Answer<Option<Bytes>> {
        not_supported()
    }

    /// Grows storage and file system to at least `size.new` and returns the measured size.
    ///
    /// `device` is empty for drivers without attach. `dir` is any directory on which the volume is, or was to be,
    /// mounted.
    ///
    /// # Errors
    /// When the size was not reached.
    fn expand_fs(
        &self,
        _volume: &Volume,
        _device: &str,
        _dir: Option<&Path>,
        _size: Resize,
    ) -> Answer<Bytes> {
        not_supported()
    }

    /// Makes a volume of at least `size`. A repeated call returns the volume of the first one.
    ///
    /// # Errors
    /// When no such volume exists afterwards.
    fn provision(&self, _volume: &Volume, _size: Bytes) -> Answer<Provisioned> {
        not_supported()
    }

    /// Removes the volume and its data. A missing volume is a success.
    ///
    /// If the answer of `provision` was lost, the caller passes the same options as to `provision` and
    /// `claim_namespace`, and the name identifies the volume.
    ///
    /// # Errors
    /// When the volume is in use or could not be removed. It should also fail if the options identify a volume that
    /// was made under another name: the caller has checked only whether the volume of this name may go.
    fn delete(&self, _volume: &Volume) -> Answer<()> {
        not_supported()
    }

    /// Returns how large a volume could be provisioned now with these parameters, and what is known of its pool. A
    /// driver that knows only the size converts it: `Ok(size.into())`.
    ///
    /// # Errors
    /// When the storage does not answer.
    fn capacity(&self, _parameters: &Options) -> Answer<Capacity> {
        not_supported()
    }
}

/// Opens the driver's storage. Called only when a callout needs it, because `init` also runs on hosts without pool,
/// device and tools.
pub type Open<'a> = &'a dyn Fn() -> Result<Box<dyn Driver>>;
