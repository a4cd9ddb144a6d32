use super::super::{Problem, decide, expand::tests::observed};
use super::*;
use flexvol_sdk::Bytes;

fn waits(change: impl Fn(&mut Claim, &mut NodeVolume)) -> Step {
    decide(&waiting_for(change))
}

/// An unbound claim that wants a volume.
fn waiting_for(change: impl Fn(&mut Claim, &mut NodeVolume)) -> Observed {
    let mut observed = observed(10, 10);
    observed.volume = None;
    let (claim, node_volume) = (observed.claim.as_mut(), observed.node_volume.as_mut());
    let (claim, node_volume) = (claim.unwrap(), node_volume.unwrap());
    (claim.has_finalizer, claim.binding) = (true, Binding::None);
    claim.wish = Wish::Storage { node: None };
    node_volume.published = Published::No;
    change(claim, node_volume);
    observed
}

#[test]
fn who_fails_again_and_again_for_whatever_reason_loses_the_volume() {
    let failed = |class: ErrorClass, is_persistent: bool, node: Option<&str>| {
        waits(|claim, node_volume| {
            node_volume.answer = Answer::None;
            let message = "no pool".to_owned();
            node_volume.problem = Some(Problem {
                class,
                message,
                is_persistent,
            });
            let node = node.map(str::to_owned);
            claim.wish = Wish::Storage { node };
        })
    };
    let told = Step::Blocked("node n: no pool".to_owned());
    for class in [
        ErrorClass::Retryable,
        ErrorClass::Infeasible,
        ErrorClass::Uncertain,
    ] {
        assert_eq!(failed(class, false, None), told);
        assert_eq!(failed(class, true, None), Step::RequestDeletion);
        assert_eq!(failed(class, true, Some("n")), Step::Reschedule);
    }
    assert_eq!(
        failed(ErrorClass::Exhausted, false, None),
        Step::RequestDeletion
    );
}

#[test]
fn what_no_volume_can_be_bound_to_goes_elsewhere_until_one_is_about_to_be_made() {
    let unbindable = |answered: bool, published: Published, node: Option<&str>| {
        let mut observed = waiting_for(|claim, node_volume| {
            let node = node.map(str::to_owned);
            claim.wish = Wish::Storage { node };
            node_volume.published = published;
            if answered {
                node_volume.answer = Answer::Present(Some(node_volume.size));
                node_volume.rejected = Some("taken".to_owned());
            }
        });
        observed.unbindable = (!answered).then(|| "taken".to_owned());
        decide(&observed)
    };
    // The node's hostname, and what it has answered.
    for answered in [false, true] {
        let unbindable = |published, node| unbindable(answered, published, node);
        assert_eq!(unbindable(Published::No, None), Step::RequestDeletion);
        assert_eq!(unbindable(Published::No, Some("n")), Step::Reschedule);
        // A late leader may create the volume, after its own check.
        let told = Step::Blocked("taken".to_owned());
        assert_eq!(unbindable(Published::Soon, None), told);
        assert_eq!(unbindable(Published::Soon, Some("n")), told);
    }
}

#[test]
fn who_makes_nothing_for_too_long_loses_the_volume_whatever_it_says() {
    let stalled = |answer: Answer, published: Published, node: Option<&str>| {
        let mut observed = waiting_for(|claim, node_volume| {
            let node = node.map(str::to_owned);
            claim.wish = Wish::Storage { node };
            (node_volume.answer, node_volume.published) = (answer, published);
        });
        observed.stalled = Some("nothing comes of it".to_owned());
        decide(&observed)
    };
    let less = Answer::Present(Some(Bytes(1)));
    for answer in [Answer::None, Answer::Absent, less] {
        assert_eq!(stalled(answer, Published::No, None), Step::RequestDeletion);
        assert_eq!(stalled(answer, Published::No, Some("n")), Step::Reschedule);
    }
    // The storage exists after all.
    let made = Answer::Present(Some(Bytes(10)));
    assert_eq!(stalled(made, Published::No, None), Step::MarkPublishing);
    assert_eq!(
        stalled(made, Published::Soon, None),
        Step::CreatePersistentVolume
    );
}

#[test]
fn what_is_about_to_be_made_is_not_taken_back_because_its_class_is_gone() {
    let refused = |published: Published, held: bool, answer: Answer, fails: bool| {
        waits(|claim, node_volume| {
            claim.wish = Wish::Refused("no class".to_owned());
            claim.has_finalizer = held;
            (node_volume.published, node_volume.answer) = (published, answer);
            node_volume.problem = fails.then(|| Problem {
                class: ErrorClass::Retryable,
                message: "gone".to_owned(),
                is_persistent: false,
            });
        })
    };
    let there = Answer::Present(None);
    let told = Step::Refuse("no class".to_owned());
    // A late leader may create the volume at any moment, and the class may come back.
    assert_eq!(refused(Published::Soon, true, there, false), told);
    assert_eq!(
        refused(Published::Soon, false, there, false),
        Step::AddClaimFinalizer
    );
    let gone = refused(Published::Soon, true, Answer::None, true);
    assert_eq!(gone, Step::RequestDeletion);
    assert_eq!(
        refused(Published::No, true, there, false),
        Step::RequestDeletion
    );
}

#[test]
fn what_was_ordered_of_a_class_that_was_made_anew_is_ordered_anew_unless_it_is_about_to_be_made() {
    let outdated = |published: Published| {
        waits(|claim, node_volume| {
            (claim.has_finalizer, claim.wish) = (true, Wish::Storage { node: None });
            (node_volume.outdated, node_volume.published) = (true, published);
        })
    };
    assert_eq!(outdated(Published::No), Step::RequestDeletion);
    // A late leader may create the volume at any moment.
    assert_eq!(outdated(Published::Soon), Step::CreatePersistentVolume);
}

#[test]
fn a_claim_that_ends_does_not_wait_until_storage_is_gone_that_it_never_had() {
    let ends = |deleting: bool, published: Published, wanted: StorageState| {
        let mut observed = waiting_for(|claim, node_volume| {
            (claim.deleting, claim.wish) = (deleting, Wish::Nothing);
            (node_volume.published, node_volume.desired) = (published, wanted);
        });
        observed.unavailable = Some(UnavailableNode {
            node: observed.node_volume.as_ref().unwrap().node.clone(),
            why: "silent".to_owned(),
            may_reschedule: true,
            removed: false,
        });
        decide(&observed)
    };
    let told = Step::Blocked("silent".to_owned());
    for published in [Published::No, Published::Soon, Published::Seen] {
        let of_node_volume = |wanted: StorageState| ends(true, published, wanted);
        assert_eq!(
            of_node_volume(StorageState::Absent),
            Step::RemoveClaimFinalizer
        );
        assert_eq!(ends(false, published, StorageState::Absent), told);
    }
    assert_eq!(
        ends(true, Published::Soon, StorageState::Present),
        Step::RequestDeletion
    );
}

#[test]
fn what_became_of_a_node_says_nothing_of_another_one() {
    let away = |of: &str, node_volume: bool, chosen: Option<&str>| {
        let mut observed = waiting_for(|claim, node_volume| {
            let node = chosen.map(str::to_owned);
            (claim.wish, node_volume.answer) = (Wish::Storage { node }, Answer::None);
        });
        observed.node_volume = observed.node_volume.filter(|_| node_volume);
        observed.unavailable = Some(UnavailableNode {
            node: of.to_owned(),
            why: "gone".to_owned(),
            may_reschedule: true,
            removed: true,
        });
        decide(&observed)
    };
    assert_eq!(away("n", true, None), Step::RequestDeletion);
    assert_eq!(away("m", true, None), Step::NoOp);
    assert_eq!(away("m", false, Some("m")), Step::Reschedule);
    let node = Some("n".to_owned());
    assert_eq!(away("m", false, Some("n")), Step::CreateNodeVolume { node });
}

#[test]
fn a_name_in_a_claim_binds_nothing_unless_the_volume_was_seen() {
    let named = |published: Published, wish: Wish| {
        waits(|claim, node_volume| {
            (claim.binding, claim.wish) = (Binding::Named, wish.clone());
            node_volume.published = published;
        })
    };
    let wants = || Wish::Storage { node: None };
    assert_eq!(named(Published::No, wants()), Step::MarkPublishing);
    assert_eq!(
        named(Published::Soon, wants()),
        Step::CreatePersistentVolume
    );
    for published in [Published::No, Published::Soon] {
        assert_eq!(named(published, Wish::Nothing), Step::RequestDeletion);
    }
    for wish in [wants(), Wish::Nothing] {
        let step = named(Published::Seen, wish);
        assert!(matches!(step, Step::Blocked(_)), "{step:?}");
    }
}

#[test]
fn a_node_volume_is_made_anew_of_what_may_be_there_and_of_no_more_than_the_class_allows() {
    let recalled = |request: u64, most: Option<u64>| {
        let mut observed = observed(30, 10);
        observed.node_volume = None;
        observed.volume.as_mut().unwrap().capacity = Bytes(30);
        let claim = observed.claim.as_mut().unwrap();
        (claim.request, claim.max_size) = (Bytes(request), most.map(Bytes));
        let step = decide(&observed);
        let step = match step {
            // Quota counts the size first.
            Step::SetAllocatedResources(size) => {
                assert!(size > Bytes(30));
                observed.claim.as_mut().unwrap().allocated = size;
                decide(&observed)
            }
            step => step,
        };
        match step {
            Step::RecreateNodeVolume { size, .. } => Some(size.0),
            Step::Blocked(_) => None,
            other => panic!("{other:?}"),
        }
    };
    // The volume first gets the node's actual size.
    assert_eq!(recalled(10, None), Some(30));
    assert_eq!(recalled(30, Some(20)), None);
    assert_eq!(recalled(10, Some(20)), None);
    // The requested size may have been reached without a report yet.
    assert_eq!(recalled(40, Some(50)), Some(40));
    assert_eq!(recalled(60, Some(50)), Some(50));
    // A class that is gone says nothing of sizes.
    let mut forbidden = observed(30, 10);
    forbidden.node_volume = None;
    forbidden.volume.as_mut().unwrap().capacity = Bytes(30);
    let claim = forbidden.claim.as_mut().unwrap();
    (claim.request, claim.forbidden) = (Bytes(60), Some("its class is gone".to_owned()));
    let again = decide(&forbidden);
    let same = matches!(again, Step::RecreateNodeVolume { size, .. } if size == Bytes(30));
    assert!(same, "{again:?}");
    let mut kept = observed(10, 10);
    (kept.node_volume, kept.claim) = (None, None);
    assert_eq!(decide(&kept), Step::NoOp, "nobody has the volume");
}

#[test]
fn a_node_volume_is_made_anew_with_what_was_allocated_and_less_is_ordered_if_the_node_cannot_have_that()
 {
    let mut lowered = observed(20, 10);
    lowered.node_volume = None;
    let claim = lowered.claim.as_mut().unwrap();
    claim.allocated = Bytes(100);
    let recreated = |size: u64| Step::RecreateNodeVolume {
        state: StorageState::Present,
        size: Bytes(size),
        most: Bytes(100),
    };
    assert_eq!(decide(&lowered), recreated(100));
    lowered.claim.as_mut().unwrap().max_size = Some(Bytes(50));
    assert_eq!(decide(&lowered), recreated(50));
    let failed = |class: ErrorClass| {
        let mut observed = observed(20, 100);
        let node_volume = observed.node_volume.as_mut().unwrap();
        node_volume.answer = Answer::None;
        node_volume.problem = Some(Problem {
            class,
            message: "no".to_owned(),
            is_persistent: false,
        });
        decide(&observed)
    };
    let less = Step::RequestSize(Bytes(20));
    assert_eq!(failed(ErrorClass::Exhausted), less);
    assert_eq!(failed(ErrorClass::Infeasible), less);
    // It may have the size, and have failed for another reason.
    assert_ne!(failed(ErrorClass::Retryable), less);
    assert_ne!(failed(ErrorClass::Uncertain), less);
}

#[test]
fn a_claim_has_finalizer_until_kubernetes_has_bound_it_or_it_is_deleted() {
    let settles = |binding: Binding, deleting: bool| {
        let mut observed = observed(10, 10);
        let claim = observed.claim.as_mut().unwrap();
        (claim.has_finalizer, claim.binding, claim.deleting) = (true, binding, deleting);
        decide(&observed)
    };
    assert_eq!(settles(Binding::Named, false), Step::NoOp);
    assert_eq!(settles(Binding::Named, true), Step::RemoveClaimFinalizer);
    assert_eq!(settles(Binding::This, false), Step::RemoveClaimFinalizer);
}

/// The NodeVolume was recreated after volume and storage had gone. If the storage was found once, it may hold data.
#[test]
fn an_order_of_storage_that_was_never_found_since_goes_when_claim_and_volume_have_gone() {
    let gone = |change: &dyn Fn(&mut NodeVolume)| {
        let mut observed = waiting_for(|_, node_volume| {
            let message = "no such volume".to_owned();
            node_volume.published = Published::Seen;
            node_volume.answer = Answer::None;
            node_volume.problem = Some(Problem {
                class: ErrorClass::Retryable,
                message,
                is_persistent: true,
            });
            change(node_volume);
        });
        observed.claim = None;
        decide(&observed)
    };
    let stays = |change: &dyn Fn(&mut NodeVolume)| matches!(gone(change), Step::Blocked(_));
    assert_eq!(gone(&|_| {}), Step::DeleteNodeVolume);
    assert!(stays(
        &|node_volume| node_volume.answer = Answer::Present(Some(Bytes(10)))
    ));
    assert!(stays(&|node_volume| node_volume.answered = false));
    assert!(stays(&|node_volume| node_volume.problem = None));
    assert!(stays(&|node_volume| {
        node_volume.problem.as_mut().unwrap().is_persistent = false;
    }));
    let mut lost = waiting_for(|claim, node_volume| {
        claim.binding = Binding::Named;
        node_volume.published = Published::Seen;
        node_volume.answer = Answer::None;
    });
    lost.node_volume.as_mut().unwrap().problem = Some(Problem {
        class: ErrorClass::Retryable,
        message: "no such volume".to_owned(),
        is_persistent: true,
    });
    assert!(
        matches!(decide(&lost), Step::Blocked(_)),
        "its claim is there"
    );
}

#[test]
fn who_waits_is_told_of_which_node_and_that_it_is_late() {
    let late = |problem: Option<&str>| {
        let mut observed = waiting_for(|_, node_volume| {
            node_volume.answer = Answer::None;
            node_volume.problem = problem.map(|message| Problem {
                class: ErrorClass::Retryable,
                message: message.to_owned(),
                is_persistent: false,
            });
        });
        observed.late = Some("late".to_owned());
        decide(&observed)
    };
    assert_eq!(late(None), Step::Blocked("late".to_owned()));
    assert_eq!(late(Some("no")), Step::Blocked("node n: no".to_owned()));
}
