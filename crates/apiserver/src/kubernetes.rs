//! Kubernetes' own controllers for claims and volumes (kube-controller-manager's `persistentvolume-binder`, the two
//! protection controllers, and `persistentvolume-expander`), as far as claims of provisioned volumes need them. They
//! see changes with a small delay.

use crate::{
    Key, Refused, Store,
    shared::Shared,
    store::{
        parse,
        write::{Part, merge},
    },
};
use flexvol_sdk::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// Selects the controllers that run.
#[derive(Clone, Copy, Debug)]
pub struct Kubernetes {
    /// Whether the expander runs. It assumes that every FlexVolume is expanded on the node only.
    pub expands: bool,
}

const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Annotations of a bound claim.
const BOUND: [&str; 2] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
];

/// Reacts to every change after this version, for ever.
pub(crate) async fn follow(kubernetes: Kubernetes, shared: Arc<Shared>, mut seen: u64) {
    let mut versions = shared.store().versions();
    loop {
        // One change at a time, so that requests can be served in between.
        loop {
            let mut store = shared.store();
            let known = store.since(seen).map(|mut changes| changes.next().cloned());
            let Ok(next) = known else {
                // The history was dropped: react to all objects, as an informer does after a relist.
                seen = store.version();
                kubernetes.all(&mut store);
                continue;
            };
            let Some(change) = next else { break };
            seen = change.version;
            let last = (change.what == "DELETED").then(|| parse(&change.text));
            kubernetes.react(&mut store, &change.key, last.as_ref());
        }
        if versions.changed().await.is_err() {
            return;
        }
    }
}

impl Kubernetes {
    fn all(self, store: &mut Store) {
        for kind in ["PersistentVolumeClaim", "PersistentVolume"] {
            let all = store.texts(Key::new(kind, "", "").kind(), None, None);
            let keys: Vec<_> = all.map(|(key, _)| key.clone()).collect();
            for key in keys {
                self.react(store, &key, None);
            }
        }
    }

    fn react(self, store: &mut Store, key: &Key, last: Option<&Value>) {
        let done = match key.kind().kind {
            "PersistentVolumeClaim" => match last {
                Some(last) => volume(store, &volume_of(last)),
                None => self.claim(store, key),
            },
            "PersistentVolume" => match store.get(key) {
                Some(found) => {
                    let claim = claim_of(&found);
                    self.claim(store, &claim).and_then(|()| volume(store, key))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        };
        done.expect("Kubernetes' own writes");
    }

    fn claim(self, store: &mut Store, key: &Key) -> Result<(), Refused> {
        let Some(claim) = store.get(key) else {
            return Ok(());
        };
        if is_deleting(&claim) {
            return let_go(store, key, CLAIM_PROTECTION);
        }
        let volume_key = volume_of(&claim);
        let volume = store.get(&volume_key);
        let volume = volume.filter(|found| {
            found["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"] && !is_deleting(found)
        });
        let named = claim["spec"]["volumeName"].as_str();
        let is_complete = claim["metadata"]["annotations"][BOUND[0]] == "yes";
        let phase = claim["status"]["phase"].as_str();
        match (named, volume) {
            (None, None) => announce(store, key, &claim),
            (_, Some(_)) if named.is_none() || !is_complete => bind(store, key, &volume_key),
            (Some(_), Some(volume)) if phase != Some("Bound") => complete(store, key, &volume),
            (Some(_), None) if is_complete && phase != Some("Lost") => {
                let lost = json!({"phase": "Lost", "capacity": null, "accessModes": null});
                store.merge_status(key, &lost)
            }
            (Some(_), Some(volume)) if self.expands => expand(store, key, &claim, &volume),
            _ => Ok(()),
        }
    }
}

/// Returns the key of a claim's volume, which every provisioner names this way.
fn volume_of(claim: &Value) -> Key {
    let uid = claim["metadata"]["uid"].as_str().unwrap_or_default();
    Key::new("PersistentVolume", "", &format!("pvc-{uid}"))
}

fn claim_of(volume: &Value) -> Key {
    let claim_field = |field: &str| {
        let value = volume["spec"]["claimRef"][field].as_str();
        value.unwrap_or_default().to_owned()
    };
    Key::new(
        "PersistentVolumeClaim",
        &claim_field("namespace"),
        &claim_field("name"),
    )
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Requests provisioning, by annotations of the claim.
fn announce(store: &mut Store, key: &Key, claim: &Value) -> Result<(), Refused> {
    let class = claim["spec"]["storageClassName"]
        .as_str()
        .unwrap_or_default();
    let Some(class) = store.get(&Key::new("StorageClass", "", class)) else {
        return Ok(());
    };
    let chosen = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    if class["volumeBindingMode"] == "WaitForFirstConsumer" && chosen.is_null() {
        return Ok(());
    }
    let annotations = json!({
        "volume.beta.kubernetes.io/storage-provisioner": class["provisioner"],
        "volume.kubernetes.io/storage-provisioner": class["provisioner"],
    });
    store.merge(key, &json!({"metadata": {"annotations": annotations}}))?;
    Ok(())
}

/// Binds the volume first, then the claim. The claim's status follows when that change was seen.
fn bind(store: &mut Store, claim: &Key, volume: &Key) -> Result<(), Refused> {
    store.merge_status(volume, &json!({"phase": "Bound"}))?;
    let annotations = json!({BOUND[0]: "yes", BOUND[1]: "yes"});
    let patch = json!({
        "metadata": {"annotations": annotations},
        "spec": {"volumeName": volume.name},
    });
    store.merge(claim, &patch).map(|_| ())
}

fn complete(store: &mut Store, claim: &Key, volume: &Value) -> Result<(), Refused> {
    let status = json!({
        "phase": "Bound",
        "accessModes": volume["spec"]["accessModes"],
        "capacity": volume["spec"]["capacity"],
    });
    store.merge_status(claim, &status)
}

/// Expands a volume whose plugin has nothing to do in the control plane (`pkg/controller/volume/expand`).
fn expand(store: &mut Store, key: &Key, claim: &Value, volume: &Value) -> Result<(), Refused> {
    let size = |quantity: &Value| -> Bytes {
        let text = quantity.as_str().unwrap_or("0");
        text.parse().expect("a quantity")
    };
    let asked = &claim["spec"]["resources"]["requests"]["storage"];
    if size(&volume["spec"]["capacity"]["storage"]) >= size(asked)
        || claim["status"]["phase"] != "Bound"
    {
        return Ok(());
    }
    let capacity = json!({"spec": {"capacity": {"storage": asked}}});
    store.merge(&volume_of(claim), &capacity)?;
    let status = json!({
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
        "allocatedResources": {"storage": asked},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    });
    store.merge_status(key, &status)
}

fn volume(store: &mut Store, key: &Key) -> Result<(), Refused> {
    let Some(found) = store.get(key) else {
        return Ok(());
    };
    let uid = &found["spec"]["claimRef"]["uid"];
    let claim = store.get(&claim_of(&found));
    if claim.is_none_or(|claim| claim["metadata"]["uid"] != *uid) && !uid.is_null() {
        store.merge_status(key, &json!({"phase": "Released"}))?;
        if is_deleting(&found) {
            return let_go(store, key, VOLUME_PROTECTION);
        }
    }
    Ok(())
}

fn let_go(store: &mut Store, key: &Key, finalizer: &str) -> Result<(), Refused> {
    let drop = |before: &Value| {
        let mut after = before.clone();
        if let Some(all) = after["metadata"]["finalizers"].as_array_mut() {
            all.retain(|each| each != finalizer);
        }
        Ok(after)
    };
    store.update(key, Part::Main, drop).map(|_| ())
}

impl Store {
    /// Applies a merge patch to an object, except its status.
    ///
    /// # Errors
    /// As for a client's patch.
    pub fn merge(&mut self, key: &Key, patch: &Value) -> Result<Value, Refused> {
        self.update(key, Part::Main, |before| {
            let mut after = before.clone();
            merge(&mut after, patch);
            Ok(after)
        })
    }

    /// Applies a merge patch to an object's status.
    ///
    /// # Errors
    /// As for a client's patch.
    pub fn merge_status(&mut self, key: &Key, status: &Value) -> Result<(), Refused> {
        let patch = json!({"status": status});
        let change = |before: &Value| {
            let mut after = before.clone();
            merge(&mut after, &patch);
            Ok(after)
        };
        self.update(key, Part::Status, change).map(|_| ())
    }
}
