//! Observed state of one volume at one moment, reduced to what decisions need.

use flexvol_sdk::{Bytes, ErrorClass};
use serde::{Deserialize, Serialize};

/// The objects of one volume. The claim is identified by its UID, so a later one of the same name is another claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The claim, if it exists.
    pub claim: Option<Claim>,
    /// The persistent volume.
    pub volume: Option<Volume>,
    /// The NodeVolume: what was requested of the node, and its answer.
    pub node_volume: Option<NodeVolume>,
    /// Why a node that has to act, or had to, is unavailable.
    pub unavailable: Option<UnavailableNode>,
    /// Why no volume can be bound to the NodeVolume's node. It is checked before a volume is created.
    pub unbindable: Option<String>,
    /// The message if the NodeVolume has made no progress for so long that another node may do better, whatever problem
    /// the NodeVolume itself reports.
    pub stalled: Option<String>,
    /// The message if the node has not answered for longer than usual.
    pub late: Option<String>,
}

/// A node that is unavailable: it sent no heartbeat for too long, or was selected and cannot have the volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnavailableNode {
    /// The node's name.
    pub node: String,
    /// The message: which node, since when, and what to do.
    pub why: String,
    /// Whether another node is to be selected if nothing was ordered yet: Kubernetes misses the node too, or the
    /// node cannot have the volume.
    pub may_reschedule: bool,
    /// Whether Kubernetes has removed the node, as it does if the machine is gone.
    pub removed: bool,
}

impl Observed {
    pub(super) fn wish(&self) -> Option<&Wish> {
        self.claim.as_ref().map(|claim| &claim.wish)
    }

    /// Why the node that has to act is unavailable: the NodeVolume's node, or else the one that the scheduler selected.
    /// Returns `None` if `unavailable` is about a node that had to act before.
    pub(super) fn target_unavailable(&self) -> Option<&UnavailableNode> {
        let node = match (&self.node_volume, self.wish()) {
            (Some(node_volume), _) => &node_volume.node,
            (None, Some(Wish::Storage { node: Some(node) })) => node,
            _ => return None,
        };
        self.unavailable
            .as_ref()
            .filter(|known| known.node == *node)
    }

    /// Why no volume can be made of the NodeVolume's storage.
    pub(super) fn unbindable(&self) -> Option<&String> {
        let answer = self.node_volume.as_ref();
        let rejected = || answer.and_then(|node_volume| node_volume.rejected.as_ref());
        self.unbindable.as_ref().or_else(rejected)
    }

    pub(super) fn claim_has_finalizer(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.has_finalizer)
    }

    /// Whether the volume is the claim's, or is about to be. Kubernetes writes the claim's status last when it binds,
    /// and binds no volume that is being deleted.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        let stays = || self.volume.as_ref().is_some_and(|volume| !volume.deleting);
        self.claim
            .as_ref()
            .is_some_and(|claim| match claim.binding {
                Binding::This | Binding::Unknown => true,
                Binding::Named => self.volume.is_some(),
                Binding::None => stays(),
                Binding::Another => false,
            })
    }
}

/// The volume to which a claim is bound, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// No volume yet.
    None,
    /// The claim names this volume, but its phase is not `Bound`: not yet, or not any more, or the claim's author
    /// wrote the name, and maybe the binding annotation too.
    Named,
    /// This volume: the phase in the status is `Bound`, and no author of a claim may write the status.
    This,
    /// Another volume, permanently.
    Another,
    /// The claim was read in part, so it may be bound to this volume.
    Unknown,
}

impl Claim {
    pub(super) fn is_bound(&self) -> bool {
        self.binding == Binding::This
    }

    /// Whether a size has to be allocated in the claim's status before it is requested of a node. Quota counts the
    /// larger of request and allocated size (`pkg/quota/v1/evaluator/core/persistent_volume_claims.go`), and its author
    /// may lower the request down to the capacity at any time. An API server that drops allocated sizes lets nobody lower
    /// a request.
    pub(super) fn lacks_allocation(&self, size: Bytes) -> bool {
        size > self.allocated.max(self.capacity) && !self.drops_allocated
    }

    /// What was ordered of the node and may not be allocated. A claim that has got a volume of another one has nothing
    /// allocated. Of any other claim, whatever is ordered was allocated before, and is lowered to measured sizes alone.
    pub(super) fn unallocated(&self, node_volume: &NodeVolume) -> Bytes {
        if self.allocated < self.capacity {
            node_volume.max_requested_size
        } else {
            node_volume.size
        }
    }

    /// Whether the claim may request more storage than it has.
    pub(super) fn may_expand(&self) -> bool {
        self.is_bound() && !self.deleting
    }

    /// Whether the claim never needs a volume again.
    pub(super) fn needs_no_volume(&self) -> bool {
        self.deleting || matches!(self.binding, Binding::This | Binding::Another)
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Whether the claim carries our finalizer.
    pub has_finalizer: bool,
    /// What it wants of us.
    pub wish: Wish,
    /// The requested size.
    pub request: Bytes,
    /// The capacity in its status, once it is bound.
    pub capacity: Bytes,
    /// The allocated size in its status, or 0: what was ordered for it, and may be reached whatever it requests by now.
    pub allocated: Bytes,
    /// Whether the API server drops allocated sizes, as it does without `RecoverVolumeExpansionFailure`.
    pub drops_allocated: bool,
    /// The volume to which it is bound.
    pub binding: Binding,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Why its class forbids the requested size or the capacity in its status, or, if it requests growth, forbids that.
    pub forbidden: Option<String>,
    /// The largest size that its class allows, if the class limits sizes.
    pub max_size: Option<Bytes>,
    /// The size to which kubelet has to grow the file system, according to the claim's status.
    pub file_system_resize_pending: Option<Bytes>,
    /// Why its storage did not grow, according to its status.
    pub resize_failure: Option<String>,
}

/// What a claim wants of us.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Nothing: it is bound, or is being deleted.
    Nothing,
    /// Nothing of us: its provisioner is another one, or none.
    OtherProvisioner,
    /// Something that is impossible, with the reason.
    Refused(String),
    /// Storage, once the scheduler has selected a node.
    StorageLater,
    /// Storage.
    Storage {
        /// The node that the scheduler selected, with delayed binding.
        node: Option<String>,
    },
}

/// The reclaim policy: what happens to the storage of a released volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reclaim {
    /// It is deleted.
    Delete,
    /// It is kept.
    Retain,
}

/// The persistent volume whose name is derived from the claim's UID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Volume {
    /// Whether we created it and it is of our driver.
    pub ours: bool,
    /// The node that has its storage, by the annotation that we wrote.
    pub node: Option<String>,
    /// Whether it carries our finalizer.
    pub has_finalizer: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether Kubernetes has found its claim gone, and it was not given to another claim since.
    pub released: bool,
    /// Its reclaim policy.
    pub reclaim: Reclaim,
    /// Its capacity in the spec.
    pub capacity: Bytes,
}

impl Volume {
    /// Whether the NodeVolume is of another node than the one that has the storage. That happens if a late leader
    /// created the volume after its NodeVolume had been deleted, and another NodeVolume was created.
    #[must_use]
    pub fn is_elsewhere(&self, node_volume: &NodeVolume) -> bool {
        self.node
            .as_ref()
            .is_some_and(|node| *node != node_volume.node)
    }
}

/// Whether storage exists, or shall exist.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
pub enum StorageState {
    /// It exists.
    Present,
    /// It does not exist.
    Absent,
}

/// Progress of the persistent volume for which storage was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Published {
    /// None was made.
    No,
    /// One is about to be created, or was created and not seen yet.
    Soon,
    /// One was seen: the storage may hold data.
    Seen,
}

/// Requests to a node for one volume, and the node's answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeVolume {
    /// Whether its driver is one of ours.
    pub ours: bool,
    /// The node's name.
    pub node: String,
    /// The requested state of the storage.
    pub desired: StorageState,
    /// The requested size.
    pub size: Bytes,
    /// The largest size that was ever requested.
    pub max_requested_size: Bytes,
    /// Whether it was ordered with other parameters than those of the claim's class, which may have been recreated.
    pub outdated: bool,
    /// Progress of its persistent volume.
    pub published: Published,
    /// The node's finding after its last call.
    pub answer: Answer,
    /// Why no persistent volume can have the node's answer.
    pub rejected: Option<String>,
    /// Whether the answer is for the current generation.
    pub answered: bool,
    /// Why the node's last call failed.
    pub problem: Option<Problem>,
    /// Whether the file system has to grow after the storage.
    pub node_expansion_required: bool,
    /// The size to which the node's agent has grown the file system, if it has. Otherwise kubelet grows it.
    pub file_system_size: Option<Bytes>,
}

impl NodeVolume {
    /// Whether nothing on the node has to grow any more for a claim of this size.
    pub(super) fn is_expanded(&self, size: Bytes) -> bool {
        !self.node_expansion_required || self.file_system_size.is_some_and(|has| has >= size)
    }

    /// Whether the node may be growing the storage to the ordered size now: it has not answered for the current
    /// generation, or a call was given up.
    #[must_use]
    pub fn may_be_growing(&self) -> bool {
        let problem = self.problem.as_ref();
        !self.answered || problem.is_some_and(|problem| problem.class == ErrorClass::Uncertain)
    }

    /// Whether the node may still be growing the storage beyond this size: more was ordered once, and the node has not
    /// measured the storage since that was taken back.
    pub(super) fn may_exceed(&self, size: Bytes) -> bool {
        self.max_requested_size > size && (!self.answered || self.problem.is_some())
    }

    /// A message for people if the node reports a size that rounding does not explain.
    pub(super) fn implausible_size(&self) -> Option<String> {
        match self.answer {
            Answer::Present(Some(said)) if said > largest_plausible(self.max_requested_size) => {
                Some(format!(
                    "node {} says that the storage has {said}, of which at most {} was ordered, so {} counts; look at the driver there",
                    self.node, self.max_requested_size, self.size
                ))
            }
            _ => None,
        }
    }
}

/// Returns the size that counts of one that a node reports: the ordered size, if the reported one exceeds the largest
/// that was ever ordered by more than rounding explains.
#[must_use]
pub fn believed(said: Bytes, ordered: Bytes, most: Bytes) -> Bytes {
    if said > largest_plausible(most) {
        ordered
    } else {
        said
    }
}

/// The largest plausible size. Drivers round up to a fraction of a large size, or to whole gibibytes.
fn largest_plausible(most: Bytes) -> Bytes {
    const LEAST: u64 = 1 << 30;
    Bytes(most.0.saturating_add(LEAST.max(most.0 / 8)))
}

/// A node's finding about the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The node has not answered yet.
    None,
    /// The storage exists, with its size if the driver reports sizes.
    Present(Option<Bytes>),
    /// The storage is gone.
    Absent,
}

/// Why a call to a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// What can be done about it.
    pub class: ErrorClass,
    /// The driver's message.
    pub message: String,
    /// Whether it has occurred so often that another node may do better.
    pub is_persistent: bool,
}
