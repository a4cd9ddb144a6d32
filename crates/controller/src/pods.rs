//! What pods say of their claims.

use crate::names::is_object_name;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// The claims that a pod names. Kubernetes lets pods name anything, so what is no name of an object is
/// left out.
pub(crate) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        // `VolumeClaimName` in component-helpers.
        None => volume
            .ephemeral
            .is_some()
            .then(|| format!("{}-{}", pod.name_any(), volume.name)),
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
