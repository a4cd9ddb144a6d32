//! The note on a persistent volume about the recreation of its claim.

use super::preconditions::{Found, Plan};
use crate::{
    api::well_known::{MANAGED, RECOVERY},
    k8s::{
        claim::{capacity, request, request_or_most},
        meta::{storage, uid},
        volume::{has, holder},
    },
};
use anyhow::{Context, Result};
use flexvol_sdk::Bytes;
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{ResourceExt, api::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// The note, which is stored in an annotation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Note {
    /// Version of the format. Unknown versions are rejected.
    version: Version,
    /// UID of the claim's namespace: a later one of its name may be another tenant's. Missing in notes of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace_uid: Option<String>,
    /// UID of the claim that is deleted.
    former: String,
    /// The claim that is created.
    claim: PersistentVolumeClaim,
    /// The size that it finally requests, in bytes.
    size: u64,
    /// The reclaim policy to restore.
    reclaim_policy: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
enum Version {
    #[serde(rename = "1")]
    One,
}

/// The namespace in which the command runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamespaceIdentity<'a> {
    /// Its current UID, read after the claim, so that no claim of a later namespace was read.
    pub uid: &'a str,
    /// UID of the namespace that the administrator has accepted for the data.
    pub accepted: Option<&'a str>,
}

/// The next action of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Set the volume's reclaim policy to Retain.
    Keep,
    /// Delete the claim, if it has this resource version.
    Delete(String),
    /// Create the claim, which names the volume and waits for it.
    Make,
    /// Reserve the volume for the new claim with this UID, with the size of that claim. A reservation by name alone
    /// would give the data to any claim of that name in a later namespace of that name.
    Offer(String),
    /// Request what the storage has beyond that, if the claim has this resource version.
    Raise(String),
    /// Restore the volume's reclaim policy and remove the note: the last action.
    GiveBack,
    /// Wait for another component.
    Wait(String),
    /// Stop, because of another writer.
    Stop(String),
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Move::Keep => "keep the persistent volume",
            Move::Delete(_) => "delete the claim",
            Move::Offer(_) => "offer the persistent volume to the claim that comes",
            Move::Make => "make the claim anew",
            Move::Raise(_) => "ask for what the storage has",
            Move::GiveBack => "give the persistent volume its reclaim policy back",
            Move::Wait(what) => return write!(f, "wait for {what}"),
            Move::Stop(why) => why,
        })
    }
}

/// Annotations that Kubernetes writes during provisioning and binding, and would believe on a new claim.
const OF_BINDING: [&str; 6] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-resizer",
];

impl Note {
    /// Creates the note for an existing claim. `noted` is the volume's existing note.
    pub(super) fn new(found: &Found, plan: &Plan, noted: Option<&Note>) -> Self {
        let Found { claim, volume, .. } = found;
        let policy = match noted {
            Some(noted) => Some(noted.reclaim_policy.clone()),
            None => policy(volume).map(str::to_owned),
        };
        Note {
            version: Version::One,
            namespace_uid: Some(found.namespace.clone()),
            former: uid(&claim.metadata).to_owned(),
            claim: made_anew(claim, plan.base),
            size: plan.to.0,
            reclaim_policy: policy.unwrap_or_else(|| "Retain".to_owned()),
        }
    }

    /// Reads a volume's note.
    pub(super) fn of(volume: &PersistentVolume) -> Result<Option<Self>> {
        let annotations = volume.metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|all| all.get(RECOVERY)) else {
            return Ok(None);
        };
        let note = serde_json::from_str(text).with_context(|| {
            format!(
                "read the annotation {RECOVERY} of persistent volume {}",
                volume.name_any()
            )
        })?;
        Ok(Some(note))
    }

    /// Namespace and name of the claim.
    pub(super) fn place(&self) -> (&str, &str) {
        let ObjectMeta {
            namespace, name, ..
        } = &self.claim.metadata;
        (
            namespace.as_deref().unwrap_or_default(),
            name.as_deref().unwrap_or_default(),
        )
    }

    pub(super) fn former(&self) -> &str {
        &self.former
    }

    pub(super) fn claim(&self) -> &PersistentVolumeClaim {
        &self.claim
    }

    pub(super) fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// The size with which the claim is recreated.
    fn base(&self) -> Bytes {
        let spec = self.claim.spec.as_ref();
        spec.and_then(|spec| request(spec).ok()).unwrap_or_default()
    }

    /// Patch that retains the volume and stores the note, so that a repeated command finds it.
    pub(super) fn to_keep(&self) -> Result<Value> {
        let text = serde_json::to_string(self).context("write the note")?;
        Ok(json!({
            "metadata": {"annotations": {RECOVERY: text}, "labels": {MANAGED: "true"}},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        }))
    }

    /// Patch that reserves a released volume for the claim with this UID.
    pub(super) fn to_offer(&self, uid: &str) -> Value {
        let meta = &self.claim.metadata;
        json!({"spec": {
            "capacity": {"storage": self.base().to_string()},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": meta.namespace, "name": meta.name,
                "uid": uid, "resourceVersion": null,
            },
        }})
    }

    /// Patch for a volume that its new claim has.
    pub(super) fn to_give_back(&self) -> Value {
        json!({
            "metadata": {"annotations": {RECOVERY: null}},
            "spec": {"persistentVolumeReclaimPolicy": self.reclaim_policy},
        })
    }

    /// Returns the next action in this state, with this note on the volume.
    pub(super) fn next(
        &self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
        place: NamespaceIdentity<'_>,
    ) -> Move {
        let name = volume.name_any();
        let is_former = |claim: &&PersistentVolumeClaim| uid(&claim.metadata) == self.former;
        if volume.metadata.deletion_timestamp.is_some() {
            return Move::Stop(format!("persistent volume {name} is being deleted"));
        }
        // The existence of the former claim proves that the namespace is the same.
        let is_proven = self.namespace_uid.is_none() && claim.as_ref().is_some_and(is_former);
        let why = self.is_of_another(&name, place);
        if let Some(why) = why.filter(|_| !is_proven) {
            return Move::Stop(why);
        }
        if !is_kept(volume) {
            return match claim.filter(is_former) {
                Some(_) => Move::Stop(format!(
                    "somebody has changed the reclaim policy of persistent volume {name}"
                )),
                None => Move::Keep,
            };
        }
        let holder = holder(volume);
        if let Some(other) = holder.filter(|_| !is_for(volume, self.place())) {
            return Move::Stop(format!(
                "somebody has given persistent volume {name} to claim {}/{}",
                other.namespace.as_deref().unwrap_or_default(),
                other.name.as_deref().unwrap_or_default()
            ));
        }
        let spec = volume.spec.as_ref();
        let size = storage(spec.and_then(|spec| spec.capacity.as_ref()));
        match claim {
            None => Move::Make,
            Some(claim) if claim.metadata.deletion_timestamp.is_some() => Move::Wait(format!(
                "the claim to go, which {} hold (kubernetes.io/pvc-protection: while a pod names it)",
                claim.finalizers().join(", ")
            )),
            Some(claim) if is_former(&claim) => self.next_with_former_claim(claim, volume),
            Some(claim) => self.comes(claim, volume, size),
        }
    }

    /// Returns why the current namespace does not get the data.
    fn is_of_another(&self, volume: &str, place: NamespaceIdentity<'_>) -> Option<String> {
        let NamespaceIdentity { uid, accepted } = place;
        let former = self.namespace_uid.as_deref();
        if former == Some(uid) || accepted == Some(uid) {
            return None;
        }
        let (namespace, _) = self.place();
        let whose = match former {
            Some(former) => format!(
                "of a claim in one of {former}, which was deleted since a former run has begun: who has the name now may be somebody else"
            ),
            None => "of a claim in one of that name, of which a run of a former version noted no UID: it may have been deleted and recreated for somebody else".to_owned(),
        };
        Some(format!(
            "namespace {namespace} has UID {uid}, and persistent volume {volume} has the data {whose}; if the data are theirs, say so with --namespace-uid={uid}; to forget them: kubectl annotate pv {volume} {RECOVERY}-"
        ))
    }

    /// The next action while the former claim exists.
    fn next_with_former_claim(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Move {
        if !has(claim, volume) {
            return Move::Stop("the claim has its volume no more".to_owned());
        }
        if capacity(claim) != self.base() {
            return Move::Stop("the claim has grown meanwhile".to_owned());
        }
        Move::Delete(version(claim))
    }

    /// The next action with a new claim of that name.
    fn comes(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume, size: Bytes) -> Move {
        let name = volume.name_any();
        let spec = claim.spec.clone().unwrap_or_default();
        let asked = request_or_most(&spec);
        let its = spec.volume_name.filter(|its| !its.is_empty());
        if let Some(other) = its.filter(|its| *its != name) {
            return Move::Stop(either(&name, &other));
        }
        if has(claim, volume) {
            return if asked < self.size() {
                Move::Raise(version(claim))
            } else {
                Move::GiveBack
            };
        }
        if asked > self.base() {
            return Move::Stop(format!(
                "another client has recreated the claim, and asks for {asked}, where persistent volume {name} has {}: stop whoever does (a set, an operator, what applies manifests), and delete the claim",
                self.base()
            ));
        }
        let is_its = holder(volume)
            .and_then(|holder| holder.uid.as_deref())
            .is_some_and(|holder| holder == uid(&claim.metadata));
        if is_its && size == self.base() {
            return Move::Wait(format!("the claim to be bound to persistent volume {name}"));
        }
        Move::Offer(uid(&claim.metadata).to_owned())
    }
}

/// The message if there are two claims of one name, and an administrator has to choose between their data.
pub(super) fn either(former: &str, other: &str) -> String {
    format!(
        "persistent volume {former} has the data of a former claim of this name, for which a run has stopped early, and the claim is another one since, with persistent volume {other}. To forget the former one: kubectl annotate pv {former} {RECOVERY}-. To have it back: delete the claim, which may delete the data in {other}, and repeat the command"
    )
}

/// Whether the volume's storage is retained, whatever becomes of its claim.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    policy(volume) == Some("Retain")
}

fn version(claim: &PersistentVolumeClaim) -> String {
    claim.metadata.resource_version.clone().unwrap_or_default()
}

/// The volume's reclaim policy.
fn policy(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    spec.persistent_volume_reclaim_policy.as_deref()
}

/// Whether a volume is for a claim of this namespace and name, with any UID.
pub(super) fn is_for(volume: &PersistentVolume, (namespace, name): (&str, &str)) -> bool {
    holder(volume).is_some_and(|holder| {
        holder.namespace.as_deref() == Some(namespace) && holder.name.as_deref() == Some(name)
    })
}

/// Copies a claim with another size, and without what Kubernetes has added.
fn made_anew(claim: &PersistentVolumeClaim, size: Bytes) -> PersistentVolumeClaim {
    let former = &claim.metadata;
    let mut annotations = former.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !OF_BINDING.contains(&key.as_str()));
    let mut spec = claim.spec.clone().unwrap_or_default();
    let requests = BTreeMap::from([("storage".to_owned(), Quantity(size.to_string()))]);
    spec.resources.get_or_insert_default().requests = Some(requests);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: former.name.clone(),
            namespace: former.namespace.clone(),
            labels: former.labels.clone(),
            annotations: Some(annotations),
            owner_references: former.owner_references.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

#[cfg(test)]
mod tests;
