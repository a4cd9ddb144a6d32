//! The kinds of objects that the double knows.

use serde_json::{Value, json};

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The group, empty for the first one.
    pub group: &'static str,
    /// The version in the group.
    pub version: &'static str,
    /// As objects say it.
    pub kind: &'static str,
    /// As paths say it.
    pub plural: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether it has the subresource `status`.
    pub status: bool,
    /// Whether it is made by a definition, and not built in.
    pub custom: bool,
}

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind {
        group,
        version,
        kind,
        plural,
        namespaced: false,
        status: false,
        custom: false,
    }
}

impl Kind {
    const fn in_namespaces(mut self) -> Self {
        self.namespaced = true;
        self
    }

    const fn with_status(mut self) -> Self {
        self.status = true;
        self
    }

    const fn custom(mut self) -> Self {
        self.custom = true;
        self
    }

    /// `v1` or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// As messages say it.
    pub(crate) fn resource(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Whether changes of what is ordered are counted in `metadata.generation`.
    pub(crate) fn counts_generations(&self) -> bool {
        self.custom || self.kind == "StatefulSet"
    }

    /// Whether the answer to a deletion is the object also if nothing is left of it.
    pub(crate) fn answers_what_was_deleted(&self) -> bool {
        matches!(
            self.kind,
            "PersistentVolume" | "PersistentVolumeClaim" | "StorageClass"
        )
    }

    /// What becomes of a status that a client wrote: built-in kinds have types, in which what is empty
    /// is nothing, and some nothing is written as null.
    pub(crate) fn shape_status(&self, status: &mut Value) {
        let Some(status) = status.as_object_mut().filter(|_| !self.custom) else {
            return;
        };
        let is_empty = |value: &Value| *value == json!({}) || *value == json!([]);
        status.retain(|_, value| !value.is_null() && !is_empty(value));
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten() {
            let times = json!({"lastProbeTime": null, "lastTransitionTime": null});
            default(condition, &times);
        }
    }

    /// What the API server adds to new objects, as far as clients here can tell: defaults, and what
    /// the admission plugin `StorageObjectInUseProtection` adds.
    pub(crate) fn complete(&self, object: &mut Value) {
        let (finalizer, defaults) = match self.kind {
            "PersistentVolumeClaim" => (
                "kubernetes.io/pvc-protection",
                json!({"spec": {"volumeMode": "Filesystem"}}),
            ),
            "PersistentVolume" => (
                "kubernetes.io/pv-protection",
                json!({"spec": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"}}),
            ),
            "StorageClass" => {
                let defaults = json!({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"});
                return default(object, &defaults);
            }
            _ => return,
        };
        default(object, &defaults);
        object["status"] = json!({"phase": "Pending"});
        let finalizers = &mut object["metadata"]["finalizers"];
        match finalizers.as_array_mut() {
            Some(all) if all.iter().any(|each| each == finalizer) => {}
            Some(all) => all.push(finalizer.into()),
            None => *finalizers = json!([finalizer]),
        }
    }
}

/// Puts in what is missing.
fn default(object: &mut Value, defaults: &Value) {
    let (Some(object), Some(defaults)) = (object.as_object_mut(), defaults.as_object()) else {
        return;
    };
    for (key, value) in defaults {
        match object.get_mut(key) {
            Some(there) => default(there, value),
            None => {
                object.insert(key.clone(), value.clone());
            }
        }
    }
}

/// All of them.
pub const KINDS: &[Kind] = &[
    kind("", "v1", "Event", "events").in_namespaces(),
    kind("", "v1", "Node", "nodes").with_status(),
    kind("", "v1", "PersistentVolume", "persistentvolumes").with_status(),
    kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .in_namespaces()
        .with_status(),
    kind("", "v1", "Pod", "pods").in_namespaces().with_status(),
    kind("", "v1", "Secret", "secrets").in_namespaces(),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    kind("apps", "v1", "Deployment", "deployments").in_namespaces(),
    kind("apps", "v1", "StatefulSet", "statefulsets")
        .in_namespaces()
        .with_status(),
    kind("coordination.k8s.io", "v1", "Lease", "leases").in_namespaces(),
    kind("flexvol.dev", "v1alpha1", "NodeVolume", "nodevolumes")
        .with_status()
        .custom(),
    kind("flexvol.dev", "v1alpha1", "StorageNode", "storagenodes")
        .with_status()
        .custom(),
    kind(
        "storage.k8s.io",
        "v1",
        "CSIStorageCapacity",
        "csistoragecapacities",
    )
    .in_namespaces(),
    kind("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
];
