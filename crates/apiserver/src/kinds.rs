//! The supported kinds of objects.

use serde_json::{Value, json};

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// Name in objects.
    pub kind: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether it has the subresource `status`.
    pub status: bool,
    /// Whether it is defined by a CustomResourceDefinition.
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

    /// Returns the API version: `v1` or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the resource's name in messages.
    pub(crate) fn resource(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Whether `metadata.generation` counts changes of the spec.
    pub(crate) fn counts_generations(&self) -> bool {
        self.custom || self.kind == "StatefulSet"
    }

    /// Whether a deletion that removes the object at once is answered with the object.
    pub(crate) fn answers_what_was_deleted(&self) -> bool {
        matches!(
            self.kind,
            "PersistentVolume" | "PersistentVolumeClaim" | "StorageClass"
        )
    }

    /// Normalises a status written by a client. Built-in kinds have Go types, which omit empty fields and write some
    /// absent ones as null.
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

    /// Adds defaults to a new object, and the finalizers of the admission plugin `StorageObjectInUseProtection`.
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

/// Adds missing fields.
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

/// All supported kinds.
pub const KINDS: &[Kind] = &[
    kind("", "v1", "Event", "events").in_namespaces(),
    kind("", "v1", "Node", "nodes").with_status(),
    kind("", "v1", "PersistentVolume", "persistentvolumes").with_status(),
    kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .in_namespaces()
        .with_status(),
    kind("", "v1", "Pod", "pods").in_namespaces().with_status(),
    kind("", "v1", "Namespace", "namespaces"),
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
