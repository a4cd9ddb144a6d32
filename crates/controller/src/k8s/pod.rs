//! Pods, reduced to the needed fields: the full API type takes three kilobytes for an empty volume, and a tenant's pods
//! may have any number of volumes.

use crate::{api::well_known::is_object_name, client::resource_as};
use k8s_openapi::{
    api::core::v1::{self, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{ResourceExt, api::ObjectMeta};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Pod {
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
    /// Whether only a part of the pod was read.
    #[serde(default, rename = "cut")]
    pub is_truncated: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    volumes: Option<Vec<Volume>>,
    tolerations: Option<Vec<Toleration>>,
}

/// A toleration of taints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

impl Toleration {
    /// Whether it covers a taint, by Kubernetes' rules (`ToleratesTaint` in `k8s.io/api/core/v1/toleration.go`).
    /// Unknown, newer operators cover nothing.
    pub fn covers(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        let key = self.key.is_empty() || self.key == taint.key;
        let value = match &*self.operator {
            "Exists" => true,
            "" | "Equal" => self.value == taint.value.as_deref().unwrap_or_default(),
            _ => false,
        };
        effect && key && value
    }
}

/// A volume of a pod. The last one of a truncated pod may lack members.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    name: String,
    persistent_volume_claim: Option<Source>,
    ephemeral: Option<Ephemeral>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Source {
    claim_name: String,
}

/// Marks a volume whose claim is created for the pod.
#[derive(Clone, Debug, Deserialize)]
struct Ephemeral {}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PodStatus {
    pub phase: Option<String>,
    pub conditions: Option<Vec<PodCondition>>,
    #[serde(default, rename = "initContainerStatuses")]
    init_containers: Option<Vec<InitContainer>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InitContainer {
    restart_count: i64,
    state: Option<ContainerState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
}

/// Marks a container that does not run yet, or not any more and will again.
#[derive(Clone, Debug, Deserialize)]
struct Waiting {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub last_transition_time: Option<Time>,
}

resource_as!([] Pod, v1::Pod, this => &this.metadata, &mut this.metadata);

/// The node to which the pod is bound, if any.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.node_name.as_deref();
    node.filter(|name| is_object_name(name))
}

/// Whether its containers have ended, so that kubelet unmounts its volumes.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.phase.as_deref();
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether an init container of it has run, while the pod is still `Pending`. Kubelet had mounted the volumes before.
pub(crate) fn has_run(pod: &Pod) -> bool {
    let mut containers = pod.status.init_containers.iter().flatten();
    containers.any(|container| {
        let state = container.state.as_ref();
        container.restart_count > 0 || state.is_some_and(|state| state.waiting.is_none())
    })
}

/// The tolerations of a pod, and of its replacement.
pub(crate) fn tolerations(pod: &Pod) -> Vec<Toleration> {
    pod.spec.tolerations.clone().unwrap_or_default()
}

/// The claims that a pod names. Kubernetes does not validate these names, so invalid ones are left out.
pub(crate) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.volumes.iter().flatten();
    let names = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        // As `VolumeClaimName` in component-helpers.
        None => volume
            .ephemeral
            .as_ref()
            .map(|Ephemeral {}| format!("{}-{}", pod.name_any(), volume.name)),
    });
    names.filter(|name| is_object_name(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn a_pod_has_the_claims_that_it_names_and_those_that_are_made_for_it() {
        let named = |name: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
        let pod = json!({
            "metadata": {"name": "app"},
            "spec": {"containers": [], "volumes": [
                named("data"), named("../x"), {"name": "own", "ephemeral": {}}, {"name": "tmp", "emptyDir": {}},
            ]},
        });
        assert_eq!(claims_of(&from_value(pod).unwrap()), ["data", "app-own"]);
    }
}
