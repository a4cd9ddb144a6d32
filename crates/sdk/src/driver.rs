//! The trait a vendor implements: a method a callout.

use crate::{
    Bytes, Error, ErrorKind, FsType, Handle, MountRequest, Options, Resize, Result, Volume,
    VolumeName,
};
use std::{collections::BTreeMap, path::Path};

/// Why a callout has no answer.
///
/// A driver makes one from an [`Error`]. "Not supported" has no public constructor: kubelet
/// remembers it for every volume of the driver, so it can come only from a method that the
/// driver did not write.
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
    /// For whoever calls a driver's methods and is no caller of Kubernetes.
    fn from(failure: Failure) -> Self {
        match failure.0 {
            Reason::Failed(error) => error,
            Reason::NotSupported => {
                Error::new(ErrorKind::Invalid, "this driver does not support that")
            }
        }
    }
}

/// What a method of [`Driver`] returns.
pub type Answer<T> = Result<T, Failure>;

/// The answer of a method that a driver does not have, for crates that build drivers out of
/// smaller traits. Never for one volume or for a passing state: kubelet asks only once.
#[doc(hidden)]
pub fn not_supported<T>() -> Answer<T> {
    Err(Failure(Reason::NotSupported))
}

/// What `provision` made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provisioned {
    /// The options a persistent volume must carry so that later callouts find this volume.
    pub options: BTreeMap<String, String>,
    /// The size it has, at least what was asked.
    pub size: Bytes,
    /// The volume's handle.
    pub handle: Handle,
    /// The file system it will hold; `None` where that is not decided yet.
    pub filesystem: Option<FsType>,
}

impl Provisioned {
    /// A volume whose size is what it has, and that no option is needed to find.
    #[must_use]
    pub fn new(handle: Handle, size: Bytes) -> Self {
        Provisioned {
            options: BTreeMap::new(),
            size,
            handle,
            filesystem: None,
        }
    }

    /// Another option that a persistent volume must carry.
    #[must_use]
    pub fn with_option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.insert(key.into(), value.into());
        self
    }

    /// The file system that it will hold, where that is decided.
    #[must_use]
    pub fn with_filesystem(mut self, filesystem: Option<FsType>) -> Self {
        self.filesystem = filesystem;
        self
    }
}

/// A FlexVolume driver. Every method answers Not supported until it is written.
///
/// Callers repeat, reorder, cut and run in parallel whatever they like, so a method establishes a
/// state and does not perform an action: `mount` of what is mounted and `unmount` of what is not
/// are successes.
pub trait Driver {
    /// Makes the volume reachable from `node` and returns what `wait_for_attach` will be given.
    /// Called in the controller manager, which sees nothing of the node.
    ///
    /// # Errors
    /// When the volume cannot be had by `node`.
    fn attach(&self, _volume: &Volume, _node: &str) -> Answer<String> {
        not_supported()
    }

    /// Waits on the node until the volume is there; returns the device `mount_device` is given.
    ///
    /// # Errors
    /// When it does not come within the caller's ten minutes.
    fn wait_for_attach(&self, _device: &str, _volume: &Volume) -> Answer<String> {
        not_supported()
    }

    /// Whether the volume is attached to `node`. `false` lets the caller attach it elsewhere, so
    /// a doubt is an error.
    ///
    /// # Errors
    /// When it cannot be known.
    fn is_attached(&self, _volume: &Volume, _node: &str) -> Answer<bool> {
        not_supported()
    }

    /// Ends the attachment; the caller knows no more than the volume's name.
    ///
    /// # Errors
    /// When it is still attached afterwards.
    fn detach(&self, _name: &VolumeName, _node: &str) -> Answer<()> {
        not_supported()
    }

    /// Mounts the volume on the node's own directory for it.
    ///
    /// # Errors
    /// When it is not mounted there afterwards.
    fn mount_device(&self, _dir: &Path, _device: &str, _volume: &Volume) -> Answer<()> {
        not_supported()
    }

    /// Undoes `mount_device`, knowing only the directory.
    ///
    /// # Errors
    /// When something is still mounted there afterwards.
    fn unmount_device(&self, _dir: &Path) -> Answer<()> {
        not_supported()
    }

    /// Mounts the volume on the directory of one pod.
    ///
    /// # Errors
    /// When it is not mounted there afterwards. The caller sends no `unmount` then.
    fn mount(&self, _request: &MountRequest) -> Answer<()> {
        not_supported()
    }

    /// Undoes `mount`, knowing only the directory.
    ///
    /// # Errors
    /// When something is still mounted there afterwards.
    fn unmount(&self, _dir: &Path) -> Answer<()> {
        not_supported()
    }

    /// Grows the storage behind the volume to at least `size.new` and returns what it has then;
    /// `None` where this host cannot measure it. Stock Kubernetes never calls it.
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

    /// Grows storage and file system to at least `size.new` and returns what was measured.
    /// `device` is empty for drivers without attach; `dir` is any directory where the volume is,
    /// or was to be, mounted.
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

    /// Makes a volume of at least `size`; a repetition finds the one made before.
    ///
    /// # Errors
    /// When there is no such volume afterwards.
    fn provision(&self, _volume: &Volume, _size: Bytes) -> Answer<Provisioned> {
        not_supported()
    }

    /// Removes the volume and its data; one that is not there is a success. Where the answer of
    /// `provision` was lost, the options are what that was told, `claim_namespace` is there, and the name
    /// tells the volume.
    ///
    /// # Errors
    /// When it is in use or could not be removed.
    fn delete(&self, _volume: &Volume) -> Answer<()> {
        not_supported()
    }

    /// The largest volume that could be provisioned now with these parameters.
    ///
    /// # Errors
    /// When the storage cannot be asked.
    fn capacity(&self, _parameters: &Options) -> Answer<Bytes> {
        not_supported()
    }

    /// What volumes of the same storage were promised as a whole and do not have, told with the
    /// capacity; `None` where that is not known.
    ///
    /// # Errors
    /// When the storage cannot be asked.
    fn missing(&self, _parameters: &Options) -> Answer<Option<Bytes>> {
        Ok(None)
    }
}

/// Opens the driver's storage. Called only when a callout needs it: `init` runs in places where
/// there is no pool, no device and no tool.
pub type Open<'a> = &'a dyn Fn() -> Result<Box<dyn Driver>>;
