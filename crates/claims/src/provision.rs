//! Provisioning: from a claim to a persistent volume.
//!
//! Fields that the author of a claim may write prove nothing: the volume's name, the binding annotation, finalizers,
//! and, in effect, the phase `Lost`. So storage is kept for its data only if the persistent volume was seen, or
//! the claim's phase is `Bound`.

#[cfg(test)]
mod tests;

use super::{
    Answer, Binding, Claim, NodeVolume, Observed, Published, Step, StorageState, UnavailableNode,
    Wish,
};
use flexvol_sdk::ErrorClass;

/// The next step while there is no persistent volume: not yet, or not any more.
pub(super) fn next_without_volume(observed: &Observed) -> Step {
    let held = observed.claim_has_finalizer();
    let Some(node_volume) = &observed.node_volume else {
        return next_without_node_volume(observed);
    };
    let claim = observed.claim.as_ref();
    let names_this = |claim: &Claim| matches!(claim.binding, Binding::This | Binding::Named);
    let is_removed = observed
        .target_unavailable()
        .is_some_and(|node| node.removed);
    match (node_volume.desired, node_volume.answer) {
        (StorageState::Absent, Answer::Absent) => Step::DeleteNodeVolume,
        (StorageState::Absent, _) if is_removed && node_volume.published != Published::Seen => {
            Step::DeleteNodeVolume
        }
        (StorageState::Absent, _) => wait_for_deletion(observed, node_volume),
        // This NodeVolume was recreated from its persistent volume, and its storage was never found. If a late leader
        // recreated it, both volume and storage had gone before, and it can go too. If administrators removed the
        // volume and the NodeVolume by force instead, they know of the storage, which stays.
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
            // Whoever removed the volume by force may have wanted to keep its data.
            Step::Blocked(
                "the persistent volume was removed by force, and its storage may hold data: it stays until its NodeVolume says state: Absent"
                    .to_owned(),
            )
        }
        // The claim is bound to a volume that went before a leader saw it, or whose NodeVolume was recreated by hand.
        (StorageState::Present, _) if claim.is_some_and(Claim::is_bound) => Step::MarkPublished,
        // No claim ever used the storage, and its node is gone. The deletion is requested first, in case it is not.
        (StorageState::Present, _) if is_removed && node_volume.published != Published::Seen => {
            Step::RequestDeletion
        }
        // A claim that is unbound, or bound to another volume, was never bound to this one.
        (StorageState::Present, answer) => match observed.wish() {
            // A former leader whose request is late may create the volume at any moment.
            Some(wish @ (Wish::Storage { .. } | Wish::StorageLater | Wish::Refused(_)))
                if node_volume.published > Published::No =>
            {
                match (answer, &node_volume.problem) {
                    _ if !held => Step::AddClaimFinalizer,
                    (Answer::Present(_), _) => match (wish, observed.unbindable()) {
                        (Wish::Refused(why), _) => Step::Refuse(why.clone()),
                        (_, Some(why)) => Step::Blocked(why.clone()),
                        _ => Step::CreatePersistentVolume,
                    },
                    (_, None) => wait_for_node(observed, node_volume),
                    // The storage is gone, and nothing has used it.
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
                        && observed.unbindable().is_none() =>
                {
                    // Precedes the creation of the volume: from now on storage is not deleted while the claim wants it.
                    Step::MarkPublishing
                }
                _ if !gives_up(observed, node_volume) => wait_for_node(observed, node_volume),
                // The scheduler has to drop the selected node before it can select another.
                _ if node.is_some() => Step::Reschedule,
                _ => Step::RequestDeletion,
            },
            _ => Step::RequestDeletion,
        },
    }
}

/// Whether the node has reported repeatedly, for the current generation, that the driver cannot find the storage.
fn is_missing(node_volume: &NodeVolume) -> bool {
    let problem = node_volume.problem.as_ref();
    node_volume.answered && problem.is_some_and(|problem| problem.is_persistent)
}

/// The next step while there is no NodeVolume either.
fn next_without_node_volume(observed: &Observed) -> Step {
    let held = observed.claim_has_finalizer();
    let binding = observed.claim.as_ref().map(|claim| claim.binding);
    match observed.wish() {
        Some(Wish::Refused(why)) => Step::Refuse(why.clone()),
        // Data may have been in the lost volume, and an empty one in its place would hide the loss.
        Some(Wish::Storage { .. } | Wish::StorageLater) if binding == Some(Binding::Named) => {
            if held {
                return Step::RemoveClaimFinalizer;
            }
            Step::Refuse(
                "the claim says the name of a persistent volume that is not there, so none is made for it; make the claim anew"
                    .to_owned(),
            )
        }
        Some(Wish::Storage { node: Some(_) }) if observed.target_unavailable().is_some() => {
            reschedule(observed)
        }
        Some(Wish::Storage { .. }) if !held => Step::AddClaimFinalizer,
        Some(Wish::Storage { node }) => Step::CreateNodeVolume { node: node.clone() },
        // The finalizer may belong to another controller, which serves that provisioner.
        Some(Wish::OtherProvisioner) => Step::NoOp,
        _ if held => Step::RemoveClaimFinalizer,
        _ => Step::NoOp,
    }
}

/// Whether another node is to be tried. The driver's message is for people and decides nothing: a pool that is missing
/// may be back in a moment, or never. The agent's report of its driver and of failures is not trusted beyond that.
fn gives_up(observed: &Observed, node_volume: &NodeVolume) -> bool {
    let problem = node_volume.problem.as_ref();
    observed.stalled.is_some()
        || observed.unbindable().is_some()
        || problem
            .is_some_and(|problem| problem.is_persistent || problem.class == ErrorClass::Exhausted)
}

/// The step if the node that the scheduler selected is unavailable and nothing was ordered of it yet.
fn reschedule(observed: &Observed) -> Step {
    match observed.target_unavailable() {
        Some(UnavailableNode {
            may_reschedule: true,
            ..
        }) => Step::Reschedule,
        Some(UnavailableNode { why, .. }) => Step::Blocked(why.clone()),
        None => Step::NoOp,
    }
}

/// The step while the node has to delete storage that no claim uses. A claim that is being deleted does not wait if
/// the node is unavailable: a NodeVolume whose state is Absent never returns to Present, so a volume that a late leader
/// creates has no storage. While the node is available, the claim stays, so that quota counts it as long as the
/// storage: otherwise claims could pile up storage on a slow driver.
pub(super) fn wait_for_deletion(observed: &Observed, node_volume: &NodeVolume) -> Step {
    let claim = observed.claim.as_ref();
    if observed.target_unavailable().is_some()
        && claim.is_some_and(|claim| claim.has_finalizer && claim.deleting)
    {
        return Step::RemoveClaimFinalizer;
    }
    wait_for_node(observed, node_volume)
}

/// The step while the node has to act. No other node is asked, because this one may have done its part already.
pub(super) fn wait_for_node(observed: &Observed, node_volume: &NodeVolume) -> Step {
    match (observed.target_unavailable(), &node_volume.problem) {
        (Some(unavailable), _) => Step::Blocked(unavailable.why.clone()),
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

/// The remaining steps of provisioning, while there is a persistent volume that stays.
pub(super) fn finish_binding(observed: &Observed) -> Option<Step> {
    let claim = observed.claim.as_ref();
    match &observed.node_volume {
        // A volume whose finalizer was removed has no storage any more.
        None if observed
            .volume
            .as_ref()
            .is_some_and(|volume| !volume.has_finalizer && volume.deleting) =>
        {
            None
        }
        None => recreate_node_volume(observed),
        Some(node_volume) if node_volume.published != Published::Seen => Some(Step::MarkPublished),
        // Kubernetes binds a claim by two writes, of the claim and of its status, and each fails if another writer
        // comes between (`bind` in pkg/controller/volume/persistentvolume/pv_controller.go). Kubelet waits for the
        // second. A late leader could also remove the finalizer again while other storage is made for the claim.
        Some(_) if claim.is_some_and(|claim| claim.has_finalizer && claim.needs_no_volume()) => {
            Some(Step::RemoveClaimFinalizer)
        }
        Some(_) => None,
    }
}

/// Recreates the NodeVolume of a volume that stays. The actual size is unknown: the capacities of volume and claim are
/// actual sizes or were written by Kubernetes' own expander, and the claim's request, or what was allocated before the
/// request was lowered, may have been reached already. A size below the actual one may cut off data if the driver
/// shrinks, and a size above the class's limit is forbidden. Nothing is recreated while no claim has the volume: the
/// next claim may be of another class.
fn recreate_node_volume(observed: &Observed) -> Option<Step> {
    let (claim, volume) = (observed.claim.as_ref()?, observed.volume.as_ref()?);
    if !observed.is_claimed() {
        return (claim.has_finalizer && claim.needs_no_volume())
            .then_some(Step::RemoveClaimFinalizer);
    }
    let has = volume.capacity.max(claim.capacity);
    let asked = claim.request.max(claim.allocated);
    // A class that is gone or cannot be read allows no growth, whatever size.
    let most = match claim.forbidden {
        Some(_) => Some(
            claim
                .max_size
                .map_or(has, |most| most.min(has.max(claim.allocated))),
        ),
        None => claim.max_size,
    };
    let size = has.max(most.map_or(asked, |most| asked.min(most)));
    Some(match claim.max_size.filter(|most| *most < has) {
        Some(most) => Step::Blocked(format!(
            "the NodeVolume is gone, and volume or claim say {has} where the class allows at most {most}; let the class allow {has}, or make the NodeVolume by hand, published, on the volume's node (in spec.node and in the label flexvol.dev/node) and with the size that its storage has"
        )),
        None if claim.is_bound() && claim.lacks_allocation(size) => {
            Step::SetAllocatedResources(size)
        }
        None => Step::RecreateNodeVolume {
            state: StorageState::Present,
            size,
            // Of what the node will measure, no more is believed.
            most: size.max(claim.allocated),
        },
    })
}
