//! From a claim to a persistent volume.

use super::{Answer, Away, Claim, Observed, Order, Step, Wanted, Wish};
use flexvol_sdk::ErrorClass;

/// There is no persistent volume yet, or no more.
pub(super) fn making(observed: &Observed) -> Step {
    let held = observed.claim_is_held();
    let Some(order) = &observed.order else {
        return match observed.wish() {
            Some(Wish::Refused(why)) => Step::Refuse(why.clone()),
            Some(Wish::Storage { node: Some(_) }) if observed.away.is_some() => elsewhere(observed),
            Some(Wish::Storage { .. }) if !held => Step::HoldClaim,
            Some(Wish::Storage { node }) => Step::Order { node: node.clone() },
            _ if held => Step::LetClaimGo,
            _ => Step::Rest,
        };
    };
    let claim = observed.claim.as_ref();
    match (order.wanted, order.answer) {
        (Wanted::Absent, Answer::Absent) => Step::Forget,
        (Wanted::Absent, _) => waiting(observed, order),
        // Whoever took the volume away may have wanted to keep its data.
        (Wanted::Present, _) if order.published && claim.is_none_or(Claim::is_bound) => {
            Step::Stuck(
                "the persistent volume was removed by force, and its storage may hold data: it stays until its NodeVolume says wanted: Absent"
                    .to_owned(),
            )
        }
        // It is bound to a volume whose order somebody removed and made anew.
        (Wanted::Present, _) if claim.is_some_and(Claim::is_bound) => Step::NotePublished,
        // A claim that is bound to nothing, or to another volume, was never bound to this one.
        (Wanted::Present, answer) => match observed.wish() {
            Some(Wish::Storage { .. } | Wish::StorageLater) if order.published && held => {
                match (answer, &order.problem) {
                    (Answer::Present(_), _) => Step::Publish,
                    (_, None) => waiting(observed, order),
                    // It is not there any more, and nobody has used it.
                    (_, Some(_)) => Step::Revoke,
                }
            }
            Some(Wish::Storage { node: Some(node) }) if *node != order.node => Step::Revoke,
            Some(Wish::Storage { .. }) if !held => Step::HoldClaim,
            Some(Wish::Storage { node }) => match answer {
                Answer::Present(Some(size)) if size < order.size => waiting(observed, order),
                // Before the volume is there: without the note nobody could tell later that the
                // storage may hold data.
                Answer::Present(_) => Step::NotePublished,
                _ if !is_full(order) => waiting(observed, order),
                // The scheduler has to forget the node before it can choose another.
                _ if node.is_some() => Step::Reschedule,
                _ => Step::Revoke,
            },
            _ => Step::Revoke,
        },
    }
}

fn is_full(order: &Order) -> bool {
    order
        .problem
        .as_ref()
        .is_some_and(|problem| problem.class == ErrorClass::Exhausted)
}

/// Nothing was ordered yet of the node that the scheduler chose, and that is away.
fn elsewhere(observed: &Observed) -> Step {
    match &observed.away {
        Some(Away { lost: true, .. }) => Step::Reschedule,
        Some(Away { why, .. }) => Step::Stuck(why.clone()),
        None => Step::Rest,
    }
}

/// The node has to act. What it was asked to do it may have done, so nobody else is asked.
pub(super) fn waiting(observed: &Observed, order: &Order) -> Step {
    match (&observed.away, &order.problem) {
        (Some(away), _) => Step::Stuck(away.why.clone()),
        (None, Some(problem)) => Step::Stuck(problem.message.clone()),
        (None, None) => Step::Rest,
    }
}

/// There is a persistent volume that stays: what remains to be done of its making.
pub(super) fn settling(observed: &Observed) -> Option<Step> {
    match &observed.order {
        None => Some(Step::Recall(Wanted::Present)),
        Some(order) if !order.published => Some(Step::NotePublished),
        // Bound, or deleted: it never needs storage again. Were it let go before, a late leader
        // could let go of it while other storage is made for it.
        Some(_) if observed.claim_is_held() && observed.wish() == Some(&Wish::Nothing) => {
            Some(Step::LetClaimGo)
        }
        Some(_) => None,
    }
}
