//! What all objects have.

use flexvol_sdk::Bytes;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ObjectMeta, Preconditions};
use std::collections::BTreeMap;

/// The size among quantities; what cannot be read is none.
pub(crate) fn storage(quantities: Option<&BTreeMap<String, Quantity>>) -> Bytes {
    quantities
        .and_then(|all| all.get("storage"))
        .and_then(|quantity| quantity.0.parse().ok())
        .unwrap_or_default()
}

/// An object's UID.
pub(crate) fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// Deletes this object as it was read, and no later one.
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
