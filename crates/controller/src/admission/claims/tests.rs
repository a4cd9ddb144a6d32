use super::*;
use crate::api::well_known::LARGEST;
use proptest::prelude::*;
use serde_json::{Value, from_value, json};

const GIB: u64 = 1 << 30;

fn class(largest: Option<&str>) -> StorageClass {
    let annotations = largest.map(|size| json!({LARGEST: size}));
    from_value(json!({
        "metadata": {"name": "disk", "annotations": annotations},
        "provisioner": "example.com/disk",
    }))
    .unwrap()
}

fn node_volume(size: u64, status: Value) -> NodeVolume {
    from_value(json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"name": "pvc-1", "generation": 3},
        "spec": {
            "driver": "example.com/disk", "node": "n", "state": "Present", "size": size,
            "claim": {"namespace": "default", "name": "data", "uid": "1"},
        },
        "status": status,
    }))
    .unwrap()
}

fn node(room: Option<u64>) -> (String, StorageNodeStatus) {
    let capacities = room.map(|room| ("disk".to_owned(), room));
    let status = StorageNodeStatus {
        drivers: [("example.com/disk".to_owned(), Default::default())].into(),
        capacities: capacities.into_iter().collect(),
        last_heartbeat_time: None,
        ..StorageNodeStatus::default()
    };
    ("n".to_owned(), status)
}

fn asked(size: u64) -> Expansion {
    Expansion {
        asked: Bytes(size),
        uncountable_reason: None,
        has: Bytes(GIB),
        driver: "example.com/disk".to_owned(),
        class: Some(class(None)),
        node_volume: Some(node_volume(GIB, json!({"state": "Present", "size": GIB}))),
        node: Some(node(Some(4 * GIB))),
        silence: None,
    }
}

#[test]
fn what_cannot_be_had_is_refused_with_what_can() {
    assert_eq!(asked(5 * GIB).verdict(), Verdict::allowed());
    let refused = |expansion: Expansion| expansion.verdict().refusal.unwrap();
    let why = refused(asked(6 * GIB));
    assert!(why.contains("ask for at most 5Gi"), "{why}");
    let limited = Expansion {
        class: Some(class(Some("2Gi"))),
        ..asked(3 * GIB)
    };
    let why = refused(limited);
    assert!(why.contains("at most 2Gi"), "{why}");
    let fixed = json!({"state": "Present", "nodeExpansionRequired": false});
    let fixed = Expansion {
        node_volume: Some(node_volume(GIB, fixed)),
        ..asked(2 * GIB)
    };
    let why = refused(fixed);
    assert!(why.contains("make a claim of the size you need"), "{why}");
    let mistaken = Expansion {
        class: Some(class(Some("large"))),
        ..asked(2 * GIB)
    };
    assert!(refused(mistaken).contains("mend it"));
}

#[test]
fn the_room_of_the_pool_that_a_class_names_now_says_nothing_of_volumes_of_another_one() {
    let full = |pool: &str| {
        let mut expansion = asked(2 * GIB);
        let parameters = |pool: &str| [("pool".to_owned(), pool.to_owned())].into();
        expansion.node_volume.as_mut().unwrap().spec.parameters = parameters("slow");
        expansion.class.as_mut().unwrap().parameters = Some(parameters(pool));
        expansion.node = Some(node(Some(1)));
        expansion.verdict().refusal
    };
    assert!(full("slow").is_some());
    assert_eq!(full("fast"), None);
}

#[test]
fn more_than_a_driver_has_just_refused_is_not_tried_and_less_is() {
    let failed = |generation: u64, class: &str| {
        json!({
            "state": "Present", "size": GIB, "observedGeneration": generation, "failures": 1,
            "error": {"class": class, "message": "the pool ends at 2Gi"},
        })
    };
    let after = |size: u64, status: Value| {
        let expansion = Expansion {
            node_volume: Some(node_volume(3 * GIB, status)),
            ..asked(size)
        };
        expansion.verdict().refusal
    };
    let why = after(4 * GIB, failed(3, "infeasible")).unwrap();
    assert!(
        why.contains("the pool ends at 2Gi; ask for less than that"),
        "{why}"
    );
    assert_eq!(after(2 * GIB, failed(3, "infeasible")), None);
    // A retryable failure may pass, and an answer to another request tells nothing.
    assert_eq!(after(4 * GIB, failed(3, "retryable")), None);
    assert_eq!(after(4 * GIB, failed(2, "infeasible")), None);
}

#[test]
fn a_driver_that_does_not_answer_is_told_and_hinders_nobody() {
    let mut expansion = asked(2 * GIB);
    expansion.node.as_mut().unwrap().1.drivers.clear();
    let verdict = expansion.verdict();
    assert_eq!(verdict.refusal, None);
    assert!(verdict.warnings[0].contains("does not answer on node n"));
}

#[test]
fn what_a_silent_agent_said_refuses_nothing() {
    let silent = Expansion {
        silence: Some(LastHeartbeat::Since("12:00".to_owned())),
        ..asked(6 * GIB)
    };
    let verdict = silent.verdict();
    assert_eq!(verdict.refusal, None);
    let warning = &verdict.warnings[0];
    assert!(warning.contains("was last heard of at 12:00"), "{warning}");
}

#[test]
fn what_nobody_tells_of_passes() {
    let nothing = Expansion {
        asked: Bytes(u64::MAX),
        ..Expansion::default()
    };
    assert_eq!(nothing.verdict(), Verdict::allowed());
    let roomless = Expansion {
        node: Some(node(None)),
        ..asked(6 * GIB)
    };
    assert_eq!(roomless.verdict(), Verdict::allowed());
    let no_new_one = Expansion {
        node: Some(node(Some(0))),
        ..asked(6 * GIB)
    };
    assert_eq!(no_new_one.verdict(), Verdict::allowed());
}

fn claim(size: u64) -> PersistentVolumeClaim {
    let size = Bytes(size).to_string();
    from_value(json!({"spec": {"resources": {"requests": {"storage": size}}}})).unwrap()
}

#[test]
fn growth_to_more_than_kubernetes_counts_is_refused() {
    let mut new = claim(2);
    let requests = json!({"requests": {"storage": "8Ei"}});
    new.spec.as_mut().unwrap().resources = from_value(requests).unwrap();
    let uncountable_reason = uncountable_reason(new.spec.as_ref().unwrap());
    let uid = String::new();
    let update = Update {
        uid,
        new,
        old: claim(1),
    };
    let asked = expansion(&update).unwrap();
    let huge = Expansion {
        asked,
        uncountable_reason,
        ..Expansion::default()
    };
    let why = huge.verdict().refusal.unwrap();
    assert_eq!(why, "size 8Ei cannot be had; ask for less");
}

proptest! {
    #[test]
    fn a_size_that_passes_passes_also_if_less_is_asked_for(
        size in GIB..9 * GIB, room in 1..9 * GIB, largest in GIB..9 * GIB, less in 0..GIB,
    ) {
        let expansion = |asked_for: u64| Expansion {
            class: Some(class(Some(&largest.to_string()))),
            node: Some(node(Some(room))),
            ..asked(asked_for)
        };
        if expansion(size).verdict().refusal.is_none() {
            prop_assert!(expansion(size - less).verdict().refusal.is_none());
            prop_assert!(size <= largest && size - GIB <= room);
        }
    }

    #[test]
    fn only_more_than_before_is_growth(old in 1..u64::from(u32::MAX), new in 1..u64::from(u32::MAX)) {
        let update = Update { uid: String::new(), new: claim(new), old: claim(old) };
        prop_assert_eq!(expansion(&update), (new > old).then_some(Bytes(new)));
    }
}
