//! Rules of each kind. They depend on who may write into its fields, and how much.

#[cfg(test)]
mod tests;

use super::Kind;
use crate::{
    api::well_known::{
        CLAIM_FINALIZER, CLASS, DOMAIN, GROW, HOSTNAME, NODE_ANNOTATION, PROVISIONED_BY,
        PROVISIONER, REVISION, SELECTED_NODE, VOLUME_FINALIZER, is_reserved_option,
    },
    client::prune::Keep,
};

const WORD: Keep = Keep::WORD;
const WORDS: Keep = Keep::Each(&WORD);
/// Only the presence of a value.
const PRESENCE: Keep = Keep::Members(&[]);
/// A message by an agent, with any escapes.
const MESSAGE: Keep = Keep::Text(6 << 10);

/// Limit of trusted objects. No object in etcd is larger.
const ANY: usize = 2 << 20;
/// Limit of classes: the API server writes some characters of their parameters and annotations, of 256 KiB each, as six
/// bytes.
const CLASSES: usize = 8 << 20;
/// Typical size of objects that only trusted users write.
const USUAL: usize = 8 << 10;

/// Members of any object, of watch events, and of a `Status` in place of an object.
macro_rules! object {
    ($($name:literal: $keep:expr),* $(,)?) => {
        Keep::Members(&[
            ("kind", WORD), ("apiVersion", WORD),
            ("code", WORD), ("message", WORD), ("reason", WORD),
            ("details", Keep::Members(&[("causes", Keep::Members(&[
                ("reason", WORD), ("message", WORD), ("field", WORD),
            ]))])),
            $(($name, $keep)),*
        ])
    };
}

macro_rules! metadata {
    ($($name:literal: $keep:expr),* $(,)?) => {
        Keep::Members(&[
            // Identity and deletion are known of any object, however large.
            ("name", Keep::Sure), ("namespace", Keep::Sure), ("uid", Keep::Sure),
            ("resourceVersion", Keep::Sure), ("deletionTimestamp", Keep::Sure),
            ("generation", WORD), ("creationTimestamp", WORD),
            $(($name, $keep)),*
        ])
    };
}

/// Rules of a kind: `one` for a single object, `each` for objects of lists and watches, of at most `most` bytes.
macro_rules! kind {
    ($group:expr, $plural:expr, one: $one:expr, each: $most:expr, $each:expr) => {
        Kind {
            group: $group,
            plural: $plural,
            most: $most,
            one: $one,
            list: Keep::Members(&[
                ("kind", WORD),
                ("apiVersion", WORD),
                (
                    "metadata",
                    Keep::Members(&[
                        ("resourceVersion", WORD),
                        // Contains the name of the last object.
                        ("continue", Keep::Text(4096)),
                        ("remainingItemCount", WORD),
                    ]),
                ),
                ("items", Keep::Each(&Keep::Within($most, &$each))),
            ]),
            watch: Keep::Members(&[("type", WORD), ("object", Keep::Within($most, &$each))]),
        }
    };
}

/// Rules of a kind that only few, trusted users may write.
macro_rules! trusted {
    ($group:expr, $plural:expr, $most:expr) => {
        Kind {
            group: $group,
            plural: $plural,
            most: USUAL,
            one: Keep::Whole($most, &Keep::But(&[])),
            list: Keep::But(&[]),
            watch: Keep::Members(&[
                ("type", WORD),
                ("object", Keep::Whole($most, &Keep::But(&[]))),
            ]),
        }
    };
}

const STORAGE: Keep = Keep::Members(&[("storage", WORD)]);

const CLAIM_ANNOTATIONS: Keep = Keep::Members(&[
    (PROVISIONER[0], WORD),
    (PROVISIONER[1], WORD),
    (SELECTED_NODE, WORD),
    (CLASS, WORD),
]);

const CLAIM: Keep = object!(
    "metadata": metadata!(
        "annotations": CLAIM_ANNOTATIONS,
        "finalizers": Keep::Words(&[CLAIM_FINALIZER]),
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

/// A claim that is read to be changed. All of its finalizers and conditions are written back, so a truncated claim is
/// never changed.
const ONE_CLAIM: Keep = object!(
    "metadata": metadata!(
        "annotations": CLAIM_ANNOTATIONS,
        "finalizers": WORDS,
        "managedFields": Keep::Members(&[("manager", WORD), ("subresource", WORD), ("time", Keep::Time)]),
    ),
    "spec": Keep::Members(&[
        ("volumeName", WORD),
        ("storageClassName", WORD),
        ("resources", Keep::Members(&[("requests", STORAGE)])),
        ("accessModes", WORDS),
        ("volumeMode", WORD),
        ("volumeAttributesClassName", WORD),
        ("selector", PRESENCE),
        ("dataSource", PRESENCE),
        ("dataSourceRef", PRESENCE),
    ]),
    "status": Keep::Members(&[
        ("phase", WORD),
        ("capacity", STORAGE),
        ("allocatedResources", STORAGE),
        ("allocatedResourceStatuses", STORAGE),
        ("conditions", Keep::Members(&[
            ("type", WORD), ("status", WORD), ("reason", WORD),
            // The whole message or an error.
            ("message", Keep::Text(ANY)),
            ("lastProbeTime", WORD), ("lastTransitionTime", WORD),
        ])),
    ]),
);

/// A stateful set in a list or watch. All other fields are read only of sets that request something.
const SET: Keep = object!(
    "metadata": metadata!("annotations": Keep::Begins(GROW, &Keep::Text(64))),
    "status": PRESENCE,
);

const ONE_SET: Keep = object!(
    "metadata": metadata!("annotations": Keep::Begins(GROW, &Keep::Text(64))),
    "spec": Keep::Members(&[
        ("replicas", WORD),
        ("ordinals", Keep::Members(&[("start", WORD)])),
        ("minReadySeconds", WORD),
        ("updateStrategy", Keep::Members(&[
            ("type", WORD), ("rollingUpdate", Keep::Members(&[("partition", WORD)])),
        ])),
        ("selector", Keep::Members(&[
            ("matchLabels", WORDS),
            ("matchExpressions", Keep::Members(&[
                ("key", WORD), ("operator", WORD), ("values", WORDS),
            ])),
        ])),
        ("volumeClaimTemplates", Keep::Members(&[
            ("metadata", Keep::Members(&[("name", WORD)])),
        ])),
    ]),
    "status": Keep::Members(&[
        ("replicas", WORD), ("updatedReplicas", WORD), ("observedGeneration", WORD),
        ("currentRevision", WORD), ("updateRevision", WORD),
    ]),
);

const POD: Keep = object!(
    "metadata": metadata!(
        "labels": Keep::Members(&[(REVISION, WORD)]),
        "ownerReferences": Keep::Members(&[("uid", WORD), ("controller", WORD)]),
    ),
    "spec": Keep::Members(&[
        ("nodeName", WORD),
        ("volumes", Keep::Members(&[
            ("name", WORD),
            ("persistentVolumeClaim", Keep::Members(&[("claimName", WORD)])),
            ("ephemeral", PRESENCE),
        ])),
        ("tolerations", Keep::Members(&[
            ("key", WORD), ("operator", WORD), ("value", WORD), ("effect", WORD),
        ])),
    ]),
    "status": Keep::Members(&[
        ("phase", WORD),
        ("conditions", Keep::Members(&[
            ("type", WORD), ("status", WORD), ("lastTransitionTime", WORD),
        ])),
        ("initContainerStatuses", Keep::Members(&[
            ("restartCount", WORD), ("state", Keep::Members(&[("waiting", PRESENCE)])),
        ])),
    ]),
);

const NODE_SPEC: Keep = Keep::Members(&[
    ("unschedulable", WORD),
    (
        "taints",
        Keep::Members(&[("key", WORD), ("value", WORD), ("effect", WORD)]),
    ),
]);

const NODE_STATUS: Keep = Keep::Members(&[(
    "conditions",
    Keep::Members(&[("type", WORD), ("status", WORD)]),
)]);

const NODE: Keep = object!(
    "metadata": metadata!("labels": Keep::Members(&[(HOSTNAME, WORD)])),
    "spec": NODE_SPEC,
    "status": NODE_STATUS,
);

/// A class may select any node label, and a kubelet may write any number of them (`NodeRestriction`).
const ONE_NODE: Keep = object!(
    "metadata": metadata!("labels": WORDS),
    "spec": NODE_SPEC,
    "status": NODE_STATUS,
);

/// A persistent volume, without its options, whose content comes from a node.
const VOLUME: Keep = object!(
    "metadata": metadata!(
        "annotations": Keep::Members(&[(PROVISIONED_BY, WORD), (NODE_ANNOTATION, WORD)]),
        "finalizers": Keep::Words(&[VOLUME_FINALIZER]),
    ),
    "spec": Keep::Members(&[
        ("capacity", STORAGE),
        ("claimRef", Keep::Members(&[("namespace", WORD), ("name", WORD), ("uid", WORD)])),
        ("flexVolume", Keep::Members(&[("driver", WORD)])),
        ("persistentVolumeReclaimPolicy", WORD),
    ]),
    "status": Keep::Members(&[("phase", WORD)]),
);

const ONE_VOLUME: Keep = object!(
    "metadata": Keep::But(&["managedFields", "labels"]), "spec": Keep::All, "status": Keep::All
);

const PROBLEM: Keep = Keep::Members(&[("class", WORD), ("message", MESSAGE)]);

/// Options that no persistent volume can have. Of the others, whose content comes from a node, nothing is kept.
const REJECTED: Keep = Keep::Named(
    |name| is_reserved_option(&String::from_utf8_lossy(name)),
    &Keep::Text(1),
);

/// A NodeVolume in a list or watch. Its class may have given it parameters of 256 KiB, and what follows them is needed.
const NODE_VOLUME: Keep = object!(
    "metadata": metadata!(),
    "spec": Keep::Members(&[
        ("driver", WORD), ("node", WORD), ("state", WORD), ("size", WORD), ("maxRequestedSize", WORD),
        ("publishing", WORD), ("published", WORD), ("parameters", Keep::Checksum),
        ("claim", Keep::Members(&[("namespace", WORD), ("name", WORD), ("uid", WORD)])),
    ]),
    "status": Keep::Members(&[
        ("state", WORD), ("size", WORD), ("nodeExpansionRequired", WORD), ("fileSystemSize", WORD),
        ("error", PROBLEM), ("failures", WORD), ("observedGeneration", WORD),
        ("source", Keep::Members(&[("options", REJECTED)])),
    ]),
);

const ONE_NODE_VOLUME: Keep = object!(
    "metadata": metadata!(
        "labels": WORDS,
        "finalizers": WORDS,
        "managedFields": Keep::Members(&[("time", Keep::Time)]),
    ),
    "spec": Keep::All,
    "status": Keep::Members(&[
        ("state", WORD), ("size", WORD), ("nodeExpansionRequired", WORD), ("fileSystemSize", WORD),
        ("error", PROBLEM), ("failures", WORD), ("observedGeneration", WORD),
        ("source", Keep::Members(&[("options", Keep::Each(&Keep::Text(64 << 10))), ("fsType", WORD)])),
    ]),
);

/// Truncated capacities count as unknown, and a node without a heartbeat time counts as silent.
const STORAGE_NODE: Keep = object!(
    "metadata": metadata!(),
    "status": Keep::Members(&[
        ("drivers", Keep::Each(&Keep::Members(&[("nodeExpansionRequired", WORD), ("capacityUnsupported", WORD)]))),
        ("capacities", WORDS),
        ("deadlineSeconds", WORD),
        ("lastHeartbeatTime", WORD),
    ]),
);

const ROOM: Keep = object!(
    "metadata": metadata!(),
    "nodeTopology": Keep::Members(&[("matchLabels", Keep::Members(&[(HOSTNAME, WORD)]))]),
    "storageClassName": WORD,
    "capacity": WORD,
);

const NAMES: Keep = object!("metadata": metadata!(), "status": PRESENCE);

pub(super) static UNKNOWN: Kind = kind!(
    "", "", one: Keep::Within(16 << 10, &NAMES), each: 8 << 10, NAMES
);

pub(super) static KINDS: [Kind; 14] = [
    kind!("", "persistentvolumeclaims", one: Keep::Within(64 << 10, &ONE_CLAIM), each: 16 << 10, CLAIM),
    kind!("apps", "statefulsets", one: Keep::Within(64 << 10, &ONE_SET), each: 8 << 10, SET),
    kind!("", "pods", one: Keep::Within(16 << 10, &POD), each: 16 << 10, POD),
    kind!("", "nodes", one: Keep::Within(256 << 10, &ONE_NODE), each: 32 << 10, NODE),
    kind!("", "persistentvolumes", one: Keep::Whole(ANY, &ONE_VOLUME), each: 16 << 10, VOLUME),
    kind!(DOMAIN, "nodevolumes", one: Keep::Whole(ANY, &ONE_NODE_VOLUME), each: 16 << 10, NODE_VOLUME),
    kind!(
        DOMAIN, "storagenodes",
        one: Keep::Within(192 << 10, &STORAGE_NODE), each: 192 << 10, STORAGE_NODE
    ),
    kind!(
        "storage.k8s.io", "csistoragecapacities",
        one: Keep::Within(8 << 10, &ROOM), each: 8 << 10, ROOM
    ),
    // `count` is needed of an event that occurs again.
    kind!(
        "", "events",
        one: Keep::Within(16 << 10, &object!("metadata": metadata!(), "count": WORD)),
        each: 8 << 10, NAMES
    ),
    trusted!("storage.k8s.io", "storageclasses", CLASSES),
    trusted!("coordination.k8s.io", "leases", ANY),
    trusted!("", "secrets", ANY),
    trusted!(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        ANY
    ),
    trusted!(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        ANY
    ),
];
