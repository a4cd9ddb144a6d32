//! One moment of one volume, as far as decisions need it.

use flexvol_sdk::{Bytes, ErrorClass};
use serde::{Deserialize, Serialize};

/// The objects of one volume. The claim is found by its UID, so one of the same name that was made
/// later is not this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The claim, while it is there.
    pub claim: Option<Claim>,
    /// The persistent volume.
    pub volume: Option<Volume>,
    /// What was ordered of the node.
    pub node_volume: Option<NodeVolume>,
    /// What became of a node that has to act, or had to, if it does not.
    pub away: Option<UnavailableNode>,
    /// Why no volume can be bound to the node that was ordered, as far as that was asked: it is before one is made.
    pub unbindable: Option<String>,
    /// What is said where nothing has come of the NodeVolume for so long that another node may do better, whatever
    /// its own says.
    pub stalled: Option<String>,
    /// What is said where the node has not answered for longer than is usual.
    pub late: Option<String>,
}

/// A node that nothing has been heard of for too long, or that the scheduler chose and that has no room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnavailableNode {
    /// The node.
    pub node: String,
    /// Which, since when, and what to do.
    pub why: String,
    /// Another one is to be chosen, if nothing was ordered yet: Kubernetes misses it too, or it cannot.
    pub lost: bool,
    /// Kubernetes has removed it, as it does with a machine that is there no more.
    pub removed: bool,
}

impl Observed {
    pub(super) fn wish(&self) -> Option<&Wish> {
        self.claim.as_ref().map(|claim| &claim.wish)
    }

    /// What became of the node that has to act: the one that was ordered, or else the one that the scheduler chose.
    /// Of another one, which had to act before, it says nothing.
    pub(super) fn away(&self) -> Option<&UnavailableNode> {
        let node = match (&self.node_volume, self.wish()) {
            (Some(node_volume), _) => &node_volume.node,
            (None, Some(Wish::Storage { node: Some(node) })) => node,
            _ => return None,
        };
        self.away.as_ref().filter(|away| away.node == *node)
    }

    pub(super) fn claim_has_finalizer(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.has_finalizer)
    }

    /// Whether the volume is the claim's, or is about to be: Kubernetes says so in the claim last, and takes
    /// none that is being deleted.
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

/// Which volume a claim has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// None yet.
    None,
    /// It names this one, and Kubernetes does not say that it has it: not yet, or not any more, or its author
    /// wrote the name, and may have written the annotation of a binding too.
    Named,
    /// This one, and Kubernetes says so in the status, which no author of a claim may write.
    This,
    /// Another one, for good.
    Another,
    /// There is more of the claim than was read, so it may have this one.
    Unknown,
}

impl Claim {
    pub(super) fn is_bound(&self) -> bool {
        self.binding == Binding::This
    }

    /// Whether it may ask for more storage than it has.
    pub(super) fn may_expand(&self) -> bool {
        self.is_bound() && !self.deleting
    }

    /// Whether it never needs a volume again.
    pub(super) fn is_served(&self) -> bool {
        self.deleting || matches!(self.binding, Binding::This | Binding::Another)
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// It carries our finalizer.
    pub has_finalizer: bool,
    /// What it wants of us.
    pub wish: Wish,
    /// The size it asks for.
    pub request: Bytes,
    /// The size its status says, once it is bound.
    pub capacity: Bytes,
    /// Which volume it has.
    pub binding: Binding,
    /// It is being deleted.
    pub deleting: bool,
    /// Why its class allows no storage of the size that it asks for or says to have, or no growth if it asks for that.
    pub beyond: Option<String>,
    /// The largest size that its class allows, if it says one.
    pub max_size: Option<Bytes>,
    /// Its status says that kubelet has to grow the file system, to this size.
    pub file_system_resize_pending: Option<Bytes>,
    /// Why its storage did not grow, as its status says.
    pub resize_failure: Option<String>,
}

/// What a claim wants of us.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Nothing: it is bound, or is being deleted.
    Nothing,
    /// Nothing of us: as it stands it is for another provisioner, or for none.
    OtherProvisioner,
    /// Something that cannot be had, and why.
    Refused(String),
    /// Storage, once the scheduler has chosen a node.
    StorageLater,
    /// Storage.
    Storage {
        /// The node that the scheduler chose, where it chooses.
        node: Option<String>,
    },
}

/// What happens to the storage of a volume that is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reclaim {
    /// It is deleted.
    Delete,
    /// It stays.
    Retain,
}

/// A persistent volume of the name that ours would have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Volume {
    /// We made it, and it is of our driver.
    pub ours: bool,
    /// The node that has its storage, as we wrote it there.
    pub node: Option<String>,
    /// It carries our finalizer.
    pub has_finalizer: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// Kubernetes has found its claim gone, and nobody has given it to another one since.
    pub released: bool,
    /// What happens to its storage then.
    pub reclaim: Reclaim,
    /// The size it says.
    pub capacity: Bytes,
}

impl Volume {
    /// Whether a NodeVolume is of another node than the one that has the storage: a leader that was late made the volume
    /// after its NodeVolume had been forgotten, and another was made.
    #[must_use]
    pub fn is_elsewhere(&self, node_volume: &NodeVolume) -> bool {
        self.node
            .as_ref()
            .is_some_and(|node| *node != node_volume.node)
    }
}

/// Whether storage is there, or shall be.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
pub enum StorageState {
    /// It is.
    Present,
    /// It is not.
    Absent,
}

/// How far the persistent volume is for which storage was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Published {
    /// None was made.
    No,
    /// One is about to be made, or was, and nobody has seen it.
    Soon,
    /// One was there: data may be in the storage.
    Seen,
}

/// What was ordered of a node, and what the node answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeVolume {
    /// It is of one of our drivers.
    pub ours: bool,
    /// The node.
    pub node: String,
    /// Whether the storage shall be there.
    pub desired: StorageState,
    /// The size it shall have.
    pub size: Bytes,
    /// The largest that was ever asked for.
    pub max_requested_size: Bytes,
    /// It was ordered with other parameters than the claim's class has now: classes are deleted and made anew.
    pub outdated: bool,
    /// How far its persistent volume is.
    pub published: Published,
    /// What the node found after its last call.
    pub answer: Answer,
    /// It said so of the NodeVolume as it stands, and not of a former generation.
    pub answered: bool,
    /// Why the node's last call failed.
    pub problem: Option<Problem>,
    /// Whether the file system has to grow after the storage.
    pub node_expansion_required: bool,
    /// The size that the node's agent has grown the file system to, where it did: else kubelet does.
    pub file_system_size: Option<Bytes>,
}

impl NodeVolume {
    /// Whether nothing on the node has to grow any more, for a claim of this size.
    pub(super) fn is_expanded(&self, size: Bytes) -> bool {
        !self.node_expansion_required || self.file_system_size.is_some_and(|has| has >= size)
    }

    /// What the node says of its storage that nothing explains, in words for people.
    pub(super) fn implausible_size(&self) -> Option<String> {
        match self.answer {
            Answer::Present(Some(said)) if said > explained(self.max_requested_size) => {
                Some(format!(
                    "node {} says that the storage has {said}, of which at most {} was ordered, so {} counts; look at the driver there",
                    self.node, self.max_requested_size, self.size
                ))
            }
            _ => None,
        }
    }
}

/// What counts of a size that a node says: what was ordered, if nothing explains that there is so much more than the
/// most that ever was.
#[must_use]
pub fn believed(said: Bytes, ordered: Bytes, most: Bytes) -> Bytes {
    if said > explained(most) {
        ordered
    } else {
        said
    }
}

/// Drivers round up: to parts of what is large, or to whole gibibytes.
fn explained(most: Bytes) -> Bytes {
    const LEAST: u64 = 1 << 30;
    Bytes(most.0.saturating_add(LEAST.max(most.0 / 8)))
}

/// What a node found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It has not said yet.
    None,
    /// The storage is there, and has this size, if the driver says sizes.
    Present(Option<Bytes>),
    /// The storage is gone.
    Absent,
}

/// Why a call of a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// What can be done about it.
    pub class: ErrorClass,
    /// The driver's words.
    pub message: String,
    /// It has come so often that another node may do better.
    pub lasts: bool,
}
