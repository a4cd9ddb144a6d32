//! What is known of a volume at one moment: the input of [`decide`](crate::decide::decide).

use crate::mark::Mark;
use flexvol_host::{Image, clock::Moment};
use flexvol_sdk::{Bytes, Filesystem, Result};
use std::{borrow::Borrow, time::Duration};

/// The storage behind a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Asset {
    /// Its size, as far as the storage is concerned.
    pub size: Bytes,
    /// Its mark; a volume without one is not ours.
    pub mark: Option<Mark>,
    /// Its blocks are allocated when they are written and not before.
    pub thin: bool,
    /// Its growth is a promise, which takes no room of the pool.
    pub promised: bool,
}

impl Asset {
    /// Storage with all its blocks.
    #[must_use]
    pub fn new(size: Bytes, mark: Option<Mark>) -> Asset {
        Asset {
            size,
            mark,
            thin: false,
            promised: false,
        }
    }

    /// The same storage, whose blocks are allocated when they are written if it is `thin`; its growth may
    /// then be only a promise.
    #[must_use]
    pub fn with_thin(mut self, thin: bool, promised: bool) -> Asset {
        self.thin = thin;
        self.promised = promised;
        self
    }

    /// Storage whose mark is this text.
    ///
    /// # Errors
    /// As for [`Mark::decode`].
    pub fn marked(size: Bytes, mark: Option<String>) -> Result<Asset> {
        let mark = mark.map(|text| Mark::decode(&text)).transpose()?;
        Ok(Asset::new(size, mark))
    }

    /// An image with all its blocks.
    ///
    /// # Errors
    /// When its size or its mark cannot be read.
    pub fn of_image(image: impl Borrow<Image>) -> Result<Asset> {
        let image = image.borrow();
        // What is less than a sector at its end no loop device shows.
        let size = image.size()?.0;
        Asset::marked(Bytes(size - size % 512), image.mark()?)
    }
}

/// Everything [`decide`](crate::decide::decide) looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The storage; `None` where there is no such volume.
    pub asset: Option<Asset>,
    /// The block device; `None` while there is none.
    pub device: Option<DeviceState>,
    /// The directory the callout is about.
    pub target: TargetState,
    /// A pod has the volume: it is mounted somewhere that is neither the directory of this
    /// callout nor kubelet's own. Looked at only where the goal depends on it.
    pub used_by_pods: bool,
    /// The volume's file system met an error and takes no writes until it is unmounted everywhere. Looked
    /// at only where the goal depends on it.
    pub takes_no_writes: bool,
    /// The kernel refused to grow the file system just now, in this callout. It is as it was.
    pub growth_refused: bool,
}

/// The block device of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceState {
    /// Its size, as the kernel sees it.
    pub size: Bytes,
    /// The kernel refuses an exclusive open: it is mounted or claimed, here or in another mount
    /// namespace. Looked at only where the goal depends on it.
    pub in_use: bool,
    /// What is on it.
    pub content: Content,
}

/// What is on a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// The goal does not depend on it, so nobody looked.
    NotRead,
    /// Proven: every byte that could hold data was read as zero.
    Blank,
    /// The file system that the mark speaks of, measured through a mount of it.
    Ours {
        /// The bytes it spans.
        size: Bytes,
        /// How much of a device this file system may leave unused.
        slack: Bytes,
    },
    /// Something else; the text names it.
    Foreign(&'static str),
    /// The storage lost its end: its device or its file system spans more.
    Truncated {
        /// The bytes it must have had.
        size: Bytes,
    },
    /// The device answered a read with an error.
    Unreadable,
}

/// The directory a callout is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetState {
    /// The callout is about no directory, or it is not there.
    Absent,
    /// A directory with nothing mounted on it and nothing in it.
    Free,
    /// A directory with something in it, which a mount would hide.
    NotEmpty,
    /// Like `Free`, and it is kubelet's own directory for an attached volume, as is another one
    /// on which this volume is mounted. Kubelet unmounts neither of two such mounts: each is a
    /// use of the other's device (`HasMountRefs` in `pkg/volume/util/util.go`).
    Duplicate,
    /// This volume is mounted there.
    Ours {
        /// The mount allows no writing.
        read_only: bool,
    },
    /// This volume is mounted there, but not as it should be: an old kernel makes some mounts in
    /// two steps, and was cut between them. No pod has seen it.
    HalfMade,
    /// Something else is mounted there.
    Other,
}

/// The state a callout asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// There is a volume of at least this size.
    Provisioned {
        /// At least this much.
        size: Bytes,
    },
    /// It is mounted on the directory, with its file system as large as its device where that may be.
    Mounted {
        /// The file system asked for; `None` where the caller leaves it to us.
        filesystem: Option<Filesystem>,
        /// The one a blank volume gets when the caller leaves it to us.
        default: Filesystem,
        /// Growing is left to a later mount while a pod uses the volume.
        offline: bool,
        /// This use must not write.
        read_only: bool,
        /// Who asks.
        requester: Requester,
    },
    /// Its storage has at least this size.
    StorageGrown {
        /// At least this much.
        to: Bytes,
    },
    /// Storage and file system have at least this size.
    Grown {
        /// At least this much.
        to: Bytes,
        /// Growing is refused while a pod uses the volume.
        offline: bool,
        /// The use that asks must not write, so it cannot grow the volume.
        read_only: bool,
    },
    /// Nothing of it is mounted on the directory.
    Unmounted,
    /// Nobody can use it any more; one that may hold data is kept for those who take that back.
    Deleted {
        /// When it is asked for.
        now: Moment,
        /// How long it is kept; `None` while that is not known.
        keep: Option<Duration>,
    },
    /// Deleted and kept, it is a volume again.
    Restored,
    /// There is no such volume, whether or not it was to be kept.
    Gone,
}

impl Goal {
    /// Whether it depends on what pods use the volume: this driver grows it only while none does.
    pub(crate) fn grows_offline(&self) -> bool {
        matches!(
            self,
            Goal::Mounted { offline: true, .. } | Goal::Grown { offline: true, .. }
        )
    }

    /// Whether nobody may use the volume for this.
    #[must_use]
    pub fn ends_use(&self) -> bool {
        matches!(self, Goal::Deleted { .. } | Goal::Gone)
    }
}

/// On whose behalf a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// Nobody's in particular: the pool is open to all.
    Anybody,
    /// A pod's that the caller does not name yet: the volume is mounted on the node's own directory.
    Node,
    /// A pod in this namespace.
    Namespace(String),
    /// The caller named no namespace.
    Unnamed,
}
