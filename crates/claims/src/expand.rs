//! Expansion: from an edited claim to a larger volume.
//!
//! Four sizes are compared: the claim's request, the persistent volume's capacity, the capacity in the claim's
//! status, and the measured size of the storage. Where Kubernetes' own expander runs, it raises the persistent
//! volume's capacity at once, as if only the node had to act. So that capacity never proves that the storage has
//! grown. It is lowered where the storage has not grown and less is requested since, because kubelet would try to
//! reach it for ever.
//!
//! Where Kubernetes' own expander does not run, nobody but this function allocates a size in the claim's status. It is
//! allocated before it is requested of the node, and what is allocated is lowered once the node has measured less, so
//! quota counts whatever the storage may reach, also if the request is lowered meanwhile.
//!
//! A node's report is believed only as far as rounding explains it: quota counts the capacities of claims on all
//! nodes.
//!
//! The reason why storage does not grow stays in the claim's status until it has grown, or no growth is requested.
//! Failures of kubelet's own growth are for kubelet to report. Where the agent has grown the file system of a mounted
//! volume, kubelet is not asked.

#[cfg(test)]
mod kept_volumes;
#[cfg(test)]
pub(super) mod tests;

use super::{
    Answer, Claim, NodeVolume, Observed, Reclaim, Step, StorageState, Volume, believed,
    provision::wait_for_node,
};
use flexvol_sdk::ErrorClass;

const NOBODY_GROWS: &str = "the volume's driver tells no sizes and says requiresFSResize: false, so nobody can grow this volume; make a claim of the size you need";

pub(super) fn next(observed: &Observed, volume: &Volume) -> Step {
    let step = next_expansion(observed, volume);
    let is_bound = observed.claim.as_ref().is_some_and(Claim::is_bound);
    let implausible_size = observed
        .node_volume
        .as_ref()
        .and_then(NodeVolume::implausible_size);
    match implausible_size.filter(|_| is_bound && step == Step::NoOp) {
        // Drivers have minimum sizes, so this may be permanent.
        Some(why) => Step::RecordEvent(why),
        None => step,
    }
}

fn next_expansion(observed: &Observed, volume: &Volume) -> Step {
    let Some(node_volume) = &observed.node_volume else {
        return Step::NoOp;
    };
    let Some(claim) = &observed.claim else {
        return next_unclaimed(volume, node_volume);
    };
    if !claim.is_bound() {
        return Step::NoOp;
    }
    if node_volume.desired == StorageState::Absent {
        return Step::Blocked(
            "the volume was given to this claim while its storage was being deleted: if that is there still, set state: Present in the spec of the NodeVolume of its name"
                .to_owned(),
        );
    }
    let Answer::Present(reached) = node_volume.answer else {
        // A recreated NodeVolume requests what was allocated. Storage that has that size needs no room for it, and is
        // not refused it; any other failure tells nothing about what there is. Nor does the storage have a capacity that
        // was refused it: Kubernetes' own expander wrote that.
        let had = Some(volume.capacity).filter(|capacity| *capacity < node_volume.size);
        let target = claim
            .request
            .max(claim.capacity)
            .max(had.unwrap_or_default());
        let lacks_it = node_volume.problem.as_ref().is_some_and(|problem| {
            matches!(
                problem.class,
                ErrorClass::Exhausted | ErrorClass::Infeasible
            )
        });
        if claim.may_expand() && target < node_volume.size && node_volume.answered && lacks_it {
            return Step::RequestSize(target);
        }
        return with_resize_failure(claim, wait_for_node(observed, node_volume));
    };
    let reached =
        reached.map(|said| believed(said, node_volume.size, node_volume.max_requested_size));
    // The newest request wins, also a lowered one after an impossible one.
    // An actual size that is reached stays, and nothing else is requested.
    let least = reached.unwrap_or_default();
    let target = claim.request.max(claim.capacity);
    let ordered = node_volume.size.max(least);
    // More was ordered for a former claim of the volume, and the storage may have it.
    let may_have = claim.unallocated(node_volume);
    if reached.is_some()
        && node_volume.may_exceed(target.max(least))
        && may_have > target
        && claim.lacks_allocation(may_have)
    {
        return Step::SetAllocatedResources(may_have);
    }
    if claim.may_expand() && ordered != target.max(least) {
        return match &claim.forbidden {
            // If the driver reports no sizes, the capacity in the claim's status is the best that is known.
            Some(_) if target > ordered && reached.is_none() && !is_expanding(claim) => {
                with_resize_failure(claim, Step::NoOp)
            }
            // This holds also if Kubernetes' own expander has written that the claim has the size.
            Some(why) if target > ordered => with_resize_failure(claim, Step::Blocked(why.clone())),
            _ if target > ordered && claim.lacks_allocation(target) => {
                Step::SetAllocatedResources(target)
            }
            // A driver that cuts storage down to the ordered size would cut off what it may have added since. One that
            // reports no sizes is not called.
            _ if target < ordered && reached.is_some() && node_volume.may_be_growing() => {
                with_resize_failure(claim, wait_for_node(observed, node_volume))
            }
            // Never less than the actual size, which a policy of the API server refuses.
            _ => Step::RequestSize(target.max(least)),
        };
    }
    // The size that counts instead is the ordered one. It is reached when the node has grown the storage to it.
    let is_done = node_volume.answered && node_volume.problem.is_none();
    if is_expanding(claim) && !is_done && node_volume.implausible_size().is_some() {
        return with_resize_failure(claim, wait_for_node(observed, node_volume));
    }
    let size = match reached {
        // A measured size is actual, even if a former, larger request reached it, and quota counts it: the larger of
        // request and `allocatedResources` (pkg/quota/v1/evaluator/core/persistent_volume_claims.go). A size that only
        // Kubernetes' own expander wrote is not actual, and would be counted for ever.
        Some(reached) if reached > claim.capacity && reached >= claim.request => reached,
        // Kubelet has finished a growth, and a larger request was lowered meanwhile.
        _ if !is_expanding(claim)
            && claim.allocated > claim.capacity
            && reached.is_none_or(|reached| !node_volume.may_exceed(reached)) =>
        {
            return Step::SetClaimCapacity(claim.capacity);
        }
        _ if !is_expanding(claim) => return with_resize_failure(claim, Step::NoOp),
        // The driver does not report its size, so only the growth of the file system can show it. Kubelet checks that
        // if the volume's capacity exceeds the claim's. Kubernetes' own expander, where it runs, has raised it already.
        None if node_volume.problem.is_none() && node_volume.node_expansion_required => {
            claim.request
        }
        None if node_volume.problem.is_none() => {
            return with_resize_failure(claim, Step::Blocked(NOBODY_GROWS.to_owned()));
        }
        _ => return with_resize_failure(claim, wait_for_node(observed, node_volume)),
    };
    if claim.allocated > size && reached.is_some() && node_volume.may_exceed(size) {
        return with_resize_failure(claim, wait_for_node(observed, node_volume));
    }
    if volume.capacity != size {
        return Step::SetPersistentVolumeCapacity(size);
    }
    match claim.file_system_resize_pending {
        _ if node_volume.is_expanded(size) => Step::SetClaimCapacity(size),
        Some(awaited) if awaited == size => wait_for_kubelet(observed, claim),
        _ => Step::SetFileSystemResizePending(size),
    }
}

/// The step for a volume that outlived its claim. A size that the claim requested and did not get is dropped, because
/// Kubernetes would report it to the next claim as its own. A measured size, however old, is actual: nothing shrinks.
/// Nothing is requested of storage that is deleted as soon as Kubernetes has found the claim gone.
fn next_unclaimed(volume: &Volume, node_volume: &NodeVolume) -> Step {
    match node_volume.answer {
        Answer::Present(Some(reached)) if node_volume.desired == StorageState::Present => {
            if volume.capacity > reached {
                Step::SetPersistentVolumeCapacity(reached)
            } else if volume.reclaim == Reclaim::Retain
                && node_volume.size > reached
                // A driver that cuts storage down to the ordered size would cut off what it may have added since.
                && !node_volume.may_be_growing()
            {
                Step::RequestSize(reached)
            } else {
                Step::NoOp
            }
        }
        _ => Step::NoOp,
    }
}

fn is_expanding(claim: &Claim) -> bool {
    claim.request > claim.capacity
}

/// Copies the outcome of `step` into the claim's status while the storage lacks the requested size, if any.
fn with_resize_failure(claim: &Claim, step: Step) -> Step {
    match step {
        Step::Blocked(why)
            if is_expanding(claim) && claim.resize_failure.as_ref() != Some(&why) =>
        {
            Step::SetResizeFailure(why)
        }
        Step::Blocked(_) | Step::NoOp if !is_expanding(claim) && claim.resize_failure.is_some() => {
            Step::ClearResizeFailure
        }
        step => step,
    }
}

/// The step while kubelet grows the file system. Kubelet needs no agent for that, but its node must be there.
fn wait_for_kubelet(observed: &Observed, claim: &Claim) -> Step {
    if claim.resize_failure.is_some() {
        return Step::ClearResizeFailure;
    }
    match observed.target_unavailable() {
        Some(unavailable) if unavailable.may_reschedule => Step::Blocked(unavailable.why.clone()),
        _ => Step::NoOp,
    }
}
