//! Tests that no object, however large, ends a list or a watch.

use crate::{
    api::{
        v1alpha1::{NodeVolume, StorageNode},
        well_known::{CLAIM_FINALIZER, GROW, HOSTNAME, PROVISIONED_BY},
    },
    cache::volumes::parameters_checksum,
    client::{
        MaybePartial, PartialObject,
        fields::{Asks, needed},
        prune::Prune,
    },
    k8s::pod::Pod,
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIStorageCapacity, StorageClass},
};
use kube::{
    Resource,
    core::{ObjectList, WatchEvent},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, from_slice, from_value, json};
use std::fmt::Debug;

fn listed<K>(objects: &[Value]) -> Vec<MaybePartial<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned,
{
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": objects});
    let rule = needed(&K::group(&()), &K::plural(&()), Asks::List);
    let kept = Prune::new(rule).next(list.to_string().as_bytes()).unwrap();
    from_slice::<ObjectList<MaybePartial<K>>>(&kept)
        .unwrap()
        .items
}

fn watched<K>(object: &Value) -> MaybePartial<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let line = json!({"type": "MODIFIED", "object": object}).to_string();
    let rule = needed(&K::group(&()), &K::plural(&()), Asks::Watch);
    let kept = Prune::new(rule).next(line.as_bytes()).unwrap();
    match from_slice::<WatchEvent<MaybePartial<K>>>(&kept).unwrap() {
        WatchEvent::Modified(told) => told,
        other => panic!("{other:?}"),
    }
}

/// As much text as Kubernetes lets annotations and parameters have, of characters that it writes as six bytes.
fn words(count: usize) -> Value {
    let all = (0..count).map(|n| {
        let text = "<".repeat((256 << 10) / count - 8);
        (format!("a{n:07}"), Value::from(text))
    });
    Value::Object(all.collect::<Map<_, _>>())
}

fn escaped(object: &Value) -> String {
    object.to_string().replace('<', "\\u003c")
}

/// The largest NodeVolume that the schema allows, with parameters of a class that Kubernetes allows.
fn largest_node_volume(parameters: &Value) -> Value {
    json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {
            "name": "n".repeat(253), "uid": "u", "generation": i64::MAX, "resourceVersion": "9",
            "annotations": words(300), "labels": words(300), "finalizers": vec!["f".repeat(300); 300],
        },
        "spec": {
            "claim": {"namespace": "n".repeat(63), "name": "c".repeat(253), "uid": "u".repeat(63)},
            "driver": "d".repeat(255), "maxRequestedSize": i64::MAX, "node": "n".repeat(253),
            "parameters": parameters, "published": true, "publishing": true, "size": i64::MAX,
            "source": {"options": words(128), "fsType": "x".repeat(63)}, "state": "Present",
        },
        "status": {
            "error": {"class": "c".repeat(63), "message": "\u{1}".repeat(1024)},
            "failures": u32::MAX, "fileSystemSize": i64::MAX, "nodeExpansionRequired": true,
            "observedGeneration": i64::MAX, "size": i64::MAX, "source": {"options": words(128)},
            "state": "Present",
        },
    })
}

#[test]
fn the_largest_node_volume_is_told_whole_and_with_which_parameters_it_was_ordered() {
    for parameters in [words(1), words(200), words(512)] {
        let object = largest_node_volume(&parameters);
        let whole: NodeVolume = from_value(object.clone()).unwrap();
        let mut told = listed::<NodeVolume>(&[object.clone(), object.clone()]);
        told.push(watched(&object));
        assert_eq!(told.len(), 3);
        for told in told {
            let MaybePartial::Whole(read) = told else {
                panic!("{told:?}")
            };
            let of = |of: &NodeVolume| parameters_checksum(&of.spec.driver, &of.spec.parameters);
            assert_eq!(of(&read), of(&whole));
            assert_ne!(
                of(&read),
                parameters_checksum(&read.spec.driver, &Default::default())
            );
            let (mut read, mut whole) = (json!(read), json!(whole));
            for object in [&mut read, &mut whole] {
                object["metadata"] = Value::Null;
                for [part, unneeded] in [
                    ["spec", "parameters"],
                    ["spec", "source"],
                    ["status", "source"],
                ] {
                    object[part][unneeded] = Value::Null;
                }
            }
            assert_eq!(read, whole);
        }
    }
}

#[test]
fn the_largest_class_is_told_whole() {
    let class = json!({
        "metadata": {"name": "c", "uid": "u", "annotations": words(1)}, "provisioner": "a/b",
        "parameters": words(512), "allowVolumeExpansion": true,
    });
    let whole: StorageClass = from_value(class.clone()).unwrap();
    let line = format!(r#"{{"type":"ADDED","object":{}}}"#, escaped(&class));
    assert!(line.len() > 2 << 20);
    let rule = needed("storage.k8s.io", "storageclasses", Asks::Watch);
    let kept = Prune::new(rule).next(line.as_bytes()).unwrap();
    let told: WatchEvent<MaybePartial<StorageClass>> = from_slice(&kept).unwrap();
    assert!(matches!(told, WatchEvent::Added(MaybePartial::Whole(read)) if read == whole));
}

/// An object of this kind that is larger than any.
fn larger_than_any(required: &Value) -> Value {
    let names: Vec<_> = (0..1500).map(|n| format!("flexvol.dev/{n}")).collect();
    let named: Vec<_> = (0..1500)
        .map(|n| json!({"name": n.to_string(), "key": "k", "uid": "u", "type": "t".repeat(60), "metadata": {"name": "t"}}))
        .collect();
    let long = || json!("l".repeat(5000));
    let mut annotations = words(9);
    for n in 0..1500 {
        annotations[format!("{GROW}t{n}")] = json!("20Gi");
    }
    annotations[PROVISIONED_BY] = long();
    let mut object = json!({
        "metadata": {
            "name": "a", "uid": "u", "deletionTimestamp": "2026-11-22T12:00:00Z", "annotations": annotations,
            "labels": {HOSTNAME: long()}, "ownerReferences": named, "finalizers": names, CLAIM_FINALIZER: names,
        },
        "spec": {
            "volumes": named, "template": {"spec": {"volumes": named}}, "volumeClaimTemplates": named,
            "taints": named, "tolerations": named, "selector": {"matchExpressions": named}, "driver": long(),
            "volumeName": long(), "storageClassName": long(), "claimRef": {"name": long()},
        },
        "status": {"conditions": named, "drivers": words(1500), "capacities": words(1500), "phase": long()},
        "nodeTopology": {"matchLabels": {HOSTNAME: long()}}, "storageClassName": long(),
    });
    for (name, value) in required.as_object().unwrap() {
        object[name] = value.clone();
    }
    object
}

fn ends_nothing<K>(required: &Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let small = json!({"metadata": {"name": "small"}});
    let large = larger_than_any(required);
    let mut told = listed::<K>(&[small.clone(), large.clone(), small]);
    assert_eq!(told.len(), 3, "{}", K::plural(&()));
    told.push(watched(&large));
    for told in [&told[1], &told[3]] {
        let meta = told.meta();
        let known = (meta.name.as_deref(), meta.uid.as_deref());
        assert_eq!(known, (Some("a"), Some("u")), "{}", K::plural(&()));
        assert!(meta.deletion_timestamp.is_some(), "{}", K::plural(&()));
    }
}

#[test]
fn no_object_of_any_kind_ends_a_list_or_a_watch() {
    let none = json!({});
    ends_nothing::<PersistentVolumeClaim>(&none);
    ends_nothing::<StatefulSet>(&none);
    ends_nothing::<Pod>(&none);
    ends_nothing::<Node>(&none);
    ends_nothing::<PersistentVolume>(&none);
    ends_nothing::<NodeVolume>(&none);
    ends_nothing::<CSIStorageCapacity>(&none);
    ends_nothing::<Event>(&none);
    ends_nothing::<StorageNode>(
        &json!({"apiVersion": "flexvol.dev/v1alpha1", "kind": "StorageNode"}),
    );
}

#[test]
fn an_object_without_what_is_required_is_known_to_be_there() {
    let object = json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"name": "n", "uid": "u"}, "spec": {"driver": "a/b"},
    });
    let told = watched::<NodeVolume>(&object);
    let MaybePartial::Part(part) = told else {
        panic!("{told:?}")
    };
    let PartialObject { metadata, object } = *part;
    assert_eq!(
        (metadata.name.as_deref(), object.is_none()),
        (Some("n"), true)
    );
}
