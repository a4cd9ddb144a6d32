//! What is to be done for a claim that is made anew, as its persistent volume carries it.

use super::guard::{Found, Plan};
use crate::{
    names::RECOVERY,
    observe::{is_bound, storage, uid},
    wish::request,
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
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    /// The UID of the claim that goes.
    former: String,
    /// The claim that comes.
    claim: PersistentVolumeClaim,
    /// What it asks for in the end, in bytes.
    size: u64,
    /// What becomes of the volume when it is released, otherwise than now.
    reclaim_policy: String,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The claim is deleted.
    Delete,
    /// The volume is said to be for the claim that comes, and to have the size with which it comes.
    Offer,
    /// The claim is made.
    Make,
    /// The volume gets its reclaim policy back, and loses the note.
    GiveBack,
    /// The claim asks for what its storage has beyond that.
    Raise,
    /// Nothing, until Kubernetes has done its part.
    Wait(String),
    /// Nothing, because of somebody else.
    Stop(String),
    /// Nothing.
    Done,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Move::Delete => "delete the claim",
            Move::Offer => "offer the persistent volume to the claim that comes",
            Move::Make => "make the claim anew",
            Move::GiveBack => "give the persistent volume its reclaim policy back",
            Move::Raise => "ask for what the storage has",
            Move::Done => "nothing is left to do",
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
    pub(super) fn new(found: &Found, plan: &Plan) -> Self {
        let Found { claim, volume, .. } = found;
        let of_volume = volume.spec.as_ref();
        let policy = of_volume.and_then(|spec| spec.persistent_volume_reclaim_policy.clone());
        Note {
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

    pub(super) fn is_about(&self, namespace: &str, name: &str) -> bool {
        let meta = &self.claim.metadata;
        meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
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

    /// For a volume that is kept from now on.
    pub(super) fn kept(&self) -> Result<Value> {
        let text = serde_json::to_string(self).context("write the note")?;
        Ok(json!({
            "metadata": {"annotations": {RECOVERY: text}},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        }))
    }

    /// For a volume that no claim has.
    pub(super) fn offered(&self) -> Value {
        json!({"spec": {
            "capacity": {"storage": self.base().to_string()},
            "claimRef": {"uid": null, "resourceVersion": null},
        }})
    }

    /// For a volume that its new claim has.
    pub(super) fn given_back(&self) -> Value {
        json!({
            "metadata": {"annotations": {RECOVERY: null}},
            "spec": {"persistentVolumeReclaimPolicy": self.reclaim_policy},
        })
    }

    /// What is next, where these are there.
    pub(super) fn next(
        &self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Move {
        let spec = volume.spec.clone().unwrap_or_default();
        let holder = spec
            .claim_ref
            .as_ref()
            .and_then(|holder| holder.uid.as_deref());
        let Some(claim) = claim else {
            let is_offered = holder.is_none() && storage(spec.capacity.as_ref()) == self.base();
            return if is_offered { Move::Make } else { Move::Offer };
        };
        let meta = &claim.metadata;
        if uid(meta) == self.former {
            return match &meta.deletion_timestamp {
                None => Move::Delete,
                Some(_) => Move::Wait(format!(
                    "the claim to go, which {} hold",
                    meta.finalizers.clone().unwrap_or_default().join(", ")
                )),
            };
        }
        let of_claim = claim.spec.clone().unwrap_or_default();
        let (name, its) = (volume.name_any(), of_claim.volume_name.as_deref());
        if let Some(other) = its.filter(|its| !its.is_empty() && *its != name) {
            return Move::Stop(format!(
                "somebody else has made the claim anew, and it has persistent volume {other}; the data of the former one is in {name}, which says Retain: delete the claim, and repeat the command"
            ));
        }
        if !is_bound(claim) || holder != Some(uid(meta)) {
            return Move::Wait(format!("the claim to be bound to persistent volume {name}"));
        }
        let annotations = volume.metadata.annotations.as_ref();
        if annotations.is_some_and(|all| all.contains_key(RECOVERY)) {
            return Move::GiveBack;
        }
        match request(&of_claim) {
            Ok(asked) if asked < self.size() => Move::Raise,
            _ => Move::Done,
        }
    }
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
mod tests {
    use super::super::guard::{plan, tests::found};
    use super::*;
    use serde_json::{from_value, to_value};

    /// Merges as the API server does (RFC 7386).
    fn merge(into: &mut Value, patch: &Value) {
        let Value::Object(fields) = patch else {
            *into = patch.clone();
            return;
        };
        if !into.is_object() {
            *into = json!({});
        }
        for (key, value) in fields {
            if value.is_null() {
                into.as_object_mut().unwrap().remove(key);
            } else {
                merge(&mut into[key], value);
            }
        }
    }

    /// The two objects, and what Kubernetes does with them.
    struct Cluster {
        volume: Value,
        claim: Option<Value>,
    }

    impl Cluster {
        fn volume(&self) -> PersistentVolume {
            from_value(self.volume.clone()).unwrap()
        }

        fn claim(&self) -> Option<PersistentVolumeClaim> {
            self.claim.clone().map(|claim| from_value(claim).unwrap())
        }

        fn act(&mut self, next: &Move, note: &Note) {
            match next {
                Move::Delete => {
                    let meta = json!({
                        "deletionTimestamp": "2026-11-22T12:00:00Z",
                        "finalizers": ["kubernetes.io/pvc-protection"],
                    });
                    merge(self.claim.as_mut().unwrap(), &json!({"metadata": meta}));
                }
                Move::Offer => merge(&mut self.volume, &note.offered()),
                Move::Make => {
                    let mut claim = to_value(note.claim()).unwrap();
                    claim["metadata"]["uid"] = "2".into();
                    self.claim = Some(claim);
                }
                Move::GiveBack => merge(&mut self.volume, &note.given_back()),
                Move::Raise => {
                    let size = json!({"storage": note.size().to_string()});
                    let patch = json!({"spec": {"resources": {"requests": size}}});
                    merge(self.claim.as_mut().unwrap(), &patch);
                }
                Move::Wait(_) => self.bind_or_remove(),
                Move::Stop(_) | Move::Done => {}
            }
        }

        fn bind_or_remove(&mut self) {
            let claim = self.claim.as_mut().unwrap();
            if !claim["metadata"]["deletionTimestamp"].is_null() {
                self.claim = None;
                return;
            }
            let capacity = &self.volume["spec"]["capacity"];
            assert_eq!(
                claim["spec"]["resources"]["requests"], *capacity,
                "Kubernetes binds none that is too small"
            );
            claim["status"] = json!({"phase": "Bound", "capacity": capacity});
            self.volume["spec"]["claimRef"]["uid"] = claim["metadata"]["uid"].clone();
        }
    }

    #[test]
    fn each_move_leads_to_the_next_and_the_note_alone_knows_them() {
        for size in [None, Some(Bytes(20 << 20))] {
            let found = found();
            let note = Note::new(&found, &plan(&found, size).unwrap());
            let mut cluster = Cluster {
                volume: to_value(&found.volume).unwrap(),
                claim: Some(to_value(&found.claim).unwrap()),
            };
            merge(&mut cluster.volume, &note.kept().unwrap());
            let mut note = note;
            let mut moves = Vec::new();
            loop {
                let volume = cluster.volume();
                // As one that is started anew knows it.
                note = Note::of(&volume).unwrap().unwrap_or(note);
                assert!(note.is_about("ns", "data-db-0") && !note.is_about("ns", "data"));
                let next = note.next(&volume, cluster.claim().as_ref());
                if next == Move::Done {
                    break;
                }
                let kept = &cluster.volume["spec"]["persistentVolumeReclaimPolicy"];
                assert!(kept == "Retain" || next == Move::Raise, "{next}");
                cluster.act(&next, &note);
                moves.push(next.to_string().split(' ').next().unwrap().to_owned());
            }
            let mut all = vec!["delete", "wait", "offer", "make", "wait", "give"];
            all.extend(size.map(|_| "ask"));
            assert_eq!(moves, all);
            let spec = &cluster.volume["spec"];
            assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete");
            assert_eq!(spec["capacity"]["storage"], "10Mi");
            assert_eq!(spec["claimRef"]["uid"], "2");
            assert!(Note::of(&cluster.volume()).unwrap().is_none());
            let claim = cluster.claim.unwrap();
            let asked = size.unwrap_or(Bytes(10 << 20)).to_string();
            assert_eq!(claim["spec"]["resources"]["requests"]["storage"], asked);
            assert_eq!(claim["metadata"]["annotations"], json!({"of": "people"}));
            assert_eq!(claim["metadata"]["labels"], json!({"app": "db"}));
        }
    }

    #[test]
    fn a_claim_that_somebody_else_made_is_left_alone_and_told_of() {
        let found = found();
        let note = Note::new(&found, &plan(&found, None).unwrap());
        let with = |volume: &str| {
            let mut claim = found.claim.clone();
            claim.metadata.uid = Some("3".to_owned());
            claim.spec.as_mut().unwrap().volume_name = Some(volume.to_owned());
            note.next(&found.volume, Some(&claim))
        };
        assert!(
            with("pvc-3")
                .to_string()
                .contains("the data of the former one is in pvc-1")
        );
        assert!(matches!(with(""), Move::Wait(_)), "it may get it yet");
    }

    #[test]
    fn a_note_that_cannot_be_read_is_named() {
        let mut volume = found().volume;
        assert!(Note::of(&volume).unwrap().is_none());
        let annotations = volume.metadata.annotations.as_mut().unwrap();
        annotations.insert(RECOVERY.to_owned(), "{}".to_owned());
        let error = Note::of(&volume).unwrap_err().to_string();
        assert!(
            error.contains(RECOVERY) && error.contains("pvc-1"),
            "{error}"
        );
    }
}
