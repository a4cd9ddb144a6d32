//! Objects and patches that steps write.

use crate::{
    api::{
        v1alpha1::{NodeVolume, VolumeSource},
        well_known::{
            CONTROLLER_RESIZE_IN_PROGRESS, FAILED, FILE_SYSTEM_RESIZE_PENDING, HOSTNAME, MANAGED,
            NODE_ANNOTATION, NODE_LABEL, NODE_VOLUME_FINALIZER, PROVISIONED_BY, RESIZE_FAILED,
            VOLUME_FINALIZER, node_label,
        },
    },
    claims,
    k8s::{claim::condition, meta::uid, volume::driver_of},
};
use anyhow::{Context, Result, bail};
use flexvol_sdk::Bytes;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    jiff::Timestamp,
};
use serde_json::{Value, json};

/// A NodeVolume without its spec.
pub(crate) fn node_volume_for(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": NodeVolume::api_version(),
        "kind": "NodeVolume",
        "metadata": {
            "name": name,
            "labels": {NODE_LABEL: node_label(node)},
            "finalizers": [NODE_VOLUME_FINALIZER],
        },
    })
}

/// Rebuilds a NodeVolume from its persistent volume.
pub(crate) fn recreated_node_volume(
    name: &str,
    volume: &PersistentVolume,
    state: claims::StorageState,
    size: Bytes,
    most: Bytes,
) -> Result<Value> {
    let annotations = volume.metadata.annotations.as_ref();
    let node = annotations
        .and_then(|all| all.get(NODE_ANNOTATION))
        .with_context(|| format!("the volume has no annotation {NODE_ANNOTATION}"))?;
    let spec = volume.spec.as_ref().context("the volume has no spec")?;
    let claim = spec.claim_ref.as_ref().context("the volume has no claim")?;
    let source = spec.flex_volume.as_ref();
    let mut node_volume = node_volume_for(name, node);
    node_volume["spec"] = json!({
        "driver": driver_of(volume),
        "node": node,
        "state": state,
        "size": size.0,
        "maxRequestedSize": Some(most.0).filter(|most| *most > size.0),
        "publishing": true,
        "published": true,
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "source": VolumeSource {
            options: source.and_then(|source| source.options.clone()).unwrap_or_default(),
            fs_type: source.and_then(|source| source.fs_type.clone()),
        },
    });
    Ok(node_volume)
}

/// Builds the persistent volume of storage that exists.
pub(crate) fn persistent_volume(
    name: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node_volume: &NodeVolume,
    hostname: &str,
) -> Result<Value> {
    let status = node_volume.status.clone().unwrap_or_default();
    let made = status
        .source
        .or_else(|| node_volume.spec.source.clone())
        .unwrap_or_default();
    let spec = claim.spec.clone().unwrap_or_default();
    // A driver that reports no size has made the requested size.
    let ordered = Bytes(node_volume.spec.size);
    let size = status.size.map_or(ordered, |said| {
        claims::believed(Bytes(said), ordered, node_volume.spec.max_requested_size())
    });
    if size < ordered {
        bail!("the driver made {size}, and {ordered} was asked for");
    }
    let mut source = json!({"driver": node_volume.spec.driver, "options": made.options});
    if let Some(fs_type) = made.fs_type {
        source["fsType"] = fs_type.into();
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {
                PROVISIONED_BY: node_volume.spec.driver,
                NODE_ANNOTATION: node_volume.spec.node,
            },
            "labels": {MANAGED: "true"},
            "finalizers": [VOLUME_FINALIZER],
        },
        "spec": {
            "accessModes": spec.access_modes.unwrap_or_default(),
            "capacity": {"storage": size.to_string()},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": uid(&claim.metadata),
            },
            "flexVolume": source,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": HOSTNAME, "operator": "In", "values": [hostname]},
            ]}]}},
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "volumeMode": "Filesystem",
        },
    }))
}

/// All conditions except those of these types.
fn conditions_but(claim: &PersistentVolumeClaim, types: &[&str]) -> Vec<Value> {
    let status = claim.status.iter();
    let all = status.flat_map(|status| status.conditions.iter().flatten());
    all.filter(|condition| !types.contains(&condition.type_.as_str()))
        .map(|condition| json!(condition))
        .collect()
}

/// All conditions that are not about growth.
fn other_conditions(claim: &PersistentVolumeClaim) -> Vec<Value> {
    let about_expansion = [
        "Resizing",
        FILE_SYSTEM_RESIZE_PENDING,
        FAILED,
        "NodeResizeError",
    ];
    conditions_but(claim, &about_expansion)
}

/// The last transition time of a condition, or now if it is new.
fn since(claim: &PersistentVolumeClaim, kind: &str) -> String {
    let before = condition(claim, kind).and_then(|before| before.last_transition_time.as_ref());
    before
        .map_or_else(Timestamp::now, |time| time.0)
        .to_string()
}

/// The status of a claim that has reached its size, as kubelet writes it
/// (`MarkFSResizeFinished` in `pkg/volume/util/resize_util.go`).
pub(crate) fn with_capacity(claim: &PersistentVolumeClaim, size: Bytes) -> Value {
    json!({
        "capacity": {"storage": size.to_string()},
        "conditions": other_conditions(claim),
        "allocatedResources": {"storage": size.to_string()},
        "allocatedResourceStatuses": {"storage": Value::Null},
    })
}

/// The status of a claim whose storage is about to be ordered (`MarkControllerReisizeInProgress`, same file). Quota counts
/// the size from now on. Kubelet waits until the storage has grown, also if it was to grow the file system before.
pub(crate) fn with_allocated(claim: &PersistentVolumeClaim, size: Bytes) -> Value {
    json!({
        "conditions": conditions_but(claim, &[FILE_SYSTEM_RESIZE_PENDING]),
        "allocatedResources": {"storage": size.to_string()},
        "allocatedResourceStatuses": {"storage": CONTROLLER_RESIZE_IN_PROGRESS},
    })
}

/// The status that makes kubelet grow the file system (`MarkForFSResize`, same file).
pub(crate) fn with_resize_pending(claim: &PersistentVolumeClaim, size: Bytes) -> Value {
    let mut conditions = other_conditions(claim);
    conditions.push(json!({
        "type": FILE_SYSTEM_RESIZE_PENDING,
        "status": "True",
        "lastTransitionTime": since(claim, FILE_SYSTEM_RESIZE_PENDING),
        "message": "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
    }));
    json!({
        "conditions": conditions,
        "allocatedResources": {"storage": size.to_string()},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    })
}

/// The status of a claim whose storage does not grow. Other conditions about growth stay.
pub(crate) fn with_resize_failure(claim: &PersistentVolumeClaim, why: &str) -> Value {
    let mut conditions = conditions_but(claim, &[FAILED]);
    conditions.push(json!({
        "type": FAILED,
        "status": "True",
        "lastTransitionTime": since(claim, FAILED),
        "reason": RESIZE_FAILED,
        "message": why,
    }));
    json!({"conditions": conditions})
}

/// The status without that failure.
pub(crate) fn without_resize_failure(claim: &PersistentVolumeClaim) -> Value {
    json!({"conditions": conditions_but(claim, &[FAILED])})
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    fn claim(conditions: &Value) -> PersistentVolumeClaim {
        from_value(json!({"status": {"conditions": conditions}})).unwrap()
    }

    fn pending() -> Value {
        json!({
            "type": "FileSystemResizePending", "status": "True",
            "lastTransitionTime": "2026-11-22T12:00:00Z",
        })
    }

    #[test]
    fn a_failure_is_said_beside_what_others_say_and_since_when_it_was_first_said() {
        let others = json!({"type": "Mine", "status": "False"});
        let status = with_resize_failure(&claim(&json!([others, pending()])), "no room");
        let said = &status["conditions"][2];
        assert_eq!(status["conditions"][0], others);
        assert_eq!(status["conditions"][1], pending());
        assert_eq!(said["type"], "ControllerResizeError");
        assert_eq!(said["reason"], "VolumeResizeFailed");
        assert_eq!(said["message"], "no room");

        let then = "2026-11-22T12:00:00Z";
        let mut before = said.clone();
        before["lastTransitionTime"] = then.into();
        let told = claim(&json!([before, pending()]));
        let status = with_resize_failure(&told, "less room");
        assert_eq!(status["conditions"].as_array().unwrap().len(), 2);
        assert_eq!(status["conditions"][1]["message"], "less room");
        assert_eq!(status["conditions"][1]["lastTransitionTime"], then);

        let taken_back = json!([pending()]);
        assert_eq!(without_resize_failure(&told)["conditions"], taken_back);
        assert_eq!(with_capacity(&told, Bytes(1))["conditions"], json!([]));
        assert_eq!(
            with_allocated(&told, Bytes(1))["conditions"],
            json!([before])
        );
        let pending = with_resize_pending(&told, Bytes(1));
        assert_eq!(pending["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(pending["conditions"][0]["lastTransitionTime"], then);
    }
}
