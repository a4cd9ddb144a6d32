//! The differences between kinds of volumes.

use crate::{backend::Backend, mounts::Mounts, reconcile::World, volume_report::VolumeReport};
use flexvol_host::{
    Uuid, VolumeId,
    lock::Guard,
    mount::{Mounted, Target},
};
use flexvol_sdk::{Bytes, Filesystem, Handle, PodVolumeDir, Result, VolumeName};
use std::{
    path::{Component, Path, PathBuf},
    time::Duration,
};

/// How long a callout waits for another one on the same volume before it answers Failure. The caller retries;
/// its own timeout is about two minutes.
pub(crate) const LOCK_DEADLINE: Duration = Duration::from_secs(60);

/// Parameters of a callout, in addition to its goal.
#[derive(Clone, Debug, Default)]
pub struct CallContext {
    /// The directory that the callout is about.
    pub(crate) dir: Option<PathBuf>,
    /// The volume to create.
    pub(crate) new: Option<NewVolume>,
    /// The fsGroup of the pod.
    pub(crate) fs_group: Option<u32>,
    /// The UUID of the btrfs on the directory, if only the UUID shows that it is this volume's.
    pub(crate) moved: Option<Uuid>,
}

/// The contents of a new volume's mark.
#[derive(Clone, Debug)]
pub(crate) struct NewVolume {
    pub(crate) handle: Handle,
    /// The persistent volume for which it is made.
    pub(crate) name: VolumeName,
    /// The namespace of the claim.
    pub(crate) namespace: Option<String>,
    /// The file system for which it is made.
    pub(crate) filesystem: Option<Filesystem>,
}

impl CallContext {
    pub(crate) fn on(dir: Option<&Path>) -> CallContext {
        CallContext {
            dir: dir.map(Path::to_owned),
            ..CallContext::default()
        }
    }

    /// Whether a mount on `place` is the one on the callout's directory. A pod's directory keeps its last four components
    /// wherever it is visible: through a symbolic link, where kubelet's directory is bind-mounted elsewhere,
    /// and in mount namespaces that receive the node's mounts, or those below `pods`.
    fn is_own(&self, place: &Path) -> bool {
        self.dir.as_deref().is_some_and(|dir| {
            let of_pod = PodVolumeDir::of(dir);
            place == dir || of_pod.is_some() && end(place).eq(end(dir))
        })
    }

    /// Whether a mount on `place` is another pod's: neither the callout's nor kubelet's own.
    pub(crate) fn is_of_another_pod(&self, place: &Path) -> bool {
        !self.is_own(place) && !is_of_the_node(place)
    }
}

/// Returns the last components of a path, enough to tell one pod's volume from all others.
fn end(path: &Path) -> impl Iterator<Item = Component<'_>> {
    path.components().rev().take(4)
}

/// Whether `dir` is kubelet's own directory for an attached volume
/// (`plugins/kubernetes.io/flexvolume/…/mounts/…`, Kubernetes `getDeviceMountPath`).
pub(crate) fn is_of_the_node(dir: &Path) -> bool {
    dir.to_string_lossy()
        .contains("/plugins/kubernetes.io/flexvolume/")
}

/// A kind of volume, which determines how a mounted volume is recognised and how steps are executed:
/// [`Block`](crate::Block) or [`Directory`](crate::Directory).
pub trait Kind: 'static {
    /// The backend of such volumes' pools.
    type Backend: Backend;

    /// Whether a volume has a file system of its own; otherwise the caller's `fsType` is ignored.
    const HAS_FILESYSTEM: bool;

    /// Whether pools must be told of unmounted volumes ([`Kind::unmounted`]).
    const WANTS_UNMOUNTED: bool = false;

    /// Returns the volume that is mounted on a directory, if it is one of this technology.
    ///
    /// # Errors
    /// When it is not certain.
    fn owner(target: &Target) -> Result<Option<VolumeId>>;

    /// Whether a volume that no pool has is still in use: it has a device, or is mounted in some mount
    /// namespace.
    ///
    /// # Errors
    /// When it is not certain.
    fn is_in_use(volume: &VolumeId) -> Result<bool>;

    /// Makes the world of a volume whose lock is held. While its pool is missing, there is no backend and the
    /// volume can only be unmounted.
    fn world<'a>(
        backend: Option<&'a Self::Backend>,
        volume: VolumeId,
        lock: &'a Guard,
        context: CallContext,
    ) -> Box<dyn World + 'a>;

    /// Completes the report of a volume. Makes and changes nothing.
    ///
    /// # Errors
    /// When something is not certain.
    fn complete_report(
        backend: &Self::Backend,
        mounts: &Mounts,
        report: &mut VolumeReport,
    ) -> Result<()>;

    /// Whether the mount on a directory answers now. Code that only inspects must not query a suspended device.
    ///
    /// # Errors
    /// When it is not certain.
    fn is_responsive(_target: &Target) -> Result<bool> {
        Ok(true)
    }

    /// Whether the mount on a directory is of this volume.
    ///
    /// # Errors
    /// When it is not certain.
    fn shows(target: &Target, mounted: &Mounted, volume: &VolumeReport) -> Result<bool>;

    /// Called after a volume of this pool or another was unmounted from a directory; its lock is held.
    fn unmounted(_backend: &Self::Backend, _volume: &VolumeId, _lock: &Guard) {}

    /// Returns the size of the smallest volume that can hold this file system and be grown.
    fn smallest(filesystem: Filesystem) -> Bytes;
}
