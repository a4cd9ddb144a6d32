//! From an edited claim to a bigger volume.
//!
//! Four sizes are compared: what the claim asks, what the persistent volume says, what the claim's
//! status says, and what the storage was measured to have. Kubernetes' own expander, where it runs,
//! raises the second at once, and believes that nothing is left to do but on the node. So the rule
//! never concludes from the second that the storage has grown, and lowers it where it has not, and less
//! is asked since: kubelet would try to reach it for ever.
//!
//! And a node is believed no more than rounding explains: quota counts what a claim says, on all nodes.
//!
//! Why storage does not grow stands in the claim's status until it has grown, or nothing is asked any
//! more. What kubelet cannot grow is for kubelet to say. Where the node's agent has grown a mounted volume's file
//! system, nothing is left for kubelet, and it is not asked.

#[cfg(test)]
pub(super) mod tests;

use super::{
    Answer, Claim, NodeVolume, Observed, Step, StorageState, Volume, believed, provision::waiting,
};

const NOBODY_GROWS: &str = "the volume's driver tells no sizes and says requiresFSResize: false, so nobody can grow this volume; make a claim of the size you need";

pub(super) fn next(observed: &Observed, volume: &Volume) -> Step {
    let step = grown(observed, volume);
    let is_bound = observed.claim.as_ref().is_some_and(Claim::is_bound);
    let implausible_size = observed
        .node_volume
        .as_ref()
        .and_then(NodeVolume::implausible_size);
    match implausible_size.filter(|_| is_bound && step == Step::NoOp) {
        // Drivers have smallest sizes, so it may stay so for good.
        Some(why) => Step::RecordEvent(why),
        None => step,
    }
}

fn grown(observed: &Observed, volume: &Volume) -> Step {
    let Some(node_volume) = &observed.node_volume else {
        return Step::NoOp;
    };
    let Some(claim) = &observed.claim else {
        return kept(volume, node_volume);
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
        return unreached(claim, waiting(observed, node_volume));
    };
    let reached =
        reached.map(|said| believed(said, node_volume.size, node_volume.max_requested_size));
    // The newest request wins, also one that was lowered because the former could not be had.
    // What is reached stays, and nothing else is asked for.
    let least = reached.unwrap_or_default();
    let target = claim.request.max(claim.capacity);
    let ordered = node_volume.size.max(least);
    if claim.may_expand() && ordered != target.max(least) {
        return match &claim.beyond {
            // Of what tells no sizes the claim knows best what it has.
            Some(_) if target > ordered && reached.is_none() && !asks(claim) => {
                unreached(claim, Step::NoOp)
            }
            // Also where Kubernetes' own expander has said that the claim has it.
            Some(why) if target > ordered => unreached(claim, Step::Blocked(why.clone())),
            _ => Step::RequestSize(target),
        };
    }
    // What counts instead of it was ordered, and is had when the node has answered that.
    if asks(claim) && !node_volume.answered && node_volume.implausible_size().is_some() {
        return unreached(claim, waiting(observed, node_volume));
    }
    let size = match reached {
        // What was measured is had, also what a former, larger request has reached, and quota counts it: the larger
        // one of request and `allocatedResources` (pkg/quota/v1/evaluator/core/persistent_volume_claims.go). What
        // was only said of it, by Kubernetes' own expander, is not, and would be counted for ever.
        Some(reached) if reached > claim.capacity && reached >= claim.request => reached,
        _ if !asks(claim) => return unreached(claim, Step::NoOp),
        // The driver does not say what it reached: its file system will, or nobody. Kubelet looks at it when the
        // volume says more than the claim has, and where Kubernetes' own expander runs it says so already.
        None if node_volume.problem.is_none() && node_volume.node_expansion_required => {
            claim.request
        }
        None if node_volume.problem.is_none() => {
            return unreached(claim, Step::Blocked(NOBODY_GROWS.to_owned()));
        }
        _ => return unreached(claim, waiting(observed, node_volume)),
    };
    if volume.capacity != size {
        return Step::SetPersistentVolumeCapacity(size);
    }
    match claim.file_system_resize_pending {
        _ if node_volume.is_expanded(size) => Step::SetClaimCapacity(size),
        Some(awaited) if awaited == size => kubelet_acts(observed, claim),
        _ => Step::SetFileSystemResizePending(size),
    }
}

/// The volume outlived its claim. What that asked for and did not get nobody asks for any more: Kubernetes
/// would tell the next claim that it has it. What was measured, however long ago, is had: nothing shrinks.
fn kept(volume: &Volume, node_volume: &NodeVolume) -> Step {
    match node_volume.answer {
        Answer::Present(Some(reached)) if node_volume.desired == StorageState::Present => {
            if volume.capacity > reached {
                Step::SetPersistentVolumeCapacity(reached)
            } else if node_volume.size > reached {
                Step::RequestSize(reached)
            } else {
                Step::NoOp
            }
        }
        _ => Step::NoOp,
    }
}

fn asks(claim: &Claim) -> bool {
    claim.request > claim.capacity
}

/// The storage has not what is asked, if anything is: what `step` says of it, the claim has to say too.
fn unreached(claim: &Claim, step: Step) -> Step {
    match step {
        Step::Blocked(why) if asks(claim) && claim.resize_failure.as_ref() != Some(&why) => {
            Step::SetResizeFailure(why)
        }
        Step::Blocked(_) | Step::NoOp if !asks(claim) && claim.resize_failure.is_some() => {
            Step::ClearResizeFailure
        }
        step => step,
    }
}

/// It acts also where the agent is silent, but not where Kubernetes misses the node.
fn kubelet_acts(observed: &Observed, claim: &Claim) -> Step {
    if claim.resize_failure.is_some() {
        return Step::ClearResizeFailure;
    }
    match observed.away() {
        Some(away) if away.lost => Step::Blocked(away.why.clone()),
        _ => Step::NoOp,
    }
}
