use super::super::{Binding, Problem, Published, Reclaim, UnavailableNode, Wish, decide};
use super::*;
use flexvol_sdk::{Bytes, ErrorClass};

#[test]
fn what_a_class_does_not_allow_is_not_ordered_and_what_was_ordered_is_finished() {
    let allowed = |beyond: bool, request: u64, ordered: u64| {
        let mut observed = observed(request, ordered);
        let claim = observed.claim.as_mut().unwrap();
        claim.forbidden = beyond.then(|| "at most 15".to_owned());
        decide(&observed)
    };
    let resize = Step::RequestSize(Bytes(20));
    assert_eq!(allowed(false, 20, 10), resize);
    let told = Step::SetResizeFailure("at most 15".to_owned());
    assert_eq!(allowed(true, 20, 10), told);
    // Kubernetes' own expander has written that the claim has it.
    let said = |tells: bool| {
        let mut observed = observed(20, 10);
        if !tells {
            observed.node_volume.as_mut().unwrap().answer = Answer::Present(None);
        }
        let claim = observed.claim.as_mut().unwrap();
        (claim.capacity, claim.forbidden) = (Bytes(20), Some("at most 15".to_owned()));
        decide(&observed)
    };
    assert_eq!(said(true), Step::Blocked("at most 15".to_owned()));
    assert_eq!(said(false), Step::NoOp, "kubelet may have grown it");
    // The class allowed the size before.
    let raise = Step::SetPersistentVolumeCapacity(Bytes(20));
    assert_eq!(allowed(true, 20, 20), raise);
}

/// A bound claim with capacity 10, whose storage on the node has the ordered size.
pub fn observed(request: u64, ordered: u64) -> Observed {
    Observed {
        claim: Some(Claim {
            has_finalizer: false,
            wish: Wish::Nothing,
            request: Bytes(request),
            capacity: Bytes(10),
            allocated: Bytes(request),
            drops_allocated: false,
            binding: Binding::This,
            deleting: false,
            forbidden: None,
            max_size: None,
            file_system_resize_pending: None,
            resize_failure: None,
        }),
        volume: Some(Volume {
            node: Some("n".to_owned()),
            ours: true,
            has_finalizer: true,
            deleting: false,
            released: false,
            reclaim: Reclaim::Delete,
            capacity: Bytes(10),
        }),
        node_volume: Some(NodeVolume {
            ours: true,
            node: "n".to_owned(),
            desired: StorageState::Present,
            size: Bytes(ordered),
            max_requested_size: Bytes(ordered),
            rejected: None,
            answered: true,
            outdated: false,
            published: Published::Seen,
            answer: Answer::Present(Some(Bytes(ordered))),
            problem: None,
            node_expansion_required: false,
            file_system_size: None,
        }),
        unavailable: None,
        unbindable: None,
        stalled: None,
        late: None,
    }
}

#[test]
fn why_storage_does_not_grow_stands_in_the_claim_until_it_has_grown_or_nothing_is_asked() {
    let said = |request: u64, reached: u64, problem: Option<&str>, failure: Option<&str>| {
        let mut observed = observed(request, request.max(10));
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.node_expansion_required = true;
        node_volume.answer = Answer::Present(Some(Bytes(reached)));
        node_volume.problem = problem.map(|message| Problem {
            class: ErrorClass::Exhausted,
            message: message.to_owned(),
            is_persistent: true,
        });
        observed.volume.as_mut().unwrap().capacity = Bytes(reached);
        let claim = observed.claim.as_mut().unwrap();
        claim.resize_failure = failure.map(str::to_owned);
        claim.file_system_resize_pending = Some(Bytes(request));
        decide(&observed)
    };
    let say = |why: &str| Step::SetResizeFailure(why.to_owned());
    assert_eq!(said(20, 10, Some("full"), None), say("node n: full"));
    assert_eq!(
        said(20, 10, Some("fuller"), Some("node n: full")),
        say("node n: fuller")
    );
    let told = Step::Blocked("node n: full".to_owned());
    assert_eq!(said(20, 10, Some("full"), Some("node n: full")), told);
    assert_eq!(said(20, 10, None, Some("full")), Step::NoOp, "tried anew");
    let back = Step::ClearResizeFailure;
    assert_eq!(said(20, 20, None, Some("full")), back, "kubelet goes on");
    assert_eq!(said(10, 10, None, Some("full")), back, "nothing is asked");
    assert_eq!(said(20, 20, None, None), Step::NoOp);
}

#[test]
fn what_was_measured_is_had_also_where_less_is_asked_since() {
    let next = |request: u64, capacity: u64, said: u64, reached: u64| {
        let mut observed = observed(request, reached);
        observed.claim.as_mut().unwrap().capacity = Bytes(capacity);
        observed.volume.as_mut().unwrap().capacity = Bytes(said);
        decide(&observed)
    };
    assert_eq!(
        next(20, 10, 10, 100),
        Step::SetPersistentVolumeCapacity(Bytes(100))
    );
    assert_eq!(
        next(20, 10, 20, 100),
        Step::SetPersistentVolumeCapacity(Bytes(100))
    );
    assert_eq!(next(20, 10, 100, 100), Step::SetClaimCapacity(Bytes(100)));
    // The size was measured for the claim's former request.
    assert_eq!(
        next(20, 20, 20, 100),
        Step::SetPersistentVolumeCapacity(Bytes(100))
    );
    assert_eq!(next(20, 20, 100, 100), Step::SetClaimCapacity(Bytes(100)));
    assert_eq!(next(20, 100, 100, 100), Step::NoOp);
    // Kubernetes' own expander has written a larger capacity.
    assert_eq!(
        next(20, 10, 100, 20),
        Step::SetPersistentVolumeCapacity(Bytes(20))
    );
}

#[test]
fn a_node_is_believed_as_far_as_rounding_explains_and_people_are_told() {
    let says = |request: u64, said: u64, most: u64, capacity: u64| {
        let mut observed = observed(request, request);
        let node_volume = observed.node_volume.as_mut().unwrap();
        (node_volume.answer, node_volume.max_requested_size) =
            (Answer::Present(Some(Bytes(said))), Bytes(most));
        observed.claim.as_mut().unwrap().capacity = Bytes(capacity);
        observed.volume.as_mut().unwrap().capacity = Bytes(capacity);
        decide(&observed)
    };
    let (gibi, huge) = (1 << 30, i64::MAX.cast_unsigned());
    assert_eq!(
        says(20, gibi, 20, 10),
        Step::SetPersistentVolumeCapacity(Bytes(gibi))
    );
    assert_eq!(
        says(20, huge, 20, 10),
        Step::SetPersistentVolumeCapacity(Bytes(20))
    );
    let mut unanswered = observed(20, 20);
    let node_volume = unanswered.node_volume.as_mut().unwrap();
    (node_volume.answer, node_volume.answered) = (Answer::Present(Some(Bytes(huge))), false);
    match decide(&unanswered) {
        Step::RecordEvent(_) => {}
        other => panic!("the node has not measured anew: {other:?}"),
    }
    // A larger size was ordered before.
    let former = Step::SetPersistentVolumeCapacity(Bytes(9 * gibi));
    assert_eq!(says(20, 9 * gibi, 9 * gibi, 10), former);
    assert_eq!(
        says(20, 9 * gibi, 20, 10),
        Step::SetPersistentVolumeCapacity(Bytes(20))
    );
    let large = 800 * gibi;
    let rounded = Step::SetPersistentVolumeCapacity(Bytes(900 * gibi));
    assert_eq!(says(large, 900 * gibi, large, gibi), rounded);
    match says(20, huge, 20, 20) {
        Step::RecordEvent(why) => assert!(why.starts_with("node n says that"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_nobody_can_grow_is_told() {
    let mut observed = observed(20, 20);
    observed.node_volume.as_mut().unwrap().answer = Answer::Present(None);
    let told = |step: Step| match step {
        Step::SetResizeFailure(why) => assert_eq!(why, NOBODY_GROWS),
        other => panic!("{other:?}"),
    };
    told(decide(&observed));
    observed.claim.as_mut().unwrap().request = Bytes(10);
    assert_eq!(
        decide(&observed),
        Step::RequestSize(Bytes(10)),
        "nothing is asked any more"
    );
    observed
        .node_volume
        .as_mut()
        .unwrap()
        .node_expansion_required = true;
    observed.claim.as_mut().unwrap().request = Bytes(20);
    assert_eq!(
        decide(&observed),
        Step::SetPersistentVolumeCapacity(Bytes(20))
    );
    observed.volume.as_mut().unwrap().capacity = Bytes(20);
    assert_eq!(
        decide(&observed),
        Step::SetFileSystemResizePending(Bytes(20))
    );
    observed.claim.as_mut().unwrap().file_system_resize_pending = Some(Bytes(20));
    assert_eq!(decide(&observed), Step::NoOp, "kubelet grows it");
    // The request was lowered before the storage had grown.
    observed.claim.as_mut().unwrap().request = Bytes(15);
    observed.node_volume.as_mut().unwrap().size = Bytes(15);
    assert_eq!(
        decide(&observed),
        Step::SetPersistentVolumeCapacity(Bytes(15))
    );
}

#[test]
fn what_kubelet_cannot_grow_is_no_failure_of_the_storage() {
    let mut observed = observed(20, 20);
    observed
        .node_volume
        .as_mut()
        .unwrap()
        .node_expansion_required = true;
    observed.volume.as_mut().unwrap().capacity = Bytes(20);
    observed.claim.as_mut().unwrap().file_system_resize_pending = Some(Bytes(20));
    observed.unavailable = Some(UnavailableNode {
        node: observed.node_volume.as_ref().unwrap().node.clone(),
        why: "the node is lost".to_owned(),
        may_reschedule: true,
        removed: false,
    });
    assert_eq!(
        decide(&observed),
        Step::Blocked("the node is lost".to_owned())
    );
}

#[test]
fn what_is_ordered_is_allocated_first() {
    let next = |change: &dyn Fn(&mut Claim)| {
        let mut observed = observed(20, 10);
        let claim = observed.claim.as_mut().unwrap();
        claim.allocated = Bytes(0);
        change(claim);
        decide(&observed)
    };
    let (allocate, resize) = (
        Step::SetAllocatedResources(Bytes(20)),
        Step::RequestSize(Bytes(20)),
    );
    assert_eq!(next(&|_| {}), allocate);
    assert_eq!(next(&|claim| claim.allocated = Bytes(15)), allocate);
    assert_eq!(next(&|claim| claim.allocated = Bytes(20)), resize);
    assert_eq!(next(&|claim| claim.allocated = Bytes(30)), resize);
    assert_eq!(next(&|claim| claim.drops_allocated = true), resize);
    let forbidden = next(&|claim| claim.forbidden = Some("at most 15".to_owned()));
    assert_eq!(forbidden, Step::SetResizeFailure("at most 15".to_owned()));
}

#[test]
fn what_was_ordered_stays_allocated_until_the_node_has_measured_less() {
    // 100 was ordered before.
    let next = |request: u64, reached: u64, answered: bool| {
        let mut observed = observed(request, request);
        observed.claim.as_mut().unwrap().allocated = Bytes(100);
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.max_requested_size = Bytes(100);
        node_volume.answer = Answer::Present(Some(Bytes(reached)));
        node_volume.answered = answered;
        decide(&observed)
    };
    let capacity = |size: u64| Step::SetPersistentVolumeCapacity(Bytes(size));
    assert_eq!(next(20, 20, false), Step::NoOp);
    assert_eq!(next(20, 20, true), capacity(20));
    assert_eq!(next(20, 100, false), capacity(100), "it has it");
    // Kubelet finished a growth to 10 meanwhile.
    assert_eq!(next(10, 10, false), Step::NoOp);
    assert_eq!(next(10, 10, true), Step::SetClaimCapacity(Bytes(10)));
}

#[test]
fn what_was_ordered_is_not_taken_back_while_the_node_may_be_growing() {
    // 100 was ordered, and 20 is requested since.
    let next = |answered: bool, class: ErrorClass| {
        let mut observed = observed(20, 100);
        observed.claim.as_mut().unwrap().allocated = Bytes(100);
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.answer = Answer::Present(Some(Bytes(10)));
        node_volume.answered = answered;
        node_volume.problem = Some(Problem {
            class,
            message: "no".to_owned(),
            is_persistent: false,
        });
        decide(&observed)
    };
    let lowered = Step::RequestSize(Bytes(20));
    let waits = Step::SetResizeFailure("node n: no".to_owned());
    for (class, step) in [
        (ErrorClass::Exhausted, &lowered),
        (ErrorClass::Infeasible, &lowered),
        (ErrorClass::Retryable, &lowered),
        (ErrorClass::Uncertain, &waits),
    ] {
        assert_eq!(next(true, class), *step, "{class:?}");
        assert_eq!(next(false, class), waits, "{class:?}");
    }
}

#[test]
fn less_than_there_is_is_never_ordered() {
    for (request, capacity, ordered) in [(15, 10, 21), (20, 10, 21), (21, 10, 21), (25, 21, 25)] {
        let mut observed = observed(request, 30);
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.node_expansion_required = true;
        // 20 was asked for and rounded up to 21, and the file system waits for its pod. 30 could not be had.
        node_volume.answer = Answer::Present(Some(Bytes(21)));
        observed.claim.as_mut().unwrap().capacity = Bytes(capacity);
        assert_eq!(
            decide(&observed),
            Step::RequestSize(Bytes(ordered)),
            "{request} after {capacity}"
        );
    }
}

/// "The requested size counts, once the node has measured again after the request."
#[test]
fn a_size_that_nothing_explains_is_not_had_where_the_growth_has_failed() {
    let mut observed = observed(100, 100);
    let node_volume = observed.node_volume.as_mut().unwrap();
    node_volume.answer = Answer::Present(Some(Bytes(5 << 40)));
    node_volume.problem = Some(Problem {
        class: ErrorClass::Exhausted,
        message: "full".to_owned(),
        is_persistent: false,
    });
    let told = Step::SetResizeFailure("node n: full".to_owned());
    assert_eq!(decide(&observed), told);
}

/// A NodeVolume was recreated with what Kubernetes' own expander has written into the volume, and its node has no room
/// for that. Less is requested since.
#[test]
fn what_the_expander_wrote_is_not_ordered_for_ever() {
    let mut observed = observed(20, 100);
    observed.volume.as_mut().unwrap().capacity = Bytes(100);
    observed.claim.as_mut().unwrap().allocated = Bytes(100);
    let node_volume = observed.node_volume.as_mut().unwrap();
    node_volume.answer = Answer::None;
    node_volume.problem = Some(Problem {
        class: ErrorClass::Exhausted,
        message: "full".to_owned(),
        is_persistent: false,
    });
    assert_eq!(decide(&observed), Step::RequestSize(Bytes(20)));
}
