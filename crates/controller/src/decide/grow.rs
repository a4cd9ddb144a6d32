//! From an edited claim to a bigger volume.
//!
//! Four sizes are compared: what the claim asks, what the persistent volume says, what the claim's
//! status says, and what the storage was measured to have. Kubernetes' own expander, where it runs,
//! raises the second at once, and believes that nothing is left to do but on the node. So the rule
//! never concludes from the second that the storage has grown.

use super::{Answer, Observed, Step, Volume, Wanted, make::waiting};

pub(super) fn growing(observed: &Observed, volume: &Volume) -> Step {
    let (Some(claim), Some(order)) = (&observed.claim, &observed.order) else {
        return Step::Rest;
    };
    if !claim.bound || order.wanted == Wanted::Absent {
        return Step::Rest;
    }
    let Answer::Present(reached) = order.answer else {
        return waiting(observed, order);
    };
    // The newest request wins, also one that was lowered because the former could not be had.
    // What is reached stays, and needs no other order.
    let least = reached.unwrap_or_default();
    let target = claim.request.max(claim.capacity);
    let ordered = order.size.max(least);
    if claim.may_grow && ordered != target.max(least) {
        return match &claim.beyond {
            Some(why) if target > ordered => Step::Stuck(why.clone()),
            _ => Step::Resize(target),
        };
    }
    if claim.request <= claim.capacity {
        return Step::Rest;
    }
    match reached {
        Some(reached) if reached >= claim.request => {}
        // The driver does not say what it reached: its file system will.
        None if order.problem.is_none() && order.grows_on_node => return kubelet_acts(observed),
        _ => return waiting(observed, order),
    }
    if volume.capacity < claim.request {
        return Step::RaiseVolume(claim.request);
    }
    match (order.grows_on_node, claim.awaits_node) {
        (false, _) => Step::FinishClaim(claim.request),
        (true, false) => Step::AwaitNode(claim.request),
        (true, true) => kubelet_acts(observed),
    }
}

/// It acts also where the agent is silent, but not where Kubernetes misses the node.
fn kubelet_acts(observed: &Observed) -> Step {
    match &observed.away {
        Some(away) if away.lost => Step::Stuck(away.why.clone()),
        _ => Step::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Claim, Order, Reclaim, Wish, decide};
    use super::*;
    use flexvol_sdk::Bytes;

    #[test]
    fn what_a_class_does_not_allow_is_not_ordered_and_what_was_ordered_is_finished() {
        let observed = |beyond: bool, request: u64, ordered: u64| Observed {
            claim: Some(Claim {
                held: false,
                wish: Wish::Nothing,
                request: Bytes(request),
                capacity: Bytes(10),
                bound: true,
                may_grow: true,
                beyond: beyond.then(|| "at most 15".to_owned()),
                awaits_node: false,
            }),
            volume: Some(Volume {
                ours: true,
                held: true,
                deleting: false,
                released: false,
                reclaim: Reclaim::Delete,
                capacity: Bytes(10),
            }),
            order: Some(Order {
                node: "n".to_owned(),
                wanted: Wanted::Present,
                size: Bytes(ordered),
                published: true,
                answer: Answer::Present(Some(Bytes(ordered))),
                problem: None,
                grows_on_node: false,
            }),
            away: None,
        };
        let resize = Step::Resize(Bytes(20));
        assert_eq!(decide(&observed(false, 20, 10)), resize);
        let told = Step::Stuck("at most 15".to_owned());
        assert_eq!(decide(&observed(true, 20, 10)), told);
        // Its class allowed it once.
        let raise = Step::RaiseVolume(Bytes(20));
        assert_eq!(decide(&observed(true, 20, 20)), raise);
    }
}
