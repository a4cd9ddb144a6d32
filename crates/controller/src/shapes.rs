//! The objects that steps write.

use crate::{
    decide,
    names::{
        DOMAIN, HOSTNAME, NODE_ANNOTATION, NODE_LABEL, ORDER_FINALIZER, PROVISIONED_BY,
        VOLUME_FINALIZER, node_label,
    },
    objects::{Made, NodeVolume},
    observe::{driver_of, storage, uid},
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

/// An order without what is ordered.
pub(crate) fn order_for(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": NodeVolume::api_version(),
        "kind": "NodeVolume",
        "metadata": {
            "name": name,
            "labels": {NODE_LABEL: node_label(node)},
            "finalizers": [ORDER_FINALIZER],
        },
    })
}

/// An order from what the persistent volume says of its storage.
pub(crate) fn recalled(
    name: &str,
    volume: &PersistentVolume,
    wanted: decide::Wanted,
) -> Result<Value> {
    let annotations = volume.metadata.annotations.as_ref();
    let node = annotations
        .and_then(|all| all.get(NODE_ANNOTATION))
        .with_context(|| format!("the volume has no annotation {NODE_ANNOTATION}"))?;
    let spec = volume.spec.as_ref().context("the volume has no spec")?;
    let claim = spec.claim_ref.as_ref().context("the volume has no claim")?;
    let source = spec.flex_volume.as_ref();
    let mut order = order_for(name, node);
    order["spec"] = json!({
        "driver": driver_of(volume),
        "node": node,
        "wanted": match wanted {
            decide::Wanted::Present => "Present",
            decide::Wanted::Absent => "Absent",
        },
        "size": storage(spec.capacity.as_ref()).0,
        "published": true,
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "made": Made {
            options: source.and_then(|source| source.options.clone()).unwrap_or_default(),
            fs_type: source.and_then(|source| source.fs_type.clone()),
        },
    });
    Ok(order)
}

/// The persistent volume of storage that is there.
pub(crate) fn published(
    name: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    order: &NodeVolume,
    hostname: &str,
) -> Result<Value> {
    let status = order.status.clone().unwrap_or_default();
    let made = status
        .made
        .or_else(|| order.spec.made.clone())
        .unwrap_or_default();
    let spec = claim.spec.clone().unwrap_or_default();
    // A driver that tells no size has made what it was asked for.
    let size = Bytes(status.size.unwrap_or(order.spec.size));
    if size < Bytes(order.spec.size) {
        bail!(
            "the driver made {size}, and {} was asked for",
            Bytes(order.spec.size)
        );
    }
    let mut source = json!({"driver": order.spec.driver, "options": made.options});
    if let Some(fs_type) = made.fs_type {
        source["fsType"] = fs_type.into();
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {
                PROVISIONED_BY: order.spec.driver,
                NODE_ANNOTATION: order.spec.node,
            },
            "labels": {format!("{DOMAIN}/managed"): "true"},
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

/// The conditions that are not about growth.
fn other_conditions(claim: &PersistentVolumeClaim) -> Vec<Value> {
    let about_growth = [
        "Resizing",
        "FileSystemResizePending",
        "ControllerResizeError",
        "NodeResizeError",
    ];
    let all = claim
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    all.filter(|condition| !about_growth.contains(&condition.type_.as_str()))
        .map(|condition| json!(condition))
        .collect()
}

/// The status of a claim whose volume has grown, as kubelet writes it
/// (`MarkFSResizeFinished` in `pkg/volume/util/resize_util.go`).
pub(crate) fn finished(claim: &PersistentVolumeClaim, size: Bytes) -> Value {
    json!({
        "capacity": {"storage": size.to_string()},
        "conditions": other_conditions(claim),
        "allocatedResources": {"storage": size.to_string()},
        "allocatedResourceStatuses": {"storage": Value::Null},
    })
}

/// The status that lets kubelet grow the file system (`MarkForFSResize`, same file).
pub(crate) fn awaiting(claim: &PersistentVolumeClaim, size: Bytes) -> Value {
    let mut conditions = other_conditions(claim);
    conditions.push(json!({
        "type": "FileSystemResizePending",
        "status": "True",
        "lastTransitionTime": Timestamp::now().to_string(),
        "message": "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
    }));
    json!({
        "conditions": conditions,
        "allocatedResources": {"storage": size.to_string()},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    })
}
