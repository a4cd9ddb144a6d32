//! What is to be done for a claim that is made anew, as its persistent volume carries it.

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

/// What is to be done.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Note {
    /// Of this form; another one is not understood.
    version: Version,
    /// The UID of the claim's namespace. Who has one of its name later may be somebody else. What former versions wrote
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace_uid: Option<String>,
    /// The UID of the claim that goes.
    former: String,
    /// The claim that comes.
    claim: PersistentVolumeClaim,
    /// What it asks for in the end, in bytes.
    size: u64,
    /// What becomes of the volume when it is released, otherwise than now.
    reclaim_policy: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
enum Version {
    #[serde(rename = "1")]
    One,
}

/// The namespace in which a run finds itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamespaceIdentity<'a> {
    /// Its UID now, read after the claim: whatever claim was seen before is of no later one.
    pub uid: &'a str,
    /// That of the one which a person said shall have the data.
    pub accepted: Option<&'a str>,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The volume is kept, whatever becomes of its claim.
    Keep,
    /// The claim is deleted, if it is of this version.
    Delete(String),
    /// The claim is made: it names the volume, and waits for it.
    Make,
    /// The volume is said to be for the claim of this UID, which has come, and to have the size with which it comes. By
    /// the name alone whoever makes a claim of that name in a later namespace of that name would get its data.
    Offer(String),
    /// The claim, if it is of this version, asks for what its storage has beyond that.
    Raise(String),
    /// The volume gets its reclaim policy back, and loses the note: the last move.
    GiveBack,
    /// Nothing, until others have done their part.
    Wait(String),
    /// Nothing, because of somebody else.
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

/// What Kubernetes writes into a claim about its way to its volume, and would believe of a new one.
const OF_BINDING: [&str; 6] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-resizer",
];

impl Note {
    /// For a claim that is there; `noted` is what its volume carries already.
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

    /// The one that a volume carries.
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

    /// With which the claim is made anew.
    fn base(&self) -> Bytes {
        let spec = self.claim.spec.as_ref();
        spec.and_then(|spec| request(spec).ok()).unwrap_or_default()
    }

    /// A patch for a volume that is kept from now on, and found by whoever repeats the command.
    pub(super) fn to_keep(&self) -> Result<Value> {
        let text = serde_json::to_string(self).context("write the note")?;
        Ok(json!({
            "metadata": {"annotations": {RECOVERY: text}, "labels": {MANAGED: "true"}},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        }))
    }

    /// A patch for a volume that no claim has, and the claim of this UID shall have.
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

    /// A patch for a volume that its new claim has.
    pub(super) fn to_give_back(&self) -> Value {
        json!({
            "metadata": {"annotations": {RECOVERY: null}},
            "spec": {"persistentVolumeReclaimPolicy": self.reclaim_policy},
        })
    }

    /// What is next, where these are there, and the volume carries this note.
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
        // Where the former claim is, there is its namespace.
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
            Some(claim) if is_former(&claim) => self.goes(claim, volume),
            Some(claim) => self.comes(claim, volume, size),
        }
    }

    /// Why the namespace that there is now does not get the data.
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
            None => "of a claim in one of that name, of which a run of a former version noted no UID: it may have been deleted and made anew for somebody else".to_owned(),
        };
        Some(format!(
            "namespace {namespace} has UID {uid}, and persistent volume {volume} has the data {whose}; if the data are theirs, say so with --namespace-uid={uid}; to forget them: kubectl annotate pv {volume} {RECOVERY}-"
        ))
    }

    /// The claim that has to go.
    fn goes(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Move {
        if !has(claim, volume) {
            return Move::Stop("the claim has its volume no more".to_owned());
        }
        if capacity(claim) != self.base() {
            return Move::Stop("the claim has grown meanwhile".to_owned());
        }
        Move::Delete(version(claim))
    }

    /// A claim of that name that is not the former one.
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
                "somebody else has made the claim anew, and asks for {asked}, where persistent volume {name} has {}: stop whoever does (a set, an operator, what applies manifests), and delete the claim",
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

/// What a person has to decide who finds the data of two claims of one name.
pub(super) fn either(former: &str, other: &str) -> String {
    format!(
        "persistent volume {former} has the data of a former claim of this name, for which a run has stopped early, and the claim is another one since, with persistent volume {other}. To forget the former one: kubectl annotate pv {former} {RECOVERY}-. To have it back: delete the claim, which may delete the data in {other}, and repeat the command"
    )
}

/// Whether a volume's storage stays, whatever becomes of its claim.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    policy(volume) == Some("Retain")
}

fn version(claim: &PersistentVolumeClaim) -> String {
    claim.metadata.resource_version.clone().unwrap_or_default()
}

/// What becomes of a volume when it is released.
fn policy(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    spec.persistent_volume_reclaim_policy.as_deref()
}

/// Whether a volume is for a claim of this namespace and name, whichever that is.
pub(super) fn is_for(volume: &PersistentVolume, (namespace, name): (&str, &str)) -> bool {
    holder(volume).is_some_and(|holder| {
        holder.namespace.as_deref() == Some(namespace) && holder.name.as_deref() == Some(name)
    })
}

/// A claim as it was, but for its size and for what Kubernetes has made of it.
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
