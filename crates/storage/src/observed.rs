//! The observed state of a volume: the input of [`decide`](crate::decide::decide).

use crate::mark::Mark;
use flexvol_host::{Image, clock::Moment};
use flexvol_sdk::{Bytes, Filesystem, Result, VolumeName};
use std::{borrow::Borrow, time::Duration};

/// The storage behind a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Asset {
    /// The size of the storage.
    pub size: Bytes,
    /// The mark; a volume without one is not this driver's.
    pub mark: Option<Mark>,
    /// Whether blocks are allocated only when they are written.
    pub thin: bool,
    /// Whether growth is only promised, and takes no space of the pool.
    pub promised: bool,
}

impl Asset {
    /// Makes fully allocated storage.
    #[must_use]
    pub fn new(size: Bytes, mark: Option<Mark>) -> Asset {
        Asset {
            size,
            mark,
            thin: false,
            promised: false,
        }
    }

    /// Sets whether the storage is `thin`, that is, allocated when it is written; its growth may then be only
    /// `promised`.
    #[must_use]
    pub fn with_thin(mut self, thin: bool, promised: bool) -> Asset {
        self.thin = thin;
        self.promised = promised;
        self
    }

    /// Makes fully allocated storage with a mark in text form.
    ///
    /// # Errors
    /// As for [`Mark::decode`].
    pub fn marked(size: Bytes, mark: Option<String>) -> Result<Asset> {
        let mark = mark.map(|text| Mark::decode(&text)).transpose()?;
        Ok(Asset::new(size, mark))
    }

    /// Makes the storage of a fully allocated image.
    ///
    /// # Errors
    /// When its size or its mark cannot be read.
    pub fn of_image(image: impl Borrow<Image>) -> Result<Asset> {
        let image = image.borrow();
        // A loop device does not show a partial sector at the end.
        let size = image.size()?.0;
        Asset::marked(Bytes(size - size % 512), image.mark()?)
    }
}

/// The input of [`decide`](crate::decide::decide).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The storage; `None` if there is no such volume.
    pub asset: Option<Asset>,
    /// The block device; `None` if there is none.
    pub device: Option<DeviceState>,
    /// The directory that the callout is about.
    pub target: TargetState,
    /// Whether a pod has the volume: it is mounted somewhere else than on the callout's directory and kubelet's
    /// own. Looked at only if the goal depends on it.
    pub used_by_pods: bool,
    /// Whether the volume's file system met an error and takes no writes until it is unmounted everywhere.
    /// Looked at only if the goal depends on it.
    pub takes_no_writes: bool,
    /// Whether the kernel refused to grow the file system in this callout. The file system is unchanged then.
    pub growth_refused: bool,
}

/// The block device of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceState {
    /// The size that the kernel reports.
    pub size: Bytes,
    /// Whether the kernel refuses an exclusive open, because the device is mounted or claimed in any mount
    /// namespace. Looked at only if the goal depends on it.
    pub in_use: bool,
    /// The content of the device.
    pub content: Content,
}

/// The content of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Not read, because the goal does not depend on it.
    NotRead,
    /// Proven blank: every byte that could hold data was read as zero.
    Blank,
    /// The file system that the mark names, measured through a mount.
    Ours {
        /// The bytes that it spans.
        size: Bytes,
        /// The most that this file system may leave unused at the end of a device.
        slack: Bytes,
    },
    /// Something else, named by the text.
    Foreign(&'static str),
    /// The storage lost its end: its device or its file system is larger.
    Truncated {
        /// The size that it must have had.
        size: Bytes,
    },
    /// The device answered a read with an error.
    Unreadable,
}

/// The state of a callout's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetState {
    /// The callout has no directory, or the directory does not exist.
    Absent,
    /// An empty directory without a mount.
    Free,
    /// A directory with files, which a mount would hide.
    NotEmpty,
    /// Like `Free`, but both this directory and another one on which this volume is mounted are kubelet's own,
    /// for attached volumes. Kubelet never unmounts either of two such mounts, because each counts as a use of
    /// the other's device (`HasMountRefs` in `pkg/volume/util/util.go`).
    Duplicate,
    /// This volume is mounted there.
    Ours {
        /// Whether the mount is read-only.
        read_only: bool,
    },
    /// This volume is mounted there incompletely: old kernels need two steps for some mounts, and the driver
    /// was interrupted between them. No pod has seen it.
    HalfMade,
    /// Something else is mounted there.
    Other,
}

/// The state that a callout requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// A volume of at least this size exists.
    Provisioned {
        /// The smallest acceptable size.
        size: Bytes,
    },
    /// The volume is mounted on the directory, and its file system spans its device if that is allowed.
    Mounted {
        /// The requested file system; `None` if the caller has no preference.
        filesystem: Option<Filesystem>,
        /// The file system for a blank volume if the caller has no preference.
        default: Filesystem,
        /// Whether growth is postponed while a pod uses the volume.
        offline: bool,
        /// Whether this use must not write.
        read_only: bool,
        /// On whose behalf the volume is mounted.
        requester: Requester,
    },
    /// The storage has at least this size.
    StorageGrown {
        /// The smallest acceptable size.
        to: Bytes,
    },
    /// Storage and file system have at least this size.
    Grown {
        /// The smallest acceptable size.
        to: Bytes,
        /// Whether growth is refused while a pod uses the volume.
        offline: bool,
        /// Whether the requesting use must not write and so cannot grow the volume.
        read_only: bool,
    },
    /// The volume is not mounted on the directory.
    Unmounted,
    /// Nobody can use the volume any more; if it may hold data, it is kept for `undelete`.
    Deleted {
        /// The name under which the caller knows it; `None` if the caller gave only its handle.
        name: Option<VolumeName>,
        /// The time of the request.
        now: Moment,
        /// How long it is kept; `None` if unknown.
        keep: Option<Duration>,
    },
    /// A deleted and kept volume is usable again.
    Restored,
    /// The volume does not exist, whether or not it was to be kept.
    Gone,
}

impl Goal {
    /// Whether it matters for this goal which pods use the volume: growth needs it unused.
    pub(crate) fn grows_offline(&self) -> bool {
        matches!(
            self,
            Goal::Mounted { offline: true, .. } | Goal::Grown { offline: true, .. }
        )
    }

    /// Whether nobody may use the volume while this goal is reached.
    #[must_use]
    pub fn ends_use(&self) -> bool {
        matches!(self, Goal::Deleted { .. } | Goal::Gone)
    }
}

/// On whose behalf a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// No namespace in particular: the pool is open to all.
    Anybody,
    /// A pod that the caller does not name yet: the volume is mounted on kubelet's own directory.
    Node,
    /// A pod in this namespace.
    Namespace(String),
    /// A caller that named no namespace.
    Unnamed,
}
