//! From a released persistent volume to nothing.

use super::{Answer, Observed, Reclaim, Step, Volume, Wanted, make::waiting};

/// The step if the volume has to go.
pub(super) fn removing(observed: &Observed, volume: &Volume) -> Option<Step> {
    let claim_is_there = observed.claim.as_ref().is_some_and(|claim| claim.bound);
    if claim_is_there || !(volume.released || volume.deleting) {
        return None;
    }
    match (volume.reclaim, &observed.order) {
        // People look after it.
        (Reclaim::Retain, _) if !volume.deleting => None,
        (Reclaim::Retain, Some(_)) => Some(Step::Forget),
        (Reclaim::Retain, None) => Some(if volume.held {
            Step::LetVolumeGo
        } else {
            Step::Rest
        }),
        // Nothing but the node can say that the storage is gone.
        (Reclaim::Delete, None) => Some(Step::Recall(Wanted::Absent)),
        (Reclaim::Delete, Some(order)) => Some(match (order.wanted, order.answer) {
            (Wanted::Present, _) if !order.published => Step::NotePublished,
            (Wanted::Present, _) => Step::Revoke,
            (Wanted::Absent, Answer::Absent) if !volume.deleting => Step::DeleteVolume,
            (Wanted::Absent, Answer::Absent) if volume.held => Step::LetVolumeGo,
            (Wanted::Absent, Answer::Absent) => Step::Rest,
            (Wanted::Absent, _) => waiting(observed, order),
        }),
    }
}
