//! What tells one kind of volume from another.

use crate::{backend::Backend, mounts::Mounts, reconcile::World, volume_report::VolumeReport};
use flexvol_host::{
    Uuid, VolumeId,
    lock::Guard,
    mount::{Mounted, Target},
};
use flexvol_sdk::{Bytes, Filesystem, Handle, Result, VolumeName};
use std::{
    path::{Component, Path, PathBuf},
    time::Duration,
};

/// How long a callout waits for another one of the same volume before it answers Failure. The
/// caller repeats the call, and its own patience with one is about two minutes.
pub(crate) const LOCK_DEADLINE: Duration = Duration::from_secs(60);

/// What the steps of a callout need to know besides its goal.
#[derive(Clone, Debug, Default)]
pub struct CallContext {
    /// The directory the callout is about.
    pub(crate) dir: Option<PathBuf>,
    /// The volume that is to be made.
    pub(crate) new: Option<NewVolume>,
    /// The group that the pod's processes share.
    pub(crate) fs_group: Option<u32>,
    /// The btrfs on the directory, where nothing else tells that it is this volume's.
    pub(crate) moved: Option<Uuid>,
}

/// What the mark of a new volume says.
#[derive(Clone, Debug)]
pub(crate) struct NewVolume {
    pub(crate) handle: Handle,
    /// The persistent volume it is made for.
    pub(crate) name: VolumeName,
    /// The namespace of its claim.
    pub(crate) namespace: Option<String>,
    /// The file system it is made for.
    pub(crate) filesystem: Option<Filesystem>,
}

impl CallContext {
    pub(crate) fn on(dir: Option<&Path>) -> CallContext {
        CallContext {
            dir: dir.map(Path::to_owned),
            ..CallContext::default()
        }
    }

    /// Whether a mount on this place is the one on the directory of the call. A pod's (`pods/UID/volumes/VENDOR~DRIVER/NAME`,
    /// Kubernetes `GetPodVolumeDir`) has the same four last components wherever it is seen: by a symbolic link, where the
    /// directory of kubelet is bound to another, and in a namespace to which the node's mounts propagate, or those below `pods`.
    fn is_own(&self, place: &Path) -> bool {
        self.dir.as_deref().is_some_and(|dir| {
            let is_a_pods =
                dir.components().rev().nth(4) == Some(Component::Normal("pods".as_ref()));
            place == dir || is_a_pods && end(place).eq(end(dir))
        })
    }

    /// Whether a mount on this place is another pod's: neither that of the call, nor kubelet's own.
    pub(crate) fn is_of_another_pod(&self, place: &Path) -> bool {
        !self.is_own(place) && !is_of_the_node(place)
    }
}

/// The last components of a path, as many as tell the volume of one pod from all others.
fn end(path: &Path) -> impl Iterator<Item = Component<'_>> {
    path.components().rev().take(4)
}

/// Whether it is kubelet's own directory for an attached volume
/// (`plugins/kubernetes.io/flexvolume/…/mounts/…`, Kubernetes `getDeviceMountPath`).
pub(crate) fn is_of_the_node(dir: &Path) -> bool {
    dir.to_string_lossy()
        .contains("/plugins/kubernetes.io/flexvolume/")
}

/// What kind of thing a volume is, which decides how it is found on a directory and how the
/// steps are done: [`Block`](crate::Block) or [`Directory`](crate::Directory).
pub trait Kind: 'static {
    /// The pools of such volumes.
    type Backend: Backend;

    /// A volume gets a file system of its own; otherwise the caller's `fsType` means nothing.
    const HAS_FILESYSTEM: bool;

    /// Pools want to hear of a volume that was unmounted ([`Kind::unmounted`]).
    const HEARS_OF_UNMOUNTS: bool = false;

    /// The volume that is mounted on a directory, as far as it is one of this technology.
    ///
    /// # Errors
    /// When it cannot be known.
    fn owner(target: &Target) -> Result<Option<VolumeId>>;

    /// Whether a volume that no pool has is in use all the same: it has a device, or is mounted in some
    /// mount namespace.
    ///
    /// # Errors
    /// When it cannot be known.
    fn is_in_use(volume: &VolumeId) -> Result<bool>;

    /// The volume, whose lock is held. There is no backend while its pool is missing: then the
    /// volume can be unmounted and nothing else.
    fn world<'a>(
        backend: Option<&'a Self::Backend>,
        volume: VolumeId,
        lock: &'a Guard,
        context: CallContext,
    ) -> Box<dyn World + 'a>;

    /// Completes what is told to people of a volume that was found. Nothing is made or changed.
    ///
    /// # Errors
    /// When something cannot be known.
    fn look(backend: &Self::Backend, mounts: &Mounts, report: &mut VolumeReport) -> Result<()>;

    /// Whether what is mounted on a directory answers now; nobody who only looks asks one that was
    /// stopped.
    ///
    /// # Errors
    /// When it cannot be known.
    fn answers(_target: &Target) -> Result<bool> {
        Ok(true)
    }

    /// Whether what is mounted on a directory is this volume.
    ///
    /// # Errors
    /// When it cannot be known.
    fn shows(target: &Target, mounted: &Mounted, volume: &VolumeReport) -> Result<bool>;

    /// A volume, of this pool or another, was unmounted from a directory, and its lock is held.
    fn unmounted(_backend: &Self::Backend, _volume: &VolumeId, _lock: &Guard) {}

    /// The smallest volume that can hold this file system and be grown from there.
    fn smallest(filesystem: Filesystem) -> Bytes;
}
