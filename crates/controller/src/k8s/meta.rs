//! Metadata of all objects.

use flexvol_sdk::Bytes;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ObjectMeta, Preconditions};
use std::collections::BTreeMap;

/// Returns the storage quantity, or zero if it is missing or unreadable.
pub(crate) fn storage(quantities: Option<&BTreeMap<String, Quantity>>) -> Bytes {
    quantities
        .and_then(|all| all.get("storage"))
        .and_then(|quantity| quantity.0.parse().ok())
        .unwrap_or_default()
}

/// Returns an object's UID.
pub(crate) fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// Returns the preconditions to delete this object as it was read, and no later one of its name.
pub(crate) fn only_this(meta: &ObjectMeta) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
    })
}

/// Whether an object carries a finalizer.
pub(crate) fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    let all = meta.finalizers.as_ref();
    all.is_some_and(|all| all.iter().any(|each| each == finalizer))
}
