//! Which steps may be decided from cached persistent volumes and NodeVolumes.

use super::{Answer, Observed, Step, StorageState};

/// Whether a step may be decided from a live read of the claim and cached, possibly stale, other objects.
///
/// These are the steps of a volume's ordinary life. The API server refuses such a step if the object that it writes has
/// changed, and the step does no harm if another object has.
#[must_use]
pub fn follows_cache(step: &Step, observed: &Observed) -> bool {
    match (&observed.volume, &observed.node_volume) {
        (None, None) => matches!(
            step,
            Step::NoOp | Step::AddClaimFinalizer | Step::CreateNodeVolume { .. }
        ),
        (None, Some(node_volume)) => match step {
            Step::MarkPublishing | Step::CreatePersistentVolume => true,
            // The finalizer of its volume has just been removed.
            Step::DeleteNodeVolume => {
                (node_volume.desired, node_volume.answer) == (StorageState::Absent, Answer::Absent)
            }
            _ => false,
        },
        // A larger size may have been ordered since.
        (Some(_), Some(_)) if lowers_allocation(step, observed) => false,
        (Some(volume), Some(node_volume)) => {
            !volume.is_elsewhere(node_volume)
                && matches!(
                    step,
                    Step::NoOp
                        | Step::MarkPublished
                        | Step::RemoveClaimFinalizer
                        | Step::SetAllocatedResources(_)
                        | Step::RequestSize(_)
                        | Step::SetPersistentVolumeCapacity(_)
                        | Step::SetClaimCapacity(_)
                        | Step::SetFileSystemResizePending(_)
                        | Step::RequestDeletion
                        | Step::DeletePersistentVolume
                        | Step::RemovePersistentVolumeFinalizer
                )
        }
        (Some(_), None) => false,
    }
}

/// Whether a step makes quota count less than it may count now.
fn lowers_allocation(step: &Step, observed: &Observed) -> bool {
    match (step, &observed.claim) {
        (Step::SetClaimCapacity(size) | Step::SetFileSystemResizePending(size), Some(claim)) => {
            claim.allocated > *size
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decide, expand::tests::observed};
    use super::*;
    use flexvol_sdk::Bytes;

    fn follows(change: impl FnOnce(&mut Observed)) -> (Step, bool) {
        let mut observed = observed(20, 10);
        change(&mut observed);
        let step = decide(&observed);
        let follows = follows_cache(&step, &observed);
        (step, follows)
    }

    #[test]
    fn a_growth_and_a_deletion_follow_what_watches_told() {
        assert_eq!(follows(|_| {}), (Step::RequestSize(Bytes(20)), true));
        let released = |observed: &mut Observed| {
            observed.claim = None;
            observed.volume.as_mut().unwrap().released = true;
        };
        assert_eq!(follows(released), (Step::RequestDeletion, true));
    }

    #[test]
    fn what_watches_do_not_tell_of_may_be_there() {
        let unknown = |observed: &mut Observed| observed.node_volume = None;
        let (step, follows_cache) = follows(unknown);
        assert!(matches!(step, Step::RecreateNodeVolume { .. }) && !follows_cache);
        let unknown = |observed: &mut Observed| observed.volume = None;
        let (step, follows_cache) = follows(unknown);
        assert!(
            matches!(step, Step::Blocked(_)) && !follows_cache,
            "{step:?}"
        );
    }

    #[test]
    fn of_a_node_volume_of_another_node_than_the_volumes_everything_is_read() {
        let elsewhere = |observed: &mut Observed| {
            observed.node_volume.as_mut().unwrap().node = "m".to_owned();
        };
        assert!(!follows(elsewhere).1);
    }
}
