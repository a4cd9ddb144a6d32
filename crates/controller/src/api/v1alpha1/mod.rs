//! Our custom resources: requests to a node, and a node's report of itself. Their schemas are in
//! `deploy/cluster/objects.yaml`.

#[cfg(test)]
pub(crate) mod schema_tests;

pub use crate::claims::StorageState;

use crate::api::well_known::{DOMAIN, VERSION};
use flexvol_sdk::{Bytes, ErrorClass};
use kube::{Resource, api::ObjectMeta, core::ClusterResourceScope};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// Storage that a node shall have, or shall not have.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVolume {
    /// Always [`NodeVolume::api_version`].
    pub api_version: String,
    /// Always `NodeVolume`.
    pub kind: String,
    /// Its name is that of the persistent volume.
    pub metadata: ObjectMeta,
    /// What the controller orders.
    pub spec: NodeVolumeSpec,
    /// What the node answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeVolumeStatus>,
}

/// What the controller orders.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVolumeSpec {
    /// `vendor/driver`.
    pub driver: String,
    /// The node's name.
    pub node: String,
    /// Whether the storage shall be there.
    pub state: StorageState,
    /// How large it shall be at least, in bytes.
    pub size: u64,
    /// The largest size that was ordered, if more was ordered before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requested_size: Option<u64>,
    /// A persistent volume is about to be made.
    #[serde(default)]
    pub publishing: bool,
    /// A persistent volume is, or was, there: data may be in the storage.
    #[serde(default)]
    pub published: bool,
    /// The claim it is for.
    pub claim: ClaimReference,
    /// The parameters of the storage class.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// The options of the persistent volume, if the storage was made before this NodeVolume. It never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<VolumeSource>,
}

impl NodeVolumeSpec {
    /// The largest size that was ever ordered.
    #[must_use]
    pub fn max_requested_size(&self) -> Bytes {
        Bytes(self.max_requested_size.unwrap_or_default().max(self.size))
    }
}

/// Reference to a claim by UID, so that a later claim of the same name is another one.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ClaimReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What identifies storage to its driver.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSource {
    /// The options that the persistent volume carries.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The file system that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
}

/// What the node answers.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVolumeStatus {
    /// Whether the storage is there; missing before the driver has said it once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StorageState>,
    /// Its measured size in bytes, if the driver tells sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// What identifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<VolumeSource>,
    /// Whether the file system has to grow after the storage.
    #[serde(default)]
    pub node_expansion_required: bool,
    /// The bytes to which the agent has grown the file system of a mounted volume; missing where only kubelet may,
    /// or has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system_size: Option<u64>,
    /// Why the last call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<VolumeError>,
    /// How many calls have failed since one succeeded.
    #[serde(default)]
    pub failures: u32,
    /// The generation of the NodeVolume that this is an answer to.
    #[serde(default)]
    pub observed_generation: i64,
}

/// Why a call failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct VolumeError {
    /// `retryable`, `infeasible`, `exhausted` or `uncertain`.
    pub class: String,
    /// The driver's words.
    pub message: String,
}

impl VolumeError {
    /// Returns the class. An unknown one, of a newer version, counts as retryable.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        ErrorClass::from_word(&self.class).unwrap_or(ErrorClass::Retryable)
    }
}

/// An agent's report of its node. Its name is the node's.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNode {
    /// Always [`StorageNode::api_version`].
    pub api_version: String,
    /// Always `StorageNode`.
    pub kind: String,
    /// Its name is the node's.
    pub metadata: ObjectMeta,
    /// The agent's report.
    #[serde(default)]
    pub status: StorageNodeStatus,
}

/// An agent's report of its node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeStatus {
    /// The drivers that answer, by name.
    #[serde(default)]
    pub drivers: BTreeMap<String, DriverReport>,
    /// The largest volume of each storage class of these drivers, in bytes.
    #[serde(default)]
    pub capacities: BTreeMap<String, u64>,
    /// How long the agent lets a driver take, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// The time of the last heartbeat, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
}

/// Properties of a driver.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    /// Kubelet has to grow the file system after the storage.
    #[serde(default)]
    pub node_expansion_required: bool,
    /// Whether it has no callout `capacity`. If it has one, a class that `capacities` lacks is unknown.
    #[serde(default)]
    pub capacity_unsupported: bool,
}

macro_rules! ours {
    ($kind:ident, $plural:literal) => {
        impl Resource for $kind {
            type DynamicType = ();
            type Scope = ClusterResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group((): &()) -> Cow<'_, str> {
                DOMAIN.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl $kind {
            /// The group and version of these objects.
            #[must_use]
            pub fn api_version() -> String {
                format!("{DOMAIN}/{VERSION}")
            }
        }
    };
}

ours!(NodeVolume, "nodevolumes");
ours!(StorageNode, "storagenodes");
