//! Decides the next step for one volume: a pure function from observed state to one step.
//!
//! Users, Kubernetes' own controllers, kubelet and another leader change the same objects, so a plan of several steps
//! would be stale after its first. Each step is conditioned on the observed resource versions, and the next step is
//! decided anew. Recovery after a crash is therefore the ordinary path.
//!
//! The crate is separate because it is pure, and so that its model, which runs for a minute, can be optimised with it.
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

/// Annotation of a persistent volume that names its provisioner (`pkg/controller/volume/persistentvolume/util`).
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

const TOO_LARGE: &str = "the claim is too large to be understood, so it and its volume are left as they are; take finalizers and conditions from it";

/// One write to the API server, or none. It is conditioned on the observed resource version, and may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Does nothing until something changes.
    NoOp,
    /// Records an event, and does nothing else until something changes.
    RecordEvent(String),
    /// Does nothing, and records an event that says why the claim cannot have what it requests.
    Refuse(String),
    /// Does nothing, and records an event that tells the administrator what blocks progress.
    Blocked(String),
    /// Adds our finalizer to the claim, so that the claim cannot go while its storage is made.
    AddClaimFinalizer,
    /// Creates the NodeVolume for the given node, or else for any node with enough capacity.
    CreateNodeVolume {
        /// The node that the scheduler chose.
        node: Option<String>,
    },
    /// Recreates a lost NodeVolume from what the persistent volume says of its storage.
    RecreateNodeVolume {
        /// The desired state of the storage.
        state: StorageState,
        /// The size that the storage has or may have, and no more than the storage class allows.
        size: Bytes,
        /// The largest size that may have been requested for it.
        most: Bytes,
    },
    /// Creates the persistent volume.
    CreatePersistentVolume,
    /// Records in the NodeVolume that a persistent volume is about to be created.
    MarkPublishing,
    /// Records in the NodeVolume that a persistent volume was seen.
    MarkPublished,
    /// Removes our finalizer from the claim.
    RemoveClaimFinalizer,
    /// Asks the scheduler for another node: the selected one cannot have the volume, or is gone.
    Reschedule,
    /// Requests in the NodeVolume that the storage be deleted.
    RequestDeletion,
    /// Deletes the NodeVolume.
    DeleteNodeVolume,
    /// Deletes the persistent volume.
    DeletePersistentVolume,
    /// Removes our finalizer from the persistent volume.
    RemovePersistentVolumeFinalizer,
    /// Sets the allocated size in the claim's status, which quota counts, before the size is requested of the node.
    SetAllocatedResources(Bytes),
    /// Requests another size in the NodeVolume. Storage never shrinks below its actual size.
    RequestSize(Bytes),
    /// Sets the persistent volume's capacity to the measured size of its storage.
    SetPersistentVolumeCapacity(Bytes),
    /// Sets the capacity in the claim's status. Nothing on the node has to grow any more for this size.
    SetClaimCapacity(Bytes),
    /// Sets the condition `FileSystemResizePending` in the claim's status, so that kubelet grows the file system.
    SetFileSystemResizePending(Bytes),
    /// Sets the condition in the claim's status that says why its storage does not grow.
    SetResizeFailure(String),
    /// Removes that condition: the storage has grown, or the claim requests no growth any more.
    ClearResizeFailure,
}

/// Returns the next step.
#[must_use]
pub fn decide(observed: &Observed) -> Step {
    if observed
        .node_volume
        .as_ref()
        .is_some_and(|node_volume| !node_volume.ours)
    {
        return leave_alone(observed);
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
        Some(volume) => delete::resolve_misplaced(observed, volume)
            .or_else(|| delete::next_deletion(observed, volume))
            .or_else(|| provision::finish_binding(observed))
            .unwrap_or_else(|| expand::next(observed, volume)),
        None => provision::next_without_volume(observed),
    }
}

/// The step for a NodeVolume whose driver this controller does not serve: another controller serves it, or an earlier
/// configuration of this one did. This controller cannot know what became of its storage.
fn leave_alone(observed: &Observed) -> Step {
    let needs_no_volume = observed.claim.as_ref().is_none_or(Claim::needs_no_volume);
    if needs_no_volume && !observed.claim_has_finalizer() {
        return Step::NoOp;
    }
    Step::Blocked(
        "storage was ordered for this claim of a driver that this controller does not serve, so it is left alone; unless another controller serves that driver, give it to this one as --driver again"
            .to_owned(),
    )
}

/// The step for a claim that wants nothing of us, while the volume of its name is not ours, or not any more. The
/// claim's finalizer is removed where it would be for a volume of ours, and where no storage was ordered.
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
