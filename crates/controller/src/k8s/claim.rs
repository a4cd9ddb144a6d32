//! Persistent volume claims.

use super::meta::storage;
use crate::api::well_known::{
    CLASS, CONTROLLER_RESIZE_IN_PROGRESS, FAILED, FILE_SYSTEM_RESIZE_PENDING, PROVISIONER,
    SELECTED_NODE, is_object_name,
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimSpec,
};

/// The provisioner that Kubernetes wrote into the claim's annotations
/// (`pkg/controller/volume/persistentvolume/pv_controller.go`).
pub(crate) fn provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let found = PROVISIONER.iter().find_map(|key| annotations.get(*key));
    found.map(String::as_str)
}

/// The node that the scheduler selected.
pub(crate) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.metadata.annotations.as_ref()?;
    annotations.get(SELECTED_NODE).map(String::as_str)
}

/// The class as the claim has it, if at all. The annotation takes precedence over the field, as for quota, the
/// scheduler and the binder (`GetPersistentVolumeClaimClass` in `pkg/apis/core/v1/helper`). Kubernetes does not
/// validate it. A claim with `""` gets no default class.
pub(crate) fn class_text(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotated = claim.metadata.annotations.as_ref();
    let text = match annotated.and_then(|all| all.get(CLASS)) {
        Some(text) => text,
        None => claim.spec.as_ref()?.storage_class_name.as_ref()?,
    };
    Some(text)
}

/// The name of the claim's class, if [`class_text`] is a valid name of an object.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    class_text(claim).filter(|name| is_object_name(name))
}

/// The requested size.
///
/// # Errors
/// When the request is missing or is no valid size. The message is for the claim's author.
pub(crate) fn request(spec: &PersistentVolumeClaimSpec) -> Result<Bytes, String> {
    let requests = spec
        .resources
        .as_ref()
        .and_then(|all| all.requests.as_ref());
    let Some(asked) = requests.and_then(|requests| requests.get("storage")) else {
        return Err("the claim asks for no size: set spec.resources.requests.storage".to_owned());
    };
    let bytes: Bytes = asked
        .0
        .parse()
        .map_err(|error: flexvol_sdk::Error| error.to_string())?;
    // Kubernetes counts in `i64`.
    if bytes == Bytes(0) || i64::try_from(bytes.0).is_err() {
        return Err(format!("size {} cannot be had", asked.0));
    }
    Ok(bytes)
}

/// Returns the requested size, or the largest that Kubernetes counts if the request exceeds it: that request is
/// impossible, but it must not count as zero.
pub(crate) fn request_or_most(spec: &PersistentVolumeClaimSpec) -> Bytes {
    const MOST: Bytes = Bytes(i64::MAX.unsigned_abs());
    let requests = spec.resources.as_ref();
    let requests = requests.and_then(|all| all.requests.as_ref());
    let asked = requests.and_then(|requests| requests.get("storage"));
    let bytes = asked.map(|asked| asked.0.parse::<Bytes>());
    bytes.map_or(Bytes(0), |bytes| bytes.unwrap_or(MOST).min(MOST))
}

/// Returns a message for the claim's author if the requested size exceeds what Kubernetes counts.
pub(crate) fn uncountable_reason(spec: &PersistentVolumeClaimSpec) -> Option<String> {
    let why = request(spec).err()?;
    (request_or_most(spec) > Bytes(0)).then(|| format!("{why}; ask for less"))
}

/// Whether the claim requests more than it has.
pub(crate) fn is_expanding(claim: &PersistentVolumeClaim) -> bool {
    is_bound(claim) && asked(claim) > capacity(claim)
}

/// Whether the claim's phase is `Bound`.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Bound")
}

/// The capacity in the claim's status.
pub(crate) fn capacity(claim: &PersistentVolumeClaim) -> Bytes {
    let status = claim.status.as_ref();
    storage(status.and_then(|status| status.capacity.as_ref()))
}

/// The allocated size in the claim's status, or 0.
pub(crate) fn allocated(claim: &PersistentVolumeClaim) -> Bytes {
    let status = claim.status.as_ref();
    storage(status.and_then(|status| status.allocated_resources.as_ref()))
}

/// Whether its size is still to change: it requests more than it has, or more is allocated.
pub(crate) fn is_resizing(claim: &PersistentVolumeClaim) -> bool {
    is_expanding(claim) || is_overallocated(claim)
}

/// Whether more is allocated than the claim requests and has, as after a request that was lowered.
fn is_overallocated(claim: &PersistentVolumeClaim) -> bool {
    is_bound(claim) && allocated(claim) > asked(claim).max(capacity(claim))
}

/// The size to which kubelet has to grow the claim's file system. Without `allocatedResources`, which API servers
/// before 1.32 drop, kubelet takes the persistent volume's capacity, which may exceed the request.
pub(crate) fn file_system_resize_pending(
    claim: &PersistentVolumeClaim,
    volume: Bytes,
) -> Option<Bytes> {
    condition(claim, FILE_SYSTEM_RESIZE_PENDING)?;
    let status = claim.status.as_ref()?;
    let of_storage = status
        .allocated_resource_statuses
        .as_ref()
        .and_then(|all| all.get("storage"));
    // Kubelet has given up, and does not retry, or waits for the storage (`runPreCheck` in node_expander.go).
    let waits = ["NodeResizeInfeasible", CONTROLLER_RESIZE_IN_PROGRESS];
    if of_storage.is_some_and(|word| waits.contains(&word.as_str())) {
        return None;
    }
    let allocated = status.allocated_resources.as_ref();
    Some(allocated.map_or(volume, |allocated| storage(Some(allocated))))
}

/// The reason in the claim's status why its storage did not grow.
pub(crate) fn failure(claim: &PersistentVolumeClaim) -> Option<String> {
    let condition = condition(claim, FAILED)?;
    Some(condition.message.clone().unwrap_or_default())
}

/// Returns the claim's condition of this type if it is true.
pub(crate) fn condition<'a>(
    claim: &'a PersistentVolumeClaim,
    kind: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let status = claim.status.iter();
    let mut all = status.flat_map(|status| status.conditions.iter().flatten());
    all.find(|condition| condition.type_ == kind && condition.status == "True")
}

/// The requested size, by [`request_or_most`].
pub(crate) fn asked(claim: &PersistentVolumeClaim) -> Bytes {
    claim.spec.as_ref().map(request_or_most).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn more_than_kubernetes_counts_is_the_most_and_cannot_be_had() {
        let found = |size: &str| {
            let spec = json!({"resources": {"requests": {"storage": size}}});
            let spec = from_value(spec).unwrap();
            (
                request_or_most(&spec).0,
                uncountable_reason(&spec).is_some(),
            )
        };
        let most = i64::MAX.unsigned_abs();
        assert_eq!(found("1Gi"), (1 << 30, false));
        assert_eq!(found("9223372036854775807"), (most, false));
        for more in ["8Ei", "9223372036854775808", "16Ei", "1e30"] {
            assert_eq!(found(more), (most, true), "{more}");
        }
        assert_eq!(found("0"), (0, false));
        let spec = PersistentVolumeClaimSpec::default();
        assert_eq!(
            (request_or_most(&spec), uncountable_reason(&spec)),
            (Bytes(0), None)
        );
    }
}
