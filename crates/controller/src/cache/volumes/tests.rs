use super::*;
use serde_json::{Value, from_value, json};

fn node_volume(wanted: &str, size: u64) -> NodeVolume {
    from_value(json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"name": "pvc-1", "uid": "o", "resourceVersion": "7", "generation": 1},
        "spec": {
            "driver": "a/b", "node": "n", "state": wanted, "size": size, "published": true,
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
        },
        "status": {"state": "Present", "size": 2, "observedGeneration": 1},
    }))
    .unwrap()
}

fn volume(phase: &str, by: &str) -> PersistentVolume {
    let volume: Value = json!({
        "metadata": {
            "name": "pvc-1", "uid": "v", "resourceVersion": "8",
            "annotations": {"pv.kubernetes.io/provisioned-by": by},
        },
        "spec": {
            "claimRef": {"namespace": "ns", "name": "data", "uid": "1"},
            "flexVolume": {"driver": "a/b"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
        "status": {"phase": phase},
    });
    from_value(volume).unwrap()
}

fn version_of(version: &str) -> ObjectMeta {
    ObjectMeta {
        resource_version: Some(version.to_owned()),
        ..ObjectMeta::default()
    }
}

/// The number of volumes in each state that has any, and of those whose last call failed.
fn counted(index: &Index) -> (Vec<(&'static str, usize)>, usize) {
    let (states, failing) = index.count();
    let states = states.into_iter().filter(|(_, count)| *count > 0);
    let states = states.map(|(state, count)| (state.name(), count));
    (states.collect(), failing)
}

fn index(volume: &PersistentVolume, node_volume: &NodeVolume) -> Index {
    let index = Index::default();
    index.volume(volume, Presence::There, &ServedDrivers::from(["a/b"]));
    index.node_volume(node_volume, Presence::There, &ServedDrivers::from(["a/b"]));
    index
}

#[test]
fn an_answer_that_comes_after_later_news_changes_nothing() {
    let ours = ServedDrivers::from(["a/b"]);
    let index = index(&volume("Bound", "a/b"), &node_volume("Present", 3));
    let version = |index: &Index| index.get("pvc-1").node_volume.unwrap().version;
    let mut answer = node_volume("Present", 4);
    answer.metadata.resource_version = Some("9".to_owned());
    index.node_volume_written(&version_of("7"), &answer, &ours);
    assert_eq!(version(&index), "9", "as written");
    let mut later = answer.clone();
    later.metadata.resource_version = Some("11".to_owned());
    index.node_volume(&later, Presence::There, &ours);
    answer.metadata.resource_version = Some("10".to_owned());
    index.node_volume_written(&version_of("9"), &answer, &ours);
    assert_eq!(version(&index), "11", "the watch was faster");
    index.volume_written(&version_of("1"), &volume("Released", "a/b"), &ours);
    assert_eq!(index.get("pvc-1").volume.unwrap().version, "8");
    // A write's result does not bring a deleted object back.
    index.node_volume(&later, Presence::Gone, &ours);
    index.node_volume_written(&version_of("11"), &answer, &ours);
    assert!(index.get("pvc-1").node_volume.is_none());
}

#[test]
fn a_volume_is_settled_while_it_stays_and_has_what_was_ordered() {
    let bound = || volume("Bound", "a/b");
    let settled = index(&bound(), &node_volume("Present", 2));
    assert!(settled.is_settled("pvc-1"));
    assert_eq!(counted(&settled), (vec![("settled", 1)], 0));
    let mut unpublished = node_volume("Present", 2);
    unpublished.spec.published = false;
    let mut unanswered = node_volume("Present", 2);
    unanswered.status = None;
    for (volume, node_volume, state) in [
        (bound(), node_volume("Present", 3), "growing"),
        (bound(), node_volume("Absent", 2), "deleting"),
        (
            volume("Released", "a/b"),
            node_volume("Present", 2),
            "deleting",
        ),
        (
            volume("Bound", "somebody/else"),
            node_volume("Present", 2),
            "unsettled",
        ),
        (bound(), unpublished, "creating"),
        (bound(), unanswered, "unsettled"),
    ] {
        let index = index(&volume, &node_volume);
        assert!(!index.is_settled("pvc-1"), "{volume:?} {node_volume:?}");
        assert_eq!(index.unsettled(), ["pvc-1"]);
        assert_eq!(counted(&index), (vec![(state, 1)], 0));
    }
}

#[test]
fn a_released_volume_that_is_retained_is_kept() {
    let mut kept = volume("Released", "a/b");
    let spec = kept.spec.as_mut().unwrap();
    spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
    let kept = index(&kept, &node_volume("Present", 2));
    assert_eq!(counted(&kept), (vec![("kept", 1)], 0));
}

#[test]
fn a_node_that_fails_in_the_same_way_again_says_nothing_new() {
    let failed = |times: u32, why: &str| {
        let mut node_volume = node_volume("Present", 3);
        let problem = json!({"class": "exhausted", "message": why});
        let mut status = serde_json::to_value(node_volume.status.take()).unwrap();
        status["error"] = problem;
        status["failures"] = times.into();
        node_volume.status = from_value(status).unwrap();
        node_volume.metadata.resource_version = Some(times.to_string());
        node_volume
    };
    let index = Index::default();
    let node_volume = |node_volume, presence| {
        index.node_volume(&node_volume, presence, &ServedDrivers::from(["a/b"]))
    };
    assert!(node_volume(failed(1, "full"), Presence::There));
    assert_eq!(counted(&index), (vec![("growing", 1)], 1));
    assert!(!node_volume(failed(2, "full"), Presence::There));
    assert_eq!(index.get("pvc-1").node_volume.unwrap().version, "2");
    assert!(node_volume(failed(3, "on fire"), Presence::There));
    assert_eq!(index.of_node("n"), ["pvc-1"]);
    assert!(index.of_node("another").is_empty());
    assert!(node_volume(failed(3, "on fire"), Presence::Gone));
}

#[test]
fn what_is_not_listed_any_more_is_forgotten_and_told() {
    let index = index(&volume("Bound", "a/b"), &node_volume("Present", 2));
    let still = |uid: &str| HashSet::from([uid.to_owned()]);
    assert!(index.keep_node_volumes(&still("o")).is_empty());
    assert_eq!(index.get("pvc-1").node_volume.unwrap().version, "7");
    // A later object of the same name.
    assert_eq!(index.keep_volumes(&still("another")), ["pvc-1"]);
    assert!(index.get("pvc-1").volume.is_none());
    assert_eq!(&*index.namespace("pvc-1"), "ns");
    assert_eq!(index.keep_node_volumes(&HashSet::new()), ["pvc-1"]);
    assert!(index.all().is_empty());
    assert_eq!(&*index.namespace("pvc-1"), "");
}

#[test]
fn namespaces_that_nobody_has_any_more_are_forgotten() {
    let index = Index::default();
    let kept = index.shared("kept");
    for number in 0..MOST_NAMESPACES * 2 {
        index.shared(&number.to_string());
    }
    assert!(Arc::ptr_eq(&kept, &index.shared("kept")));
    assert!(index.namespaces.lock().unwrap().len() <= MOST_NAMESPACES);
}

#[test]
fn a_claim_is_found_until_it_has_its_volume_and_when_it_has_lost_it_unless_another_one_has_that() {
    let ours = ServedDrivers::from(["a/b"]);
    let index = Index::default();
    index.node_volume_created(&node_volume("Present", 3), &ours);
    let place = Some(("ns".to_owned(), "data".to_owned()));
    let of = |index: &Index| {
        let entry = index.get("pvc-1");
        (entry.is_own(), entry.claim())
    };
    assert_eq!(of(&index), (true, place.clone()));
    assert!(index.volume(&volume("Bound", "a/b"), Presence::There, &ours));
    assert_eq!(
        of(&index),
        (true, None),
        "hundred thousand names are not kept"
    );
    assert!(index.volume(&volume("Released", "a/b"), Presence::There, &ours));
    assert_eq!(of(&index), (true, place));
    let mut handed_on = volume("Released", "a/b");
    let spec = handed_on.spec.as_mut().unwrap();
    spec.claim_ref.as_mut().unwrap().uid = Some("2".to_owned());
    assert!(index.volume(&handed_on, Presence::There, &ours));
    assert_eq!(of(&index), (false, None));
}

#[test]
fn what_only_leaders_write_of_a_node_volume_and_others_of_a_volume_is_no_news() {
    let ours = ServedDrivers::from(["a/b"]);
    let (mut bound, mut ordered) = (volume("Bound", "a/b"), node_volume("Present", 3));
    ordered.spec.published = false;
    let index = index(&bound, &ordered);
    bound.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(!index.volume(&bound, Presence::There, &ours));
    ordered.spec.published = true;
    assert!(!index.node_volume(&ordered, Presence::There, &ours));
    assert!(index.is_published("pvc-1") && !index.awaits_node("pvc-1"));
    ordered.metadata.generation = Some(2);
    assert!(!index.node_volume(&ordered, Presence::There, &ours));
    assert!(index.awaits_node("pvc-1"));
    ordered.spec.size = 4;
    assert!(index.node_volume(&ordered, Presence::There, &ours));
}

#[test]
fn a_volume_that_was_let_go_of_is_held_no_more_and_a_node_volume_that_was_deleted_is_not_there() {
    let ours = ServedDrivers::from(["a/b"]);
    let mut released = volume("Released", "a/b");
    let index = index(&released, &node_volume("Absent", 3));
    assert!(index.is_held("pvc-1"));
    index.node_volume_deleted("pvc-1", "another");
    assert!(index.has_node_volume("pvc-1"), "another one");
    index.node_volume_deleted("pvc-1", "o");
    assert!(!index.has_node_volume("pvc-1"));
    let now = from_value(json!("2026-11-28T12:00:00Z")).unwrap();
    released.metadata.deletion_timestamp = Some(now);
    index.volume(&released, Presence::There, &ours);
    assert!(!index.is_held("pvc-1"));
}

#[test]
fn of_another_driver_or_of_other_parameters_another_storage_is_ordered() {
    let parameters = |value: &str| [("pool".to_owned(), value.to_owned())].into();
    let fast = parameters_checksum("a/b", &parameters("fast"));
    assert_eq!(fast, parameters_checksum("a/b", &parameters("fast")));
    assert_ne!(fast, parameters_checksum("a/b", &parameters("slow")));
    assert_ne!(fast, parameters_checksum("a/c", &parameters("fast")));
}

#[test]
fn a_node_that_has_more_than_is_ordered_since_is_not_waited_for() {
    let awaits = |size: u64| {
        let mut ordered = node_volume("Present", size);
        // Its reported size, which is 2, answers an earlier generation.
        ordered.metadata.generation = Some(2);
        index(&volume("Bound", "a/b"), &ordered).awaits_node("pvc-1")
    };
    assert!(awaits(3));
    assert!(!awaits(2) && !awaits(1));
}

#[test]
fn of_what_a_watch_tells_in_part_nothing_is_believed_until_it_is_told_whole_or_has_gone() {
    let ours = ServedDrivers::from(["a/b"]);
    let (volume, node_volume) = (volume("Bound", "a/b"), node_volume("Present", 2));
    let index = index(&volume, &node_volume);
    let in_part = |presence| index.node_volume_in_part(&node_volume.metadata, presence);
    let free = || {
        let mut nodes = BTreeMap::from([("other".to_owned(), ())]);
        index.keep_free(&mut nodes);
        !nodes.is_empty()
    };
    assert!(!index.is_unread("pvc-1") && free());
    in_part(Presence::There);
    assert!(index.is_unread("pvc-1") && !free(), "it may be of any node");
    index.node_volume(&node_volume, Presence::There, &ours);
    assert!(!index.is_unread("pvc-1") && free());
    in_part(Presence::There);
    in_part(Presence::Gone);
    assert!(!index.is_unread("pvc-1") && !index.has_node_volume("pvc-1"));
    // One that no list has any more has gone, too.
    in_part(Presence::There);
    index.volume_in_part(&volume.metadata, Presence::There);
    index.keep_node_volumes(&HashSet::from(["o".to_owned()]));
    index.keep_volumes(&HashSet::new());
    assert!(index.knows("pvc-1") && index.is_unread("pvc-1"));
    index.keep_node_volumes(&HashSet::new());
    assert!(!index.knows("pvc-1"));
}
