//! Tests of volumes that outlive their claims.

use super::super::{Answer, Problem, Reclaim, Step, decide};
use super::tests::observed;
use flexvol_sdk::{Bytes, ErrorClass};

#[test]
fn what_a_kept_volume_never_reached_is_not_asked_for_when_its_claim_has_gone() {
    let kept = |answer: Answer, ordered: u64, capacity: u64| {
        let mut observed = observed(10, ordered);
        observed.claim = None;
        observed.node_volume.as_mut().unwrap().answer = answer;
        let volume = observed.volume.as_mut().unwrap();
        (volume.released, volume.reclaim) = (true, Reclaim::Retain);
        volume.capacity = Bytes(capacity);
        decide(&observed)
    };
    let has = |size: u64| Answer::Present(Some(Bytes(size)));
    assert_eq!(
        kept(has(10), 20, 20),
        Step::SetPersistentVolumeCapacity(Bytes(10))
    );
    assert_eq!(kept(has(10), 20, 10), Step::RequestSize(Bytes(10)));
    assert_eq!(kept(has(10), 10, 10), Step::NoOp);
    assert_eq!(kept(has(20), 10, 10), Step::NoOp, "it has more");
    for unknown in [Answer::None, Answer::Absent, Answer::Present(None)] {
        assert_eq!(kept(unknown, 20, 20), Step::NoOp, "{unknown:?}");
    }
}

#[test]
fn less_is_not_asked_of_a_kept_volume_while_its_node_may_be_growing_it() {
    let kept = |answered: bool, class: Option<ErrorClass>, reclaim: Reclaim| {
        let mut observed = observed(10, 20);
        observed.claim = None;
        observed.volume.as_mut().unwrap().reclaim = reclaim;
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.answer = Answer::Present(Some(Bytes(10)));
        node_volume.answered = answered;
        node_volume.problem = class.map(|class| Problem {
            class,
            message: "no".to_owned(),
            is_persistent: false,
        });
        decide(&observed)
    };
    let (less, full) = (Step::RequestSize(Bytes(10)), Some(ErrorClass::Exhausted));
    assert_eq!(kept(true, full, Reclaim::Retain), less);
    assert_eq!(kept(false, None, Reclaim::Retain), Step::NoOp);
    let uncertain = kept(true, Some(ErrorClass::Uncertain), Reclaim::Retain);
    assert_eq!(uncertain, Step::NoOp);
    assert_eq!(kept(true, full, Reclaim::Delete), Step::NoOp, "it goes");
}

#[test]
fn what_a_former_claim_may_have_got_is_allocated_until_the_node_has_measured_it() {
    let next = |request: u64, allocated: u64, ordered: u64, answered: bool| {
        let mut observed = observed(request, ordered);
        let claim = observed.claim.as_mut().unwrap();
        claim.allocated = Bytes(allocated);
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.max_requested_size = Bytes(100);
        node_volume.answer = Answer::Present(Some(Bytes(10)));
        node_volume.answered = answered;
        decide(&observed)
    };
    let allocate = Step::SetAllocatedResources(Bytes(100));
    assert_eq!(next(10, 0, 100, false), allocate);
    assert_eq!(
        next(20, 0, 100, false),
        allocate,
        "it asks for more already"
    );
    assert_eq!(next(10, 0, 10, false), allocate, "less is ordered since");
    assert_eq!(next(10, 100, 100, false), Step::NoOp);
    assert_eq!(next(10, 0, 10, true), Step::NoOp);
    assert_eq!(next(10, 100, 10, true), Step::SetClaimCapacity(Bytes(10)));
    // 100 was measured to be missing, and the claim grows again.
    assert_eq!(next(20, 20, 20, false), Step::NoOp);
}
