//! What to do next for one volume: a pure function from what was observed to one step.
//!
//! A plan of several steps would be stale after its first, because users, Kubernetes' own
//! controllers, kubelet and another leader change the same objects. With one step at a time, each
//! made only if the objects are still as observed, going on after a crash is the same as going on.
//!
//! It is a crate of its own because it is pure, and its model, which computes for a minute, is optimised with it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache;
mod delete;
mod expand;
mod observed;
mod provision;

pub use cache::follows_cache;
pub use observed::{
    Answer, Binding, Claim, NodeVolume, Observed, Problem, Published, Reclaim, StorageState,
    UnavailableNode, Volume, Wish, believed,
};

use flexvol_sdk::Bytes;

/// On a persistent volume: who made it (`pkg/controller/volume/persistentvolume/util`).
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

const TOO_LARGE: &str = "the claim is too large to be understood, so it and its volume are left as they are; take finalizers and conditions from it";

/// One write to the API server, or none. Every step is made with the resource version that was
/// observed as its condition, and may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing, until something changes.
    NoOp,
    /// Nothing, until something changes; an event tells of it.
    RecordEvent(String),
    /// Nothing, but an event says why the claim cannot have what it asks for.
    Refuse(String),
    /// Nothing, but an event says what hinders, to whoever looks after the volume.
    Blocked(String),
    /// Puts our finalizer on the claim, so that it cannot go while storage is made for it.
    AddClaimFinalizer,
    /// Makes the NodeVolume, for storage on the node that is named, or else on one with room.
    CreateNodeVolume {
        /// The node that the scheduler chose.
        node: Option<String>,
    },
    /// Makes the NodeVolume anew, of what the volume says of its storage.
    RecreateNodeVolume {
        /// Whether the storage shall be there.
        state: StorageState,
        /// What it has, as far as that is known, and no more than its class allows.
        size: Bytes,
    },
    /// Creates the persistent volume.
    CreatePersistentVolume,
    /// Notes in the NodeVolume that a persistent volume is about to be made.
    MarkPublishing,
    /// Notes in the NodeVolume that a persistent volume was there.
    MarkPublished,
    /// Takes our finalizer from the claim.
    RemoveClaimFinalizer,
    /// Asks the scheduler for another node: the chosen one has no room, or is gone.
    Reschedule,
    /// Asks in the NodeVolume that the storage be deleted.
    RequestDeletion,
    /// Deletes the NodeVolume.
    DeleteNodeVolume,
    /// Deletes the persistent volume.
    DeletePersistentVolume,
    /// Takes our finalizer from the persistent volume.
    RemovePersistentVolumeFinalizer,
    /// Asks in the NodeVolume for another size; what the storage has is never taken from it.
    RequestSize(Bytes),
    /// Writes into the persistent volume the size that its storage was measured to have reached.
    SetPersistentVolumeCapacity(Bytes),
    /// Writes into the claim's status the size that it has: nothing on a node has to do anything more for it.
    SetClaimCapacity(Bytes),
    /// Writes the condition `FileSystemResizePending` into the claim's status, so that kubelet grows the file system.
    SetFileSystemResizePending(Bytes),
    /// Writes into the claim's status why its storage does not grow.
    SetResizeFailure(String),
    /// Takes that from the claim's status: the storage has grown, or nothing is asked any more.
    ClearResizeFailure,
}

/// The next step.
#[must_use]
pub fn decide(observed: &Observed) -> Step {
    if observed
        .node_volume
        .as_ref()
        .is_some_and(|node_volume| !node_volume.ours)
    {
        return left_alone(observed);
    }
    let binding = observed.claim.as_ref().map(|claim| claim.binding);
    if binding == Some(Binding::Unknown) {
        return Step::Blocked(TOO_LARGE.to_owned());
    }
    match &observed.volume {
        Some(volume) if !volume.ours => match observed.wish() {
            Some(Wish::Storage { .. }) => Step::Refuse(
                "a persistent volume of the name that this claim's would have is somebody else's; delete or rename it"
                    .to_owned(),
            ),
            Some(Wish::Nothing) if observed.claim_has_finalizer() => release(observed),
            _ => Step::NoOp,
        },
        Some(volume) => delete::misplaced(observed, volume)
            .or_else(|| delete::next_deletion(observed, volume))
            .or_else(|| provision::finish_binding(observed))
            .unwrap_or_else(|| expand::next(observed, volume)),
        None => provision::next_without_volume(observed),
    }
}

/// The NodeVolume is of a driver that is not served here: of another controller, or of a former configuration of
/// this one. Nobody here can tell what became of its storage.
fn left_alone(observed: &Observed) -> Step {
    let is_served = observed.claim.as_ref().is_none_or(Claim::is_served);
    if is_served && !observed.claim_has_finalizer() {
        return Step::NoOp;
    }
    Step::Blocked(
        "storage was ordered for this claim of a driver that this controller does not serve, so it is left alone; unless another controller serves that driver, give it to this one as --driver again"
            .to_owned(),
    )
}

/// The volume of the claim's name is not ours, or not any more, and the claim wants nothing of us. It is let go
/// of where that is done with volumes of ours, and where no storage was ordered.
fn release(observed: &Observed) -> Step {
    let is_bound = observed.claim.as_ref().is_some_and(Claim::is_bound);
    match &observed.node_volume {
        None => Step::RemoveClaimFinalizer,
        Some(node_volume) if node_volume.published > Published::No && is_bound => {
            Step::RemoveClaimFinalizer
        }
        Some(_) => Step::Blocked(format!(
            "the claim cannot go: storage was ordered for it, and the persistent volume of its name is not this controller's, by its annotation {PROVISIONED_BY} or because its driver is not served; mend that, or delete the volume"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{expand::tests::observed, *};

    #[test]
    fn a_claim_whose_volume_is_not_ours_any_more_is_let_go_of_or_people_are_told() {
        let strange = |change: &dyn Fn(&mut Observed)| {
            let mut observed = observed(10, 10);
            observed.volume.as_mut().unwrap().ours = false;
            observed.claim.as_mut().unwrap().has_finalizer = true;
            change(&mut observed);
            decide(&observed)
        };
        assert_eq!(strange(&|_| {}), Step::RemoveClaimFinalizer);
        let unbound = |observed: &mut Observed| {
            observed.claim.as_mut().unwrap().binding = Binding::None;
        };
        assert!(matches!(strange(&unbound), Step::Blocked(_)));
        let unpublished = |observed: &mut Observed| {
            observed.node_volume.as_mut().unwrap().published = Published::No;
        };
        assert!(matches!(strange(&unpublished), Step::Blocked(_)));
        let unordered = |observed: &mut Observed| {
            unbound(observed);
            observed.node_volume = None;
        };
        assert_eq!(strange(&unordered), Step::RemoveClaimFinalizer);
        let free = |observed: &mut Observed| observed.claim.as_mut().unwrap().has_finalizer = false;
        assert_eq!(strange(&free), Step::NoOp);
    }

    #[test]
    fn a_claim_that_is_too_large_to_be_understood_is_told_and_keeps_what_it_may_have() {
        let mut observed = observed(20, 10);
        observed.claim.as_mut().unwrap().binding = Binding::Unknown;
        let released = observed.volume.clone().map(|mut volume| {
            volume.released = true;
            volume
        });
        for volume in [observed.volume.clone(), released, None] {
            observed.volume = volume;
            for wanted in [StorageState::Present, StorageState::Absent] {
                observed.node_volume.as_mut().unwrap().desired = wanted;
                assert_eq!(decide(&observed), Step::Blocked(TOO_LARGE.to_owned()));
                assert!(observed.is_claimed(), "its storage is not deleted");
            }
        }
    }

    #[test]
    fn node_volumes_of_drivers_that_are_not_served_are_left_alone_and_told() {
        let alone = |change: &dyn Fn(&mut Observed)| {
            let mut observed = observed(10, 10);
            observed.node_volume.as_mut().unwrap().ours = false;
            change(&mut observed);
            decide(&observed)
        };
        assert_eq!(alone(&|_| {}), Step::NoOp, "it has what it wants");
        assert_eq!(alone(&|observed| observed.claim = None), Step::NoOp);
        for claim in [
            (true, Binding::This, Wish::Nothing),
            (false, Binding::None, Wish::OtherProvisioner),
            (false, Binding::None, Wish::Storage { node: None }),
        ] {
            let step = alone(&|observed| {
                observed.volume = None;
                let found = observed.claim.as_mut().unwrap();
                (found.has_finalizer, found.binding, found.wish) = claim.clone();
            });
            assert!(matches!(step, Step::Blocked(_)), "{claim:?}: {step:?}");
        }
    }
}
