//! Kubernetes objects for scenarios.

use serde_json::{Value, json};

/// A pod's namespace and name.
pub fn name_of(pod: &Value) -> (&str, &str) {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
    (namespace, pod["metadata"]["name"].as_str().unwrap())
}

/// A pod with one container that mounts the volume of a claim at `/data`.
pub fn pod(name: &str, claim: &str) -> Value {
    pod_with(
        name,
        &json!({"persistentVolumeClaim": {"claimName": claim}}),
    )
}

/// A pod with one container that mounts a volume of this source at `/data`.
pub fn pod_with(name: &str, source: &Value) -> Value {
    let mut volume = source.clone();
    volume["name"] = "data".into();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": sleeping(&json!([{"name": "data", "mountPath": "/data"}]), &json!([volume])),
    })
}

/// The spec of a pod with one container that sleeps.
pub fn sleeping(mounts: &Value, volumes: &Value) -> Value {
    json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main",
            "image": "busybox:1.35",
            "command": ["sleep", "infinity"],
            "volumeMounts": mounts,
        }],
        "volumes": volumes,
    })
}

/// The same pod in another namespace.
pub fn within(namespace: &str, mut pod: Value) -> Value {
    pod["metadata"]["namespace"] = namespace.into();
    pod
}
