//! Persistent volumes.

use super::{claim::is_bound, meta::uid};
use crate::{
    api::well_known::{PROVISIONED_BY, claim_uid},
    drivers::ServedDrivers,
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};

/// The claim reference of a persistent volume.
pub(crate) fn holder(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether the claim is bound to this volume.
pub(crate) fn has(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let holder = holder(volume).and_then(|holder| holder.uid.as_deref());
    is_bound(claim) && holder == Some(uid(&claim.metadata))
}

/// Namespace, name and UID of the claim that a persistent volume is for.
pub(crate) fn claimed_by(volume: &PersistentVolume) -> Option<((String, String), String)> {
    let reference = holder(volume)?.clone();
    // Without a UID the volume is reserved and not bound yet.
    let uid = reference.uid.filter(|uid| !uid.is_empty())?;
    Some(((reference.namespace?, reference.name?), uid))
}

/// Whether Kubernetes has found the volume's claim gone. A volume becomes Failed if it cannot be deleted, which also
/// happens only after its claim has gone.
pub(crate) fn lost_its_claim(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Released" | "Failed"))
}

/// Namespace and name of the claim that has the volume, if the volume is named after another claim.
pub(crate) fn handed_on(volume: &PersistentVolume) -> Option<(String, String)> {
    let (place, uid) = claimed_by(volume)?;
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    (uid != claim_uid(name)).then_some(place)
}

/// The driver of a persistent volume, if it is a FlexVolume.
pub(crate) fn driver_of(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.flex_volume.as_ref()?.driver.as_str())
}

/// Whether we created the volume, by its name and annotation, and its driver is served.
pub(crate) fn is_ours(volume: &PersistentVolume, ours: &ServedDrivers) -> bool {
    let annotations = volume.metadata.annotations.as_ref();
    let by = annotations.and_then(|all| all.get(PROVISIONED_BY));
    let is_named = volume
        .metadata
        .name
        .as_deref()
        .is_some_and(|name| !claim_uid(name).is_empty());
    is_named
        && driver_of(volume)
            .is_some_and(|driver| by.is_some_and(|by| by == driver) && ours.has(driver))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    /// A released volume.
    pub fn volume(name: &str, claim: &Value) -> PersistentVolume {
        from_value(json!({
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": "a/b"}},
            "spec": {"claimRef": claim, "flexVolume": {"driver": "a/b"}},
            "status": {"phase": "Released"},
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_of_another_name_is_not_ours_and_another_claim_may_have_ours() {
        let ours =
            |name: &str, by: &str| is_ours(&volume(name, &Value::Null), &ServedDrivers::from([by]));
        assert!(ours("pvc-1", "a/b"));
        assert!(!ours("pvc-1", "a/c"));
        assert!(!ours("copied", "a/b"));
        let of = |uid: &str| json!({"namespace": "ns", "name": "data", "uid": uid});
        assert_eq!(handed_on(&volume("pvc-1", &of("1"))), None);
        let place = ("ns".to_owned(), "data".to_owned());
        assert_eq!(handed_on(&volume("pvc-1", &of("2"))), Some(place));
        assert_eq!(
            handed_on(&volume("pvc-1", &of(""))),
            None,
            "yet to be bound"
        );
    }
}
