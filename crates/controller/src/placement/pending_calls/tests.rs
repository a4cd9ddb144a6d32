use super::*;
use crate::placement::tests::{mute, nodes, of};
use flexvol_sdk::Bytes;
use serde_json::{Value, from_value, json};

fn node_volume(name: &str, wanted: &str, status: &Value) -> NodeVolume {
    from_value(json!({
        "apiVersion": NodeVolume::api_version(), "kind": "NodeVolume",
        "metadata": {"name": name, "generation": if wanted == "Present" { 1 } else { 2 }},
        "spec": {
            "driver": "a/b", "node": "n", "state": wanted, "size": 2,
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
        },
        "status": status,
    }))
    .unwrap()
}

fn failed(class: &str, generation: i64) -> Value {
    let problem = json!({"class": class, "message": "no"});
    json!({"error": problem, "failures": 1, "observedGeneration": generation})
}

#[tokio::test(start_paused = true)]
async fn a_node_volume_that_is_not_answered_for_a_minute_tells_that_its_driver_hangs() {
    let mut all = PendingCalls::default();
    all.seen(&node_volume("one", "Present", &json!({})));
    tokio::time::advance(LONG / 2).await;
    all.seen(&node_volume("one", "Present", &json!({})));
    assert!(!all.is_hanging("n", "a/b"));
    tokio::time::advance(LONG / 2).await;
    assert!(all.is_hanging("n", "a/b"));
    assert!(!all.is_hanging("n", "a/c") && !all.is_hanging("m", "a/b"));
    let made = json!({"state": "Present", "size": 2, "observedGeneration": 1});
    all.seen(&node_volume("one", "Present", &made));
    assert!(!all.is_hanging("n", "a/b") && all.calls.is_empty() && all.node_drivers.is_empty());
    all.seen(&node_volume("two", "Absent", &made));
    tokio::time::advance(LONG).await;
    assert!(all.is_hanging("n", "a/b"));
    all.gone(["two"].into_iter());
    assert!(all.calls.is_empty() && all.node_drivers.is_empty());
}

#[test]
fn a_driver_that_was_killed_hangs_until_it_has_made_or_refused_something() {
    let mut all = PendingCalls::default();
    let made = json!({"state": "Present", "size": 2, "observedGeneration": 1});
    all.seen(&node_volume("one", "Present", &failed("uncertain", 1)));
    assert!(all.is_hanging("n", "a/b"));
    // A new leader comes to the same result.
    all.seen(&node_volume("settled", "Present", &made));
    assert!(all.is_hanging("n", "a/b"), "it was made before that");
    all.seen(&node_volume("one", "Absent", &failed("uncertain", 1)));
    all.seen(&node_volume("one", "Absent", &json!({"state": "Absent"})));
    all.gone(["one"].into_iter());
    assert!(all.is_hanging("n", "a/b"), "what it could not make is gone");
    for (name, answer) in [("two", made), ("three", failed("retryable", 1))] {
        all.seen(&node_volume("one", "Present", &failed("uncertain", 1)));
        all.seen(&node_volume(name, "Present", &json!({})));
        assert!(all.is_hanging("n", "a/b"));
        all.seen(&node_volume(name, "Present", &answer));
        assert!(!all.is_hanging("n", "a/b"), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_not_done_stalls_and_what_waits_for_its_turn_does_not() {
    const LONGEST: Duration = Duration::from_secs(800);
    let mut all = PendingCalls::default();
    let made = json!({"state": "Present", "size": 2, "observedGeneration": 1});
    for name in ["one", "two"] {
        all.seen(&node_volume(name, "Present", &json!({})));
    }
    tokio::time::advance(LONGEST / 2).await;
    all.seen(&node_volume("one", "Present", &made));
    tokio::time::advance(LONGEST / 2).await;
    assert!(
        all.stalled(|_| LONGEST).is_empty(),
        "the driver makes others"
    );
    tokio::time::advance(LONGEST / 2).await;
    assert_eq!(all.stalled(|_| LONGEST), ["two"]);
    all.seen(&node_volume("one", "Absent", &made));
    assert!(!all.is_stalled("n", "a/b", "one", LONGEST));
    tokio::time::advance(LONGEST).await;
    assert_eq!(all.stalled(|_| LONGEST), ["one"]);
    assert!(all.stalled(|_| LONGEST).is_empty(), "it is told once");
    assert!(
        all.stalled(|_| LONGEST * 2).is_empty(),
        "it may take longer"
    );
    tokio::time::advance(LONGEST).await;
    assert_eq!(all.stalled(|_| LONGEST * 2), ["one"], "and has not come");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_in_a_minute_is_told_once_unless_others_are_done_meanwhile() {
    let mut all = PendingCalls::default();
    let made = json!({"state": "Present", "size": 2, "observedGeneration": 1});
    for name in ["one", "two"] {
        all.seen(&node_volume(name, "Present", &json!({})));
    }
    tokio::time::advance(LONG / 2).await;
    all.seen(&node_volume("two", "Present", &made));
    tokio::time::advance(LONG / 2).await;
    assert!(all.late().is_empty(), "it has its turn");
    tokio::time::advance(LONG / 2).await;
    assert_eq!(all.late(), ["one"]);
    assert!(all.late().is_empty(), "it was told");
    assert!(all.is_late("n", "a/b", "one"));
    all.seen(&node_volume("one", "Present", &failed("retryable", 1)));
    assert!(!all.is_late("n", "a/b", "one"), "it says why");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_and_makes_nothing_counts_as_hanging_until_an_hour_after() {
    let mut all = PendingCalls::default();
    let longest = LONG * 13;
    for class in ["retryable", "uncertain", "retryable", "retryable"] {
        all.seen(&node_volume("one", "Present", &failed(class, 1)));
        all.seen(&node_volume("made", "Present", &failed("retryable", 1)));
        all.seen(&node_volume("two", "Absent", &failed("retryable", 2)));
        tokio::time::advance(LONG / 4).await;
    }
    let made = json!({"state": "Present", "size": 2, "observedGeneration": 1});
    all.seen(&node_volume("made", "Present", &made));
    assert!(all.is_hanging("n", "a/b") && all.stalled(|_| longest).is_empty());
    tokio::time::advance(longest - LONG).await;
    let less = json!({"state": "Present", "size": 1, "observedGeneration": 1});
    all.seen(&node_volume("one", "Present", &less));
    assert_eq!(all.stalled(|_| longest), ["one"]);
    assert!(all.stalled(|_| longest).is_empty(), "it was told");
    assert!(all.is_stalled("n", "a/b", "one", longest));
    assert!(!all.is_stalled("n", "a/b", "made", longest));
    all.seen(&node_volume("one", "Absent", &json!({"state": "Absent"})));
    assert!(!all.is_stalled("n", "a/b", "one", longest));
    all.gone(["one"].into_iter());
    tokio::time::advance(REMEMBERED - LONG).await;
    assert!(all.is_hanging("n", "a/b"));
    tokio::time::advance(LONG).await;
    assert!(!all.is_hanging("n", "a/b"));
    all.gone([].into_iter());
    assert!(all.calls.is_empty() && all.node_drivers.is_empty());
}

/// The NodeVolume was deleted and recreated while the watch was broken.
#[tokio::test(start_paused = true)]
async fn a_node_volume_that_is_of_another_node_when_it_is_seen_again_is_waited_for_there_alone() {
    for answer in [json!({}), json!({"state": "Present", "size": 2})] {
        let mut all = PendingCalls::default();
        all.seen(&node_volume("one", "Present", &json!({})));
        let mut anew = node_volume("one", "Present", &answer);
        anew.spec.node = "m".to_owned();
        all.seen(&anew);
        tokio::time::advance(LONG * 60).await;
        assert!(!all.is_hanging("n", "a/b"));
        assert_eq!(all.is_hanging("m", "a/b"), answer == json!({}));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_driver_hangs_is_chosen_last() {
    let nodes = nodes(&[("n", Some(30)), ("small", Some(10)), ("unknown", None)]);
    nodes.put(mute("mute", 0, true));
    let choose = |size| {
        nodes
            .select_node("a/b", "class", Bytes(size), of("v"))
            .unwrap()
    };
    nodes.node_volume_seen(&node_volume("w", "Present", &json!({})));
    assert_eq!(choose(1), "n");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(choose(1), "small");
    assert_eq!(choose(20), "mute");
    nodes.remove("mute");
    assert_eq!(choose(20), "unknown");
    nodes.remove("unknown");
    assert_eq!(choose(20), "n", "there is no other");
    assert_eq!(nodes.capacities("a/b", "class").len(), 2);
    nodes.node_volumes_gone(["w"].into_iter());
    assert_eq!(choose(1), "n");
}

/// Sixteen calls of its driver hang until they are killed, so that the last of many volumes waits for hours, and now and
/// then the driver answers one that grows.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_unmade_is_given_up_though_others_are_done_now_and_then() {
    const LONGEST: Duration = Duration::from_secs(800);
    let mut all = PendingCalls::default();
    let made = json!({"state": "Present", "size": 2, "observedGeneration": 1});
    all.seen(&node_volume("unmade", "Present", &json!({})));
    let (mut stalled, mut late) = (Vec::new(), Vec::new());
    for round in 0..24 * 6 {
        tokio::time::advance(Duration::from_secs(590)).await;
        let name = format!("other{round}");
        all.seen(&node_volume(&name, "Present", &json!({})));
        tokio::time::advance(Duration::from_secs(10)).await;
        all.seen(&node_volume(&name, "Present", &made));
        stalled.extend(all.stalled(|_| LONGEST));
        late.extend(all.late());
    }
    assert_eq!(
        (stalled.len(), late.len()),
        (1, 1),
        "after a day it is neither given up nor told of"
    );
}
