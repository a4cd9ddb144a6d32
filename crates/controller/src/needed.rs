//! What is needed of each kind of object that is listed or watched. Of a kind that is not named here only
//! names are read: whoever watches another one has to say what of it, and tenants cannot fill it.

use crate::{
    names::{CLASS, DOMAIN, GROW, HOSTNAME, PROVISIONER, REVISION, SELECTED_NODE},
    prune::Keep,
};

const WORD: Keep = Keep::WORD;

/// What a list, or a line of a watch, says of itself, or says if it is an error.
macro_rules! object {
    ($($name:literal: $keep:expr),* $(,)?) => {
        Keep::Members(&[
            ("kind", WORD), ("apiVersion", WORD), ("code", WORD), ("message", WORD), ("reason", WORD),
            $(($name, $keep)),*
        ])
    };
}

macro_rules! metadata {
    ($($name:literal: $keep:expr),* $(,)?) => {
        Keep::Members(&[
            ("name", WORD), ("namespace", WORD), ("uid", WORD), ("resourceVersion", WORD),
            ("generation", WORD), ("creationTimestamp", WORD), ("deletionTimestamp", WORD),
            ("finalizers", Keep::Begins(&["flexvol.dev/"])),
            $(($name, $keep)),*
        ])
    };
}

macro_rules! kind {
    ($group:expr, $plural:expr, $keep:expr) => {
        Kind {
            group: $group,
            plural: $plural,
            list: Keep::Members(&[
                ("kind", WORD),
                ("apiVersion", WORD),
                ("metadata", Keep::All),
                ("items", Keep::Each(&$keep)),
            ]),
            watch: Keep::Members(&[("type", WORD), ("object", $keep)]),
        }
    };
}

/// What nobody but administrators and nodes may write. Who changed which field is a third of it.
const TRUSTED: Keep = object!(
    "metadata": Keep::But(&["managedFields"]), "spec": Keep::All, "status": Keep::All
);

const STORAGE: Keep = Keep::Members(&[("storage", WORD)]);

const CLAIM: Keep = object!(
    "metadata": metadata!(
        "annotations": Keep::Members(&[
            (PROVISIONER[0], WORD), (PROVISIONER[1], WORD), (SELECTED_NODE, WORD), (CLASS, WORD),
        ]),
    ),
    "spec": Keep::Members(&[
        ("volumeName", WORD),
        ("storageClassName", WORD),
        ("resources", Keep::Members(&[("requests", STORAGE)])),
    ]),
    "status": Keep::Members(&[
        ("phase", WORD),
        ("capacity", STORAGE),
        ("allocatedResources", STORAGE),
        ("allocatedResourceStatuses", STORAGE),
        ("conditions", Keep::Members(&[
            ("type", WORD), ("status", WORD), ("message", WORD), ("lastTransitionTime", WORD),
        ])),
    ]),
);

/// One that is read to be changed: of its finalizers and conditions all are written back.
const ONE_CLAIM: Keep = object!(
    "metadata": Keep::But(&["managedFields", "labels"]), "spec": Keep::All, "status": Keep::All
);

/// Everything else is read of the one that asks for something.
const SET: Keep = object!(
    "metadata": metadata!("annotations": Keep::Begins(&[GROW])),
    "status": WORD,
);

const POD: Keep = object!(
    "metadata": metadata!(
        "labels": Keep::Members(&[(REVISION, WORD)]),
        "ownerReferences": Keep::Members(&[("uid", WORD), ("controller", WORD)]),
    ),
    "spec": Keep::Members(&[("volumes", Keep::Members(&[
        ("name", WORD),
        ("persistentVolumeClaim", Keep::Members(&[("claimName", WORD)])),
    ]))]),
    "status": Keep::Members(&[
        ("phase", WORD),
        ("conditions", Keep::Members(&[
            ("type", WORD), ("status", WORD), ("lastTransitionTime", WORD),
        ])),
    ]),
);

const NODE: Keep = object!(
    "metadata": metadata!("labels": Keep::Members(&[(HOSTNAME, WORD)])),
    "spec": Keep::All,
    "status": Keep::Members(&[("conditions", Keep::Members(&[("type", WORD), ("status", WORD)]))]),
);

static KINDS: [Kind; 9] = [
    kind!("", "persistentvolumeclaims", CLAIM),
    kind!("apps", "statefulsets", SET),
    kind!("", "pods", POD),
    kind!("", "nodes", NODE),
    kind!("", "persistentvolumes", TRUSTED),
    kind!(DOMAIN, "nodevolumes", TRUSTED),
    kind!(DOMAIN, "storagenodes", TRUSTED),
    // These have no spec, and few people may write them.
    kind!("storage.k8s.io", "storageclasses", Keep::All),
    kind!("storage.k8s.io", "csistoragecapacities", Keep::All),
];

struct Kind {
    group: &'static str,
    plural: &'static str,
    list: Keep,
    watch: Keep,
}

/// In which way objects are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    One,
    List,
    Watch,
}

/// What is needed of an answer about objects of a kind.
pub(crate) fn needed(group: &str, plural: &str, asks: Asks) -> &'static Keep {
    static UNKNOWN: Kind = kind!("", "", object!("metadata": metadata!(), "status": WORD));
    let mut kinds = KINDS.iter();
    let kind = kinds.find(|kind| (kind.group, kind.plural) == (group, plural));
    let kind = kind.unwrap_or(&UNKNOWN);
    match asks {
        Asks::One if kind.plural == "persistentvolumeclaims" => &ONE_CLAIM,
        Asks::One => &Keep::All,
        Asks::List => &kind.list,
        Asks::Watch => &kind.watch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{news::Seen, prune::Prune, sets};
    use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};
    use kube::core::{ObjectList, WatchEvent};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, from_slice, from_value, json};

    fn listed<K: Clone + DeserializeOwned>(group: &str, plural: &str, object: &Value) -> K {
        let list = json!({
            "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": "c"},
            "items": [object],
        });
        let kept = Prune::new(needed(group, plural, Asks::List)).next(list.to_string().as_bytes());
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
                "finalizers": ["example.com/a", "flexvol.dev/provisioning"],
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
        assert_eq!(Seen::of(&read), Seen::of(&whole));
        let (meta, of) = (&read.metadata, &whole.metadata);
        assert_eq!(
            meta.finalizers.as_deref().unwrap(),
            ["flexvol.dev/provisioning"]
        );
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
        assert_eq!(sets::wanted(&read).len(), 1);
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
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}],
            },
        });
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
            let kept = Prune::new(needed("", plural, Asks::Watch)).next(line);
            match from_slice::<WatchEvent<PersistentVolumeClaim>>(&kept).unwrap() {
                WatchEvent::Error(status) => assert_eq!(status.code, 410, "{plural}"),
                other => panic!("{other:?}"),
            }
        }
        let map = json!({"metadata": {"name": "a", "labels": {"b": "c"}}, "data": {"d": "e"}});
        let read: Value = listed("", "configmaps", &map);
        assert_eq!(read, json!({"metadata": {"name": "a"}}));
    }
}
