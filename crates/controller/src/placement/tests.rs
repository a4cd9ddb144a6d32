mod last_heartbeat;

use super::*;
use flexvol_sdk::ErrorClass;
use serde_json::{Value, from_value, json};

fn node(name: &str, seen: u32, room: Option<u64>) -> StorageNode {
    let capacities = room.map_or(json!({}), |room| json!({"class": room}));
    let status: Value = json!({
        "drivers": {"a/b": {}}, "capacities": capacities, "lastHeartbeatTime": format!("12:00:{seen:02}"),
    });
    from_value(json!({
        "apiVersion": StorageNode::api_version(), "kind": "StorageNode",
        "metadata": {"name": name}, "status": status,
    }))
    .unwrap()
}

/// A volume of a claim in the namespace `ns`.
pub(super) fn of(volume: &str) -> VolumeRequest<'_> {
    VolumeRequest {
        volume,
        namespace: "ns",
    }
}

/// A retryable failure of a node's driver.
fn fail(nodes: &Nodes, node: &str, asker: VolumeRequest<'_>) {
    nodes.record_failure(node, "class", asker, ErrorClass::Retryable, "no pool");
}

pub(super) fn nodes(rooms: &[(&str, Option<u64>)]) -> Nodes {
    let nodes = Nodes::new(SILENCE);
    for (name, room) in rooms {
        nodes.put(node(name, 0, *room));
    }
    nodes
}

#[test]
fn the_node_with_the_most_room_is_chosen_and_none_without_enough() {
    let nodes = nodes(&[("one", Some(10)), ("two", Some(30)), ("three", Some(20))]);
    assert_eq!(
        nodes
            .select_node("a/b", "class", Bytes(30), of("v"))
            .unwrap(),
        "two"
    );
    let refused = nodes
        .select_node("a/b", "class", Bytes(31), of("v"))
        .unwrap_err();
    let words = refused.to_string();
    assert!(words.contains("no node has room for 31"), "{words}");
    assert!(
        nodes
            .select_node("a/c", "class", Bytes(1), of("v"))
            .is_err()
    );
    assert!(nodes.check("two", "a/c").is_err());
    assert!(nodes.check("four", "a/b").is_err());
    let lacks =
        |node, driver, size| nodes.unfit_reason(node, driver, "class", Bytes(size), of("v"));
    assert_eq!(lacks("two", "a/b", 30), None);
    assert!(lacks("two", "a/b", 31).unwrap().contains("no room for 31"));
    assert!(lacks("two", "a/c", 1).unwrap().contains("does not answer"));
    assert_eq!(lacks("four", "a/b", 1), None, "nothing is heard of it");
}

#[test]
fn what_a_node_could_not_make_of_a_class_says_nothing_of_one_that_replaces_it() {
    for is_seen_to_go in [false, true] {
        let nodes = nodes(&[("one", Some(30))]);
        let lacks = || nodes.unfit_reason("one", "a/b", "class", Bytes(20), of("v"));
        nodes.class_seen("class", "1");
        nodes.record_exhausted("one", "class", Bytes(20), of("v"));
        fail(&nodes, "one", of("v"));
        nodes.class_seen("class", "1");
        assert!(lacks().is_some(), "it is the same");
        if is_seen_to_go {
            nodes.class_gone("class");
        } else {
            nodes.class_seen("class", "2");
        }
        assert_eq!(lacks(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_to_which_nothing_can_be_bound_is_not_offered_for_ever_longer() {
    let nodes = Nodes::new(Duration::from_secs(3600));
    let offered = || {
        for name in ["taken", "free"] {
            nodes.put(node(name, 0, Some(30)));
        }
        nodes.capacities("a/b", "class").len()
    };
    assert_eq!(offered(), 2);
    for minutes in [1, 2, 4] {
        nodes.record_unbindable("taken");
        // A failure of another claim during the pause.
        nodes.record_unbindable("taken");
        tokio::time::advance(Duration::from_secs(minutes * 60 - 1)).await;
        assert_eq!(offered(), 1, "{minutes}");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(offered(), 2, "{minutes}");
    }
    nodes.record_created("taken", "class", Bytes(1));
    nodes.record_unbindable("taken");
    nodes.record_unbindable("free");
    assert_eq!(offered(), 2, "one is as good as the other");
    tokio::time::advance(Duration::from_secs(60)).await;
    nodes.record_unbindable("free");
    assert_eq!(offered(), 1);
}

#[test]
fn a_driver_that_tells_no_capacity_is_tried() {
    let nodes = nodes(&[("one", None)]);
    assert_eq!(
        nodes
            .select_node("a/b", "class", Bytes(1), of("v"))
            .unwrap(),
        "one"
    );
}

/// The report of an agent whose driver has no callout `capacity`, or could not tell the capacity of one class.
pub(super) fn mute(name: &str, seen: u32, capacity_unsupported: bool) -> StorageNode {
    let mut node = node(name, seen, None);
    let driver = node.status.drivers.get_mut("a/b").unwrap();
    driver.capacity_unsupported = capacity_unsupported;
    node
}

#[test]
fn a_node_of_which_nothing_is_known_is_chosen_last_and_not_offered() {
    let nodes = nodes(&[("unknown", None), ("small", Some(10))]);
    nodes.put(mute("mute", 0, true));
    let choose = |size| {
        nodes
            .select_node("a/b", "class", Bytes(size), of("v"))
            .unwrap()
    };
    assert_eq!(choose(10), "small");
    assert_eq!(choose(11), "mute", "only trying tells");
    let offered = nodes.capacities("a/b", "class");
    let offered: Vec<_> = offered.iter().map(|room| room.node.as_str()).collect();
    assert_eq!(offered, ["mute", "small"]);
    nodes.remove("mute");
    assert_eq!(choose(11), "unknown");
    assert_eq!(
        nodes.unfit_reason("unknown", "a/b", "class", Bytes(11), of("v")),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_failed_is_not_asked_for_a_while_or_until_it_can_tell_its_room() {
    let nodes = nodes(&[("one", None)]);
    let room = || nodes.select_node("a/b", "class", Bytes(1), of("v"));
    fail(&nodes, "one", of("v"));
    let words = room().unwrap_err().to_string();
    assert!(words.contains("node one failed again and again"), "{words}");
    assert!(
        nodes
            .unfit_reason("one", "a/b", "class", Bytes(1), of("v"))
            .is_some()
    );
    assert_eq!(
        nodes.unfit_reason("one", "a/b", "other", Bytes(1), of("v")),
        None
    );
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(room().is_ok());
    nodes.put(node("one", 1, None));
    fail(&nodes, "one", of("v"));
    nodes.put(node("one", 2, None));
    assert!(room().is_err());
    assert!(nodes.put(node("one", 3, Some(9))), "that is more");
    assert!(room().is_ok());
    assert_eq!(nodes.capacities("a/b", "class").len(), 1);
    fail(&nodes, "one", of("v"));
    nodes.put(node("one", 4, Some(8)));
    assert!(room().is_err(), "it says what it said before");
    assert_eq!(
        nodes.capacities("a/b", "class").len(),
        1,
        "others may have one"
    );
    nodes.record_created("one", "class", Bytes(1));
    assert!(room().is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_one_tenants_claims_make_fail_says_nothing_of_a_node_to_others() {
    let nodes = nodes(&[("one", Some(30)), ("two", Some(10))]);
    let choose = |volume, namespace, size| {
        let asker = VolumeRequest { volume, namespace };
        nodes
            .select_node("a/b", "class", Bytes(size), asker)
            .unwrap()
    };
    for volume in ["v", "w"] {
        fail(&nodes, "one", of(volume));
    }
    assert_eq!(choose("v", "ns", 1), "two", "it was tried there");
    assert_eq!(choose("x", "ns", 1), "two", "it is the tenant's own");
    assert_eq!(choose("x", "ns", 20), "one", "nobody else has room");
    assert_eq!(choose("x", "other", 1), "one");
    assert_eq!(nodes.capacities("a/b", "class").len(), 2);
    let other = VolumeRequest {
        volume: "y",
        namespace: "other",
    };
    fail(&nodes, "one", other);
    let rooms = || {
        nodes
            .capacities("a/b", "class")
            .into_iter()
            .map(|room| room.node)
    };
    assert_eq!(choose("x", "third", 1), "two");
    assert_eq!(choose("x", "third", 20), "one", "it is taken last");
    assert_eq!(Vec::from_iter(rooms()), ["two"]);
    for asker in [of("v"), other] {
        fail(&nodes, "two", asker);
    }
    assert_eq!(choose("x", "third", 1), "one", "all fail");
    assert_eq!(Vec::from_iter(rooms()), ["one", "two"]);
    nodes.record_created("two", "class", Bytes(1));
    assert_eq!(choose("x", "third", 1), "two", "it made one");
    tokio::time::advance(Duration::from_secs(120)).await;
    assert_eq!(choose("v", "ns", 1), "one", "that was long ago");
}

#[tokio::test(start_paused = true)]
async fn what_two_nodes_call_infeasible_is_asked_of_no_third_and_counts_against_none() {
    let rooms = [("one", Some(30)), ("two", Some(20)), ("three", Some(10))];
    let nodes = nodes(&rooms);
    let beats = std::cell::Cell::new(0);
    let wait = async |seconds| {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        beats.set(beats.get() + 1);
        for (name, room) in rooms {
            nodes.put(node(name, beats.get(), room));
        }
    };
    let choose = |asker| nodes.select_node("a/b", "class", Bytes(1), asker);
    let refuse = |node| {
        let least = "a volume has at least 1Mi";
        nodes.record_failure(node, "class", of("v"), ErrorClass::Infeasible, least);
    };
    refuse("one");
    assert_eq!(nodes.infeasible_reason("class", of("v")), None);
    // The second node may take long, and the first is not asked again meanwhile.
    wait(300).await;
    assert_eq!(choose(of("v")).unwrap(), "two");
    assert_eq!(choose(of("w")).unwrap(), "one", "of the same tenant");
    assert!(
        nodes
            .unfit_reason("one", "a/b", "class", Bytes(1), of("v"))
            .is_some()
    );
    refuse("two");
    let words = choose(of("v")).unwrap_err().to_string();
    let expected = "2 nodes say (a volume has at least 1Mi); make a claim that it can have";
    assert!(words.contains(expected), "{words}");
    assert!(nodes.infeasible_reason("class", of("v")).is_some());
    assert_eq!(nodes.infeasible_reason("other", of("v")), None);
    for node in ["one", "two"] {
        nodes.record_created(node, "class", Bytes(1));
    }
    assert!(choose(of("v")).is_err(), "another volume can be had");
    assert_eq!(nodes.capacities("a/b", "class").len(), 3);
    wait(599).await;
    assert!(choose(of("v")).is_err(), "the last verdict counts");
    wait(1).await;
    assert_eq!(choose(of("v")).unwrap(), "one", "now and then it is tried");
    refuse("one");
    wait(1199).await;
    assert!(choose(of("v")).is_err(), "and ever more rarely");
    wait(1).await;
    assert!(choose(of("v")).is_ok());
}

#[test]
fn nodes_share_what_is_ordered_before_they_can_tell_what_is_left() {
    let nodes = nodes(&[("one", Some(30)), ("two", Some(30)), ("three", Some(30))]);
    let choose = |volume: &str| {
        let node = nodes
            .select_node("a/b", "class", Bytes(1), of(volume))
            .unwrap();
        nodes.record_request(&node, volume, Bytes(1));
        node
    };
    let mut chosen: Vec<_> = (0..6).map(|number| choose(&format!("v{number}"))).collect();
    chosen.sort();
    assert_eq!(chosen, ["one", "one", "three", "three", "two", "two"]);
    // Of equal nodes, the volume's name alone decides.
    let alone = |volume: &str| {
        let nodes = self::nodes(&[("one", Some(30)), ("two", Some(30)), ("three", Some(30))]);
        nodes
            .select_node("a/b", "class", Bytes(1), of(volume))
            .unwrap()
    };
    let all: std::collections::BTreeSet<_> = (0..20).map(|n| alone(&format!("v{n}"))).collect();
    assert_eq!(all.len(), 3);
    // The agent's next report includes the volumes that were made.
    nodes.complete_request("one", "v0");
    let load = |node: &str| nodes.all().get(node).unwrap().load.sum();
    for node in ["one", "two", "three"] {
        assert_eq!(load(node), Bytes(2));
        for volume in 0..6 {
            nodes.complete_request(node, &format!("v{volume}"));
        }
        assert_eq!(load(node), Bytes(2));
        nodes.put(self::node(node, 1, Some(28)));
        assert_eq!(load(node), Bytes(0));
    }
    // The load does not refuse a volume.
    nodes.record_request("one", "w", Bytes(28));
    nodes.remove("two");
    nodes.remove("three");
    assert!(
        nodes
            .select_node("a/b", "class", Bytes(28), of("v"))
            .is_ok()
    );
}

#[test]
fn a_node_where_no_pods_run_is_chosen_last_or_not_at_all() {
    let nodes = nodes(&[("own", Some(30)), ("other", Some(10))]);
    let choose = |size| nodes.select_node("a/b", "class", Bytes(size), of("v"));
    nodes.set_unschedulable("own", Some(Unschedulable::Tainted));
    assert_eq!(choose(10).unwrap(), "other");
    assert_eq!(choose(11).unwrap(), "own", "its pods may tolerate that");
    nodes.set_unschedulable("own", Some(Unschedulable::Cordoned));
    let words = choose(11).unwrap_err().to_string();
    assert!(
        words.ends_with("of nodes that do not count, node own is cordoned"),
        "{words}"
    );
    nodes.set_unschedulable("own", None);
    assert_eq!(choose(10).unwrap(), "own");
}

#[test]
fn only_what_a_node_did_not_offer_before_is_more() {
    let nodes = nodes(&[("one", Some(10))]);
    assert!(!nodes.put(node("one", 1, Some(10))));
    assert!(!nodes.put(node("one", 2, Some(9))));
    assert!(nodes.put(node("one", 3, Some(10))));
    assert!(nodes.put(node("two", 1, None)));
}
