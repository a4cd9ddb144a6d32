//! From a claim to a persistent volume.
//!
//! What authors of claims may write proves nothing: the name of a volume, the annotation of a binding,
//! finalizers, and, in effect, the phase `Lost`. So storage is kept for data only when the persistent volume was
//! seen, or Kubernetes says `Bound`.

#[cfg(test)]
mod tests;

use super::{
    Answer, Binding, Claim, NodeVolume, Observed, Published, Step, StorageState, UnavailableNode,
    Wish,
};
use flexvol_sdk::ErrorClass;

/// There is no persistent volume yet, or no more.
pub(super) fn next_without_volume(observed: &Observed) -> Step {
    let held = observed.claim_has_finalizer();
    let Some(node_volume) = &observed.node_volume else {
        return next_without_node_volume(observed);
    };
    let claim = observed.claim.as_ref();
    let names_this = |claim: &Claim| matches!(claim.binding, Binding::This | Binding::Named);
    let is_removed = observed.away().is_some_and(|away| away.removed);
    match (node_volume.desired, node_volume.answer) {
        (StorageState::Absent, Answer::Absent) => Step::DeleteNodeVolume,
        (StorageState::Absent, _) if is_removed && node_volume.published != Published::Seen => {
            Step::DeleteNodeVolume
        }
        (StorageState::Absent, _) => wait_for_deletion(observed, node_volume),
        // It was made anew of what its volume said, and nothing was found since. Where that was done late volume and
        // storage had gone already; if it was not, and people took both away by force, they know of the storage, and it
        // stays.
        (StorageState::Present, Answer::None)
            if node_volume.published == Published::Seen
                && claim.is_none_or(|claim| claim.deleting && !claim.is_bound())
                && is_missing(node_volume) =>
        {
            Step::DeleteNodeVolume
        }
        (StorageState::Present, _)
            if node_volume.published == Published::Seen && claim.is_none_or(names_this) =>
        {
            // Whoever took the volume away may have wanted to keep its data.
            Step::Blocked(
                "the persistent volume was removed by force, and its storage may hold data: it stays until its NodeVolume says state: Absent"
                    .to_owned(),
            )
        }
        // It is bound to a volume that is gone before a leader saw it, or whose NodeVolume somebody made anew.
        (StorageState::Present, _) if claim.is_some_and(Claim::is_bound) => Step::MarkPublished,
        // It was never anybody's, and the machine that may have it is gone. If it is not, it is told first.
        (StorageState::Present, _) if is_removed && node_volume.published != Published::Seen => {
            Step::RequestDeletion
        }
        // A claim that Kubernetes has bound to nothing, or to another volume, was never bound to this one.
        (StorageState::Present, answer) => match observed.wish() {
            // A late leader may make the volume at any moment.
            Some(wish @ (Wish::Storage { .. } | Wish::StorageLater | Wish::Refused(_)))
                if node_volume.published > Published::No =>
            {
                match (answer, &node_volume.problem) {
                    _ if !held => Step::AddClaimFinalizer,
                    (Answer::Present(_), _) => match (wish, &observed.unbindable) {
                        (Wish::Refused(why), _) => Step::Refuse(why.clone()),
                        (_, Some(why)) => Step::Blocked(why.clone()),
                        _ => Step::CreatePersistentVolume,
                    },
                    (_, None) => waiting(observed, node_volume),
                    // It is not there any more, and nobody has used it.
                    (_, Some(_)) => Step::RequestDeletion,
                }
            }
            Some(Wish::OtherProvisioner) if node_volume.published > Published::No => Step::NoOp,
            Some(Wish::Storage { .. }) if node_volume.outdated => Step::RequestDeletion,
            Some(Wish::Storage { node: Some(node) }) if *node != node_volume.node => {
                Step::RequestDeletion
            }
            Some(Wish::Storage { .. }) if !held => Step::AddClaimFinalizer,
            Some(Wish::Storage { node }) => match answer {
                Answer::Present(size)
                    if size.is_none_or(|size| size >= node_volume.size)
                        && observed.unbindable.is_none() =>
                {
                    // Before the volume is there: from now on storage is not taken from a claim that wants it.
                    Step::MarkPublishing
                }
                _ if !gives_up(observed, node_volume) => waiting(observed, node_volume),
                // The scheduler has to forget the node before it can choose another.
                _ if node.is_some() => Step::Reschedule,
                _ => Step::RequestDeletion,
            },
            _ => Step::RequestDeletion,
        },
    }
}

/// Whether the node has said again and again of the NodeVolume as it stands that the driver cannot find the storage.
fn is_missing(node_volume: &NodeVolume) -> bool {
    let problem = node_volume.problem.as_ref();
    node_volume.answered && problem.is_some_and(|problem| problem.lasts)
}

/// Nothing was ordered.
fn next_without_node_volume(observed: &Observed) -> Step {
    let held = observed.claim_has_finalizer();
    let binding = observed.claim.as_ref().map(|claim| claim.binding);
    match observed.wish() {
        Some(Wish::Refused(why)) => Step::Refuse(why.clone()),
        // Where data may have been, an empty volume in their place would hide that they are gone.
        Some(Wish::Storage { .. } | Wish::StorageLater) if binding == Some(Binding::Named) => {
            if held {
                return Step::RemoveClaimFinalizer;
            }
            Step::Refuse(
                "the claim says the name of a persistent volume that is not there, so none is made for it; make the claim anew"
                    .to_owned(),
            )
        }
        Some(Wish::Storage { node: Some(_) }) if observed.away().is_some() => reschedule(observed),
        Some(Wish::Storage { .. }) if !held => Step::AddClaimFinalizer,
        Some(Wish::Storage { node }) => Step::CreateNodeVolume { node: node.clone() },
        // Another controller, which serves that provisioner, may hold it.
        Some(Wish::OtherProvisioner) => Step::NoOp,
        _ if held => Step::RemoveClaimFinalizer,
        _ => Step::NoOp,
    }
}

/// Whether another node is to be asked. What the driver says is for people: a pool that is not there may be
/// there in a moment, or never. And what an agent says of its driver, and how often that failed, it may have made up.
fn gives_up(observed: &Observed, node_volume: &NodeVolume) -> bool {
    let problem = node_volume.problem.as_ref();
    observed.stalled.is_some()
        || observed.unbindable.is_some()
        || problem.is_some_and(|problem| problem.lasts || problem.class == ErrorClass::Exhausted)
}

/// Nothing was ordered yet of the node that the scheduler chose, and that is away.
fn reschedule(observed: &Observed) -> Step {
    match observed.away() {
        Some(UnavailableNode { lost: true, .. }) => Step::Reschedule,
        Some(UnavailableNode { why, .. }) => Step::Blocked(why.clone()),
        None => Step::NoOp,
    }
}

/// The node has to delete storage that no claim has. A claim that goes does not wait for that where the node is
/// away: what says Absent never says Present again, so a volume that a late leader makes has no storage. Where the
/// node is there, quota counts the claim as long as the storage: a driver that is slow is not given more and more.
pub(super) fn wait_for_deletion(observed: &Observed, node_volume: &NodeVolume) -> Step {
    let claim = observed.claim.as_ref();
    if observed.away().is_some() && claim.is_some_and(|claim| claim.has_finalizer && claim.deleting)
    {
        return Step::RemoveClaimFinalizer;
    }
    waiting(observed, node_volume)
}

/// The node has to act. What it was asked to do it may have done, so nobody else is asked.
pub(super) fn waiting(observed: &Observed, node_volume: &NodeVolume) -> Step {
    match (observed.away(), &node_volume.problem) {
        (Some(away), _) => Step::Blocked(away.why.clone()),
        (None, Some(problem)) => {
            Step::Blocked(format!("node {}: {}", node_volume.node, problem.message))
        }
        (None, None) => match (&observed.stalled, &observed.late) {
            (Some(why), _) if node_volume.desired == StorageState::Absent => {
                Step::Blocked(why.clone())
            }
            (None, Some(why)) => Step::Blocked(why.clone()),
            _ => Step::NoOp,
        },
    }
}

/// There is a persistent volume that stays: what remains to be done of its making.
pub(super) fn finish_binding(observed: &Observed) -> Option<Step> {
    let claim = observed.claim.as_ref();
    match &observed.node_volume {
        // One that was let go of has no storage any more.
        None if observed
            .volume
            .as_ref()
            .is_some_and(|volume| !volume.has_finalizer && volume.deleting) =>
        {
            None
        }
        None => recreate_node_volume(observed),
        Some(node_volume) if node_volume.published != Published::Seen => Some(Step::MarkPublished),
        // Kubernetes binds by two writes, of the claim and of its status, on the condition that nobody writes in
        // between (`bind` in pkg/controller/volume/persistentvolume/pv_controller.go); kubelet waits for the second.
        // And were it let go before, a late leader could let go of it while other storage is made for it.
        Some(_) if claim.is_some_and(|claim| claim.has_finalizer && claim.is_served()) => {
            Some(Step::RemoveClaimFinalizer)
        }
        Some(_) => None,
    }
}

/// The NodeVolume of a volume that stays is gone. What volume and claim say is had, or was written by Kubernetes' own
/// expander, and what the claim asks for may have been had already; nobody knows. Less than there is may cut data off
/// where a driver shrinks, and more than the class allows nobody may have. Nothing is ordered where no claim has the
/// volume: the next one may be of another class.
fn recreate_node_volume(observed: &Observed) -> Option<Step> {
    let (claim, volume) = (observed.claim.as_ref()?, observed.volume.as_ref()?);
    if !observed.is_claimed() {
        return (claim.has_finalizer && claim.is_served()).then_some(Step::RemoveClaimFinalizer);
    }
    let (has, asked) = (volume.capacity.max(claim.capacity), claim.request);
    let size = has.max(claim.max_size.map_or(asked, |most| asked.min(most)));
    Some(match claim.max_size.filter(|most| *most < has) {
        Some(most) => Step::Blocked(format!(
            "the NodeVolume is gone, and volume or claim say {has} where the class allows at most {most}; let the class allow {has}, or make the NodeVolume by hand, published, on the volume's node and with the size that its storage has"
        )),
        None => Step::RecreateNodeVolume {
            state: StorageState::Present,
            size,
        },
    })
}
