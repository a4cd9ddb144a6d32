use super::*;
use serde_json::{Value, from_value, json};

fn order(wanted: &str, size: u64) -> NodeVolume {
    from_value(json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"name": "pvc-1", "uid": "o", "resourceVersion": "7", "generation": 1},
        "spec": {
            "driver": "a/b", "node": "n", "wanted": wanted, "size": size, "published": true,
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
        },
        "status": {"found": "Present", "size": 2, "observedGeneration": 1},
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

fn index(volume: &PersistentVolume, order: &NodeVolume) -> Index {
    let index = Index::default();
    index.volume(volume, Presence::There, &Ours::from(["a/b"]));
    index.order(order, Presence::There, &Ours::from(["a/b"]));
    index
}

#[test]
fn an_answer_that_comes_after_later_news_changes_nothing() {
    let ours = Ours::from(["a/b"]);
    let index = index(&volume("Bound", "a/b"), &order("Present", 3));
    let version = |index: &Index| index.get("pvc-1").order.unwrap().version;
    let mut answer = order("Present", 4);
    answer.metadata.resource_version = Some("9".to_owned());
    index.order_written("7", &answer, &ours);
    assert_eq!(version(&index), "9", "as written");
    let mut later = answer.clone();
    later.metadata.resource_version = Some("11".to_owned());
    index.order(&later, Presence::There, &ours);
    answer.metadata.resource_version = Some("10".to_owned());
    index.order_written("9", &answer, &ours);
    assert_eq!(version(&index), "11", "the watch was faster");
    index.volume_written("1", &volume("Released", "a/b"), &ours);
    assert_eq!(index.get("pvc-1").volume.unwrap().version, "8");
    // What is gone is not there again.
    index.order(&later, Presence::Gone, &ours);
    index.order_written("11", &answer, &ours);
    assert!(index.get("pvc-1").order.is_none());
}

#[test]
fn a_volume_is_settled_while_it_stays_and_has_what_was_ordered() {
    let bound = || volume("Bound", "a/b");
    let settled = index(&bound(), &order("Present", 2));
    assert!(settled.is_settled("pvc-1"));
    assert_eq!(settled.count(), (0, 0));
    for (volume, order) in [
        (bound(), order("Present", 3)),
        (bound(), order("Absent", 2)),
        (volume("Released", "a/b"), order("Present", 2)),
        (volume("Bound", "somebody/else"), order("Present", 2)),
    ] {
        let index = index(&volume, &order);
        assert!(!index.is_settled("pvc-1"), "{volume:?} {order:?}");
        assert_eq!(index.unsettled(), ["pvc-1"]);
        assert_eq!(index.count(), (1, 0));
    }
}

#[test]
fn a_released_volume_that_is_kept_is_not_counted() {
    let mut kept = volume("Released", "a/b");
    let spec = kept.spec.as_mut().unwrap();
    spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
    assert_eq!(index(&kept, &order("Present", 2)).count(), (0, 0));
}

#[test]
fn a_node_that_fails_in_the_same_way_again_says_nothing_new() {
    let failed = |times: u32, why: &str| {
        let mut order = order("Present", 3);
        let problem = json!({"class": "exhausted", "message": why});
        let mut status = serde_json::to_value(order.status.take()).unwrap();
        status["problem"] = problem;
        status["failures"] = times.into();
        order.status = from_value(status).unwrap();
        order.metadata.resource_version = Some(times.to_string());
        order
    };
    let index = Index::default();
    let order = |order, presence| index.order(&order, presence, &Ours::from(["a/b"]));
    assert!(order(failed(1, "full"), Presence::There));
    assert_eq!(index.count(), (1, 1));
    assert!(!order(failed(2, "full"), Presence::There));
    assert_eq!(index.get("pvc-1").order.unwrap().version, "2");
    assert!(order(failed(3, "on fire"), Presence::There));
    assert_eq!(index.of_node("n"), ["pvc-1"]);
    assert!(index.of_node("another").is_empty());
    assert!(order(failed(3, "on fire"), Presence::Gone));
}

#[test]
fn what_is_not_listed_any_more_is_forgotten_and_told() {
    let index = index(&volume("Bound", "a/b"), &order("Present", 2));
    let still = |uid: &str| HashSet::from([uid.to_owned()]);
    assert!(index.keep_orders(&still("o")).is_empty());
    assert_eq!(index.get("pvc-1").order.unwrap().version, "7");
    // One of the same name that was made since.
    assert_eq!(index.keep_volumes(&still("another")), ["pvc-1"]);
    assert!(index.get("pvc-1").volume.is_none());
    assert_eq!(&*index.namespace("pvc-1"), "ns");
    assert_eq!(index.keep_orders(&HashSet::new()), ["pvc-1"]);
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
