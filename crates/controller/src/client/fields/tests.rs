//! Tests that parsers find all fields that they need, and that little is kept of large objects.

use super::*;
use crate::{
    api::{
        v1alpha1::{NodeVolume, StorageNode},
        well_known::{
            CLAIM_FINALIZER, CLASS, GROW, PROVISIONED_BY, PROVISIONER, REVISION, SELECTED_NODE,
        },
    },
    cache::{event_filter::ClaimSummary, volumes::parameters_checksum},
    client::prune::Prune,
    drivers::ServedDrivers,
    k8s::{
        pod::{Pod, claims_of},
        stateful_set,
    },
    observe::{node_volume_of, volume_of},
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::core::{ObjectList, WatchEvent};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_slice, from_value, json};

fn listed<K: Clone + DeserializeOwned>(group: &str, plural: &str, object: &Value) -> K {
    let list = json!({
        "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": "c"},
        "items": [object],
    });
    let kept = Prune::new(needed(group, plural, Asks::List)).next(list.to_string().as_bytes());
    let kept = kept.unwrap();
    let list: ObjectList<K> = from_slice(&kept).unwrap();
    assert_eq!(list.metadata.continue_.as_deref(), Some("c"));
    list.items.into_iter().next().unwrap()
}

#[test]
fn of_a_claim_all_that_is_a_reason_to_look_closer_is_read_and_nothing_that_can_be_large() {
    let claim = json!({
        "metadata": {
            "name": "data", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "deletionTimestamp": "2026-11-22T12:00:00Z",
            "finalizers": ["example.com/a", "flexvol.dev/a", CLAIM_FINALIZER],
            "labels": {"a": "b"}, "managedFields": [{"manager": "m"}],
            "annotations": {
                PROVISIONER[0]: "a/b", SELECTED_NODE: "n", CLASS: "slow", "example.com/c": "d",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": "pv", "storageClassName": "fast",
            "resources": {"requests": {"storage": "3Gi"}}, "selector": {"matchLabels": {"a": "b"}},
        },
        "status": {
            "phase": "Bound", "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [
                {"type": "FileSystemResizePending", "status": "True"},
                {"type": "ControllerResizeError", "status": "True", "message": "full"},
            ],
        },
    });
    let read: PersistentVolumeClaim = listed("", "persistentvolumeclaims", &claim);
    let whole: PersistentVolumeClaim = from_value(claim).unwrap();
    assert_eq!(ClaimSummary::of(&read), ClaimSummary::of(&whole));
    let (meta, of) = (&read.metadata, &whole.metadata);
    assert_eq!(meta.finalizers.as_deref().unwrap(), [CLAIM_FINALIZER]);
    assert_eq!(meta.annotations.as_ref().unwrap().len(), 3);
    assert!(meta.labels.is_none() && meta.managed_fields.is_none() && of.labels.is_some());
    assert!(read.spec.unwrap().selector.is_none());
}

#[test]
fn of_a_set_it_is_read_whether_it_asks_for_something() {
    let set = json!({
        "metadata": {"name": "db", "annotations": {"grow.flexvol.dev/data": "2Gi", "a": "b"}},
        "spec": {"serviceName": "db", "selector": {}, "template": {"spec": {"containers": []}}},
        "status": {"replicas": 3},
    });
    let read: StatefulSet = listed("apps", "statefulsets", &set);
    assert_eq!(stateful_set::wanted(&read).len(), 1);
    assert_eq!(read.metadata.annotations.unwrap().len(), 1);
    assert!(read.spec.template.spec.is_none());
}

#[test]
fn of_a_pod_it_is_read_of_which_set_and_revision_it_is_and_which_claims_it_has() {
    let pod = json!({
        "metadata": {
            "name": "db-0", "labels": {REVISION: "db-1", "app": "db"},
            "ownerReferences": [{"kind": "StatefulSet", "uid": "1", "controller": true}],
        },
        "spec": {
            "containers": [],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
                {"name": "own", "ephemeral": {}},
            ],
        },
    });
    let made: Pod = listed("", "pods", &pod);
    assert_eq!(claims_of(&made), ["data-db-0", "db-0-own"]);
    let read: Value = listed("", "pods", &pod);
    assert_eq!(read["metadata"]["labels"], json!({REVISION: "db-1"}));
    let owner = json!([{"uid": "1", "controller": true}]);
    assert_eq!(read["metadata"]["ownerReferences"], owner);
    assert_eq!(read["spec"]["volumes"], pod["spec"]["volumes"]);
    assert!(read["spec"].get("containers").is_none());
}

#[test]
fn a_watch_that_failed_says_why_also_of_a_kind_that_nobody_named() {
    let line = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}}"#;
    for plural in ["persistentvolumeclaims", "statefulsets", "configmaps"] {
        let kept = Prune::new(needed("", plural, Asks::Watch))
            .next(line)
            .unwrap();
        match from_slice::<WatchEvent<PersistentVolumeClaim>>(&kept).unwrap() {
            WatchEvent::Error(status) => assert_eq!(status.code, 410, "{plural}"),
            other => panic!("{other:?}"),
        }
    }
    let map = json!({"metadata": {"name": "a", "labels": {"b": "c"}}, "data": {"d": "e"}});
    let read: Value = listed("", "configmaps", &map);
    assert_eq!(read, json!({"metadata": {"name": "a"}}));
}

#[test]
fn of_what_is_too_large_it_is_read_that_it_is() {
    let volume = |number: usize| json!({"name": "v".repeat(60), "persistentVolumeClaim": {"claimName": format!("c{number}")}});
    let pod = |count: usize| -> Pod {
        let volumes: Vec<_> = (0..count).map(volume).collect();
        let pod = json!({
            "metadata": {"name": "db-0"}, "spec": {"volumes": volumes}, "status": {"phase": "Running"},
        });
        listed("", "pods", &pod)
    };
    let usual = pod(100);
    assert_eq!((claims_of(&usual).len(), usual.is_truncated), (100, false));
    let large = pod(300);
    assert!(large.is_truncated && large.metadata.name.as_deref() == Some("db-0"));
    // Too many, although they are small.
    let owners = vec![json!({"uid": "u"}); 257];
    let owned = json!({"metadata": {"name": "db-0", "ownerReferences": owners}});
    assert!(listed::<Pod>("", "pods", &owned).is_truncated);
}

#[test]
fn decisions_read_the_same_of_a_volume_and_a_node_volume_that_a_watch_tells_of_as_of_whole_ones() {
    let ours = ServedDrivers::from(["a/b"]);
    let volume = json!({
        "metadata": {
            "name": "pvc-1", "finalizers": ["a/b", "flexvol.dev/storage"],
            "annotations": {PROVISIONED_BY: "a/b", "c": "d"}, "deletionTimestamp": "2026-11-22T12:00:00Z",
        },
        "spec": {
            "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "ns", "name": "data", "uid": "1", "kind": "PersistentVolumeClaim"},
            "flexVolume": {"driver": "a/b", "options": {"c": "d".repeat(99)}},
        },
        "status": {"phase": "Released"},
    });
    let read: PersistentVolume = listed("", "persistentvolumes", &volume);
    let whole: PersistentVolume = from_value(volume).unwrap();
    assert_eq!(volume_of(&read, &ours), volume_of(&whole, &ours));
    assert!(volume_of(&read, &ours).has_finalizer && volume_of(&read, &ours).released);
    let source = read.spec.unwrap().flex_volume.unwrap();
    assert_eq!(source.options, None);

    let node_volume = json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"name": "pvc-1", "generation": 2},
        "spec": {
            "driver": "a/b", "node": "n", "state": "Present", "size": 3, "maxRequestedSize": 4, "publishing": true,
            "published": true, "parameters": {"c": "d"},
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
        },
        "status": {
            "state": "Present", "size": 2, "nodeExpansionRequired": true, "fileSystemSize": 2, "failures": 7, "observedGeneration": 2,
            "error": {"class": "exhausted", "message": "é".repeat(1024)},
            "source": {"options": {"c": "d", "a<b.K8s.io/e": "f"}},
        },
    });
    let read: NodeVolume = listed("flexvol.dev", "nodevolumes", &node_volume);
    let whole: NodeVolume = from_value(node_volume).unwrap();
    assert_eq!(node_volume_of(&read, &ours), node_volume_of(&whole, &ours));
    let rejected = node_volume_of(&read, &ours).rejected.unwrap();
    assert!(rejected.contains("a<b.K8s.io/e"), "{rejected}");
    assert_eq!(read.spec.claim, whole.spec.claim);
    let of = |node_volume: &NodeVolume| parameters_checksum("a/b", &node_volume.spec.parameters);
    assert_eq!(of(&read), of(&whole));
}

#[test]
fn of_a_node_as_much_is_read_as_its_schema_lets_it_say() {
    let capacities: Vec<_> = (0..512).map(|n| (format!("{n:063}"), i64::MAX)).collect();
    let drivers: Vec<_> = (0..64)
        .map(|n| (format!("a/{n:063}"), json!({"nodeExpansionRequired": true})))
        .collect();
    let node = json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "StorageNode", "metadata": {"name": "n"},
        "status": {
            "capacities": capacities.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "drivers": drivers.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "deadlineSeconds": 3600,
            "lastHeartbeatTime": "2026-11-22T12:00:00Z",
        },
    });
    let read: StorageNode = listed("flexvol.dev", "storagenodes", &node);
    let whole: StorageNode = from_value(node).unwrap();
    assert_eq!(read.status, whole.status);
}

/// An object with long lists in all places where its kind has lists.
fn large(plural: &str) -> Value {
    let names: Vec<_> = (0..3000).map(|n| format!("flexvol.dev/{n}")).collect();
    let all: serde_json::Map<_, _> = (0..3000)
        .map(|n| (format!("{GROW}t{n}"), json!("v".repeat(20))))
        .collect();
    let named: Vec<_> = (0..3000)
        .map(|n| json!({"name": n.to_string(), "key": "k", "uid": "u", "metadata": {"name": "t"}}))
        .collect();
    let meta = json!({
        "name": "a", "uid": "u", "deletionTimestamp": "2026-11-22T12:00:00Z", "annotations": all, "labels": all, "finalizers": names, "ownerReferences": named,
    });
    let spec = json!({
        "volumes": named, "template": {"spec": {"volumes": named}}, "volumeClaimTemplates": named, "taints": named,
        "selector": {"matchLabels": all, "matchExpressions": named}, "accessModes": names,
    });
    let status =
        json!({"conditions": named, "drivers": all, "capacities": all, "lastHeartbeatTime": "s"});
    json!({"kind": plural, "metadata": meta, "spec": spec, "status": status})
}

#[test]
fn of_an_object_with_long_lists_little_is_read_and_which_it_is_in_whichever_way_it_is_asked_for() {
    let by_tenants_and_nodes = [
        ("", "persistentvolumeclaims"),
        ("apps", "statefulsets"),
        ("", "pods"),
        ("", "nodes"),
        ("flexvol.dev", "storagenodes"),
        ("", "events"),
        ("", "configmaps"),
        ("storage.k8s.io", "csistoragecapacities"),
    ];
    for (group, plural) in by_tenants_and_nodes {
        let object = large(plural);
        let line = json!({"type": "ADDED", "object": object}).to_string();
        let list = json!({"items": [object]}).to_string();
        let ways = [
            (Asks::One, object.to_string()),
            (Asks::List, list),
            (Asks::Watch, line),
        ];
        for (asks, text) in ways {
            let kept = Prune::new(needed(group, plural, asks)).next(text.as_bytes());
            let kept = kept.unwrap_or_else(|error| panic!("{plural} {asks:?}: {error}"));
            let most = if asks == Asks::One { 256 } else { 192 };
            let most = (most << 10) + 300;
            assert!(kept.len() <= most, "{plural} {asks:?} {}", kept.len());
            let read: Value = from_slice(&kept).unwrap();
            let read = match asks {
                Asks::One => &read,
                Asks::List => &read["items"][0],
                Asks::Watch => &read["object"],
            };
            for field in ["name", "uid", "deletionTimestamp"] {
                let known = &read["metadata"][field];
                assert_eq!(known, &object["metadata"][field], "{plural} {asks:?}");
            }
        }
    }
}

#[test]
fn a_page_has_as_many_objects_as_fit() {
    assert_eq!(page::<PersistentVolumeClaim>(), 256);
    assert_eq!(page::<StatefulSet>(), 500);
    assert_eq!(page::<StorageNode>(), 21);
    assert_eq!(page::<StorageClass>(), 500);
    for kind in &KINDS {
        assert!(kind.most <= PAGE_BYTES, "{}", kind.plural);
    }
}
