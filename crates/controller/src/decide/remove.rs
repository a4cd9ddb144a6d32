//! From a released persistent volume to nothing.

use super::{Answer, Observed, Reclaim, Step, Volume, Wanted, make::waiting};

/// The step if the volume has to go.
pub(super) fn removing(observed: &Observed, volume: &Volume) -> Option<Step> {
    if observed.is_claimed() || !(volume.released || volume.deleting) {
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

#[cfg(test)]
mod tests {
    use super::super::{Binding, Claim, Order, Wish, decide};
    use super::*;
    use flexvol_sdk::Bytes;

    #[test]
    fn a_released_volume_goes_unless_a_claim_has_it_or_is_about_to() {
        let released = |binding: Option<Binding>, deleting: bool| {
            decide(&Observed {
                claim: binding.map(|binding| Claim {
                    held: false,
                    wish: Wish::Nothing,
                    request: Bytes(10),
                    capacity: Bytes(10),
                    binding,
                    may_grow: true,
                    beyond: None,
                    awaits_node: None,
                    failure: None,
                }),
                volume: Some(Volume {
                    ours: true,
                    held: true,
                    deleting,
                    released: true,
                    reclaim: Reclaim::Delete,
                    capacity: Bytes(10),
                }),
                order: Some(Order {
                    node: "n".to_owned(),
                    wanted: Wanted::Present,
                    size: Bytes(10),
                    published: true,
                    answer: Answer::Present(Some(Bytes(10))),
                    problem: None,
                    grows_on_node: true,
                }),
                away: None,
            })
        };
        assert_eq!(released(None, false), Step::Revoke);
        assert_eq!(released(Some(Binding::Another), false), Step::Revoke);
        for claimed in [Binding::This, Binding::None] {
            assert_eq!(released(Some(claimed), false), Step::Rest, "{claimed:?}");
        }
        assert_eq!(released(Some(Binding::None), true), Step::Revoke);
        assert_eq!(released(Some(Binding::This), true), Step::Rest);
    }
}
