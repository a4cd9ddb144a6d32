//! Deletion: from a released persistent volume to nothing.

use super::{
    Answer, Observed, Published, Reclaim, Step, StorageState, Volume, provision::wait_for_deletion,
};

/// Returns the next step if the volume has to be deleted.
pub(super) fn next_deletion(observed: &Observed, volume: &Volume) -> Option<Step> {
    if observed.is_claimed() || !(volume.released || volume.deleting) {
        return None;
    }
    match (volume.reclaim, &observed.node_volume) {
        // The administrator looks after the volume.
        (Reclaim::Retain, _) if !volume.deleting => None,
        (Reclaim::Retain, Some(_)) => Some(Step::DeleteNodeVolume),
        (Reclaim::Retain, None) => Some(if volume.has_finalizer {
            Step::RemovePersistentVolumeFinalizer
        } else {
            Step::NoOp
        }),
        // Only the node can confirm that the storage is gone, and it had before the finalizer was removed.
        (Reclaim::Delete, None) if volume.has_finalizer => Some(Step::RecreateNodeVolume {
            state: StorageState::Absent,
            size: volume.capacity,
            most: volume.capacity,
        }),
        (Reclaim::Delete, None) => Some(Step::NoOp),
        (Reclaim::Delete, Some(node_volume)) => {
            Some(match (node_volume.desired, node_volume.answer) {
                (StorageState::Present, _) if node_volume.published != Published::Seen => {
                    Step::MarkPublished
                }
                (StorageState::Present, _) => Step::RequestDeletion,
                (StorageState::Absent, Answer::Absent) if !volume.deleting => {
                    Step::DeletePersistentVolume
                }
                (StorageState::Absent, Answer::Absent) if volume.has_finalizer => {
                    Step::RemovePersistentVolumeFinalizer
                }
                (StorageState::Absent, Answer::Absent) => Step::NoOp,
                (StorageState::Absent, _) => wait_for_deletion(observed, node_volume),
            })
        }
    }
}

/// The step for a NodeVolume of another node than the volume's. Storage on that other node belongs to no volume, so it
/// is deleted. Then the NodeVolume is recreated for the volume's own node.
pub(super) fn resolve_misplaced(observed: &Observed, volume: &Volume) -> Option<Step> {
    let node_volume = observed.node_volume.as_ref();
    let node_volume = node_volume.filter(|node_volume| volume.is_elsewhere(node_volume))?;
    let is_removed = observed
        .target_unavailable()
        .is_some_and(|node| node.removed);
    Some(match (node_volume.desired, node_volume.answer) {
        // Someone has edited the persistent volume or the NodeVolume.
        _ if node_volume.published == Published::Seen => Step::Blocked(format!(
            "the persistent volume says that its storage is on node {}, by its annotation flexvol.dev/node, and its NodeVolume is of node {}, so both are left as they are; correct the annotation",
            volume.node.as_deref().unwrap_or_default(),
            node_volume.node
        )),
        (StorageState::Present, _) => Step::RequestDeletion,
        (StorageState::Absent, Answer::Absent) => Step::DeleteNodeVolume,
        (StorageState::Absent, _) if is_removed => Step::DeleteNodeVolume,
        (StorageState::Absent, _) => wait_for_deletion(observed, node_volume),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Binding, decide, expand::tests::observed};
    use super::*;
    use flexvol_sdk::Bytes;

    #[test]
    fn a_released_volume_goes_unless_a_claim_has_it_or_is_about_to() {
        let released = |binding: Option<Binding>, deleting: bool| {
            let mut observed = observed(10, 10);
            let volume = observed.volume.as_mut().unwrap();
            (volume.released, volume.deleting) = (true, deleting);
            let claim = observed.claim.take();
            observed.claim = claim.zip(binding).map(|(mut claim, binding)| {
                claim.binding = binding;
                claim
            });
            decide(&observed)
        };
        assert_eq!(released(None, false), Step::RequestDeletion);
        assert_eq!(
            released(Some(Binding::Another), false),
            Step::RequestDeletion
        );
        for claimed in [Binding::This, Binding::None] {
            assert_eq!(released(Some(claimed), false), Step::NoOp, "{claimed:?}");
        }
        assert_eq!(released(Some(Binding::None), true), Step::RequestDeletion);
        assert_eq!(released(Some(Binding::This), true), Step::NoOp);
    }

    #[test]
    fn a_node_volume_of_another_node_than_the_volumes_goes_unless_that_may_have_data() {
        let of = |published: Published, wanted: StorageState, answer: Answer| {
            let mut observed = observed(20, 10);
            let node_volume = observed.node_volume.as_mut().unwrap();
            node_volume.node = "m".to_owned();
            (
                node_volume.published,
                node_volume.desired,
                node_volume.answer,
            ) = (published, wanted, answer);
            decide(&observed)
        };
        let there = Answer::Present(Some(Bytes(10)));
        for published in [Published::No, Published::Soon] {
            let of = |wanted, answer| of(published, wanted, answer);
            assert_eq!(of(StorageState::Present, there), Step::RequestDeletion);
            assert_eq!(of(StorageState::Absent, there), Step::NoOp);
            assert_eq!(
                of(StorageState::Absent, Answer::Absent),
                Step::DeleteNodeVolume
            );
        }
        for wanted in [StorageState::Present, StorageState::Absent] {
            let step = of(Published::Seen, wanted, Answer::Absent);
            let Step::Blocked(why) = step else {
                panic!("{step:?}")
            };
            assert!(why.contains("is on node n") && why.contains("is of node m"));
        }
    }

    #[test]
    fn a_volume_that_was_let_go_of_is_not_recalled() {
        let unordered = |held: bool| {
            let mut observed = observed(10, 10);
            (observed.claim, observed.node_volume) = (None, None);
            let volume = observed.volume.as_mut().unwrap();
            (volume.released, volume.deleting, volume.has_finalizer) = (true, true, held);
            decide(&observed)
        };
        let recalled = Step::RecreateNodeVolume {
            state: StorageState::Absent,
            size: Bytes(10),
            most: Bytes(10),
        };
        assert_eq!(unordered(true), recalled);
        assert_eq!(unordered(false), Step::NoOp);
    }
}
