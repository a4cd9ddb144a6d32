//! What a set shall be when it is made anew, kept in a secret while it is not there.

use crate::{
    names::{GROW, REALIGNED},
    observe::uid,
    sets,
};
use anyhow::{Context, Result, ensure};
use flexvol_sdk::Bytes;
use k8s_openapi::{
    ByteString,
    api::{apps::v1::StatefulSet, core::v1::Secret},
};
use kube::{ResourceExt, api::ObjectMeta, core::DynamicObject};
use serde_json::Value;
use std::collections::BTreeMap;

/// Where in the secret the set is, for people too.
const SET: &str = "set.json";
const FORMER: &str = "former";

/// What the name of the secret begins with; the set's follows.
const PREFIX: &str = "flexvol-realign-";

/// In a claim template.
const SIZE: &str = "/spec/resources/requests/storage";

/// What a garbage collector that leaves a set's pods alone waits with (`pkg/controller/garbagecollector`).
const ORPHAN: &str = "orphan";

/// A set as it shall be, and which one it was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Save {
    /// The UID of the set that is to be deleted.
    pub former: String,
    /// The one that is to be made.
    pub set: DynamicObject,
}

/// A claim template whose size is not what the set's annotation asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub template: String,
    pub is: Bytes,
    pub shall: Bytes,
}

/// The name of the secret of a set.
pub(super) fn name(set: &str) -> String {
    format!("{PREFIX}{set}")
}

/// The set that a secret is of.
pub(super) fn set_of(secret: &ObjectMeta) -> Option<&str> {
    secret.name.as_deref()?.strip_prefix(PREFIX)
}

impl Save {
    pub fn new(set: &DynamicObject, changes: &[Change]) -> Self {
        let sizes = changes.iter();
        let sizes = sizes.map(|change| (change.template.as_str(), change.shall));
        Save {
            former: uid(&set.metadata).to_owned(),
            set: anew(set, &sizes.collect()),
        }
    }

    /// The same with whatever else the set says now.
    pub fn renewed(&self, set: &DynamicObject) -> Self {
        let sizes = sizes(&self.set).into_iter();
        let sizes = sizes.filter_map(|(name, size)| Some((name?, size?)));
        Save {
            former: self.former.clone(),
            set: anew(set, &sizes.collect()),
        }
    }

    /// # Errors
    /// When it is not what was saved of the set of its name.
    pub fn of(secret: &Secret) -> Result<Self> {
        let strange = || {
            format!(
                "secret {} is not what realign saves; look at it, and delete it if no stateful set is missing",
                secret.name_any()
            )
        };
        let read = |key: &str| secret.data.as_ref()?.get(key).map(|value| value.0.clone());
        let former = read(FORMER).and_then(|former| String::from_utf8(former).ok());
        let set = read(SET).with_context(strange)?;
        let set: DynamicObject = serde_json::from_slice(&set).with_context(strange)?;
        let is_set = set
            .types
            .as_ref()
            .is_some_and(|types| types.kind == "StatefulSet");
        let same = set.metadata.name.as_deref() == set_of(&secret.metadata)
            && set.metadata.namespace == secret.metadata.namespace;
        ensure!(is_set && same, strange());
        Ok(Save {
            former: former.with_context(strange)?,
            set,
        })
    }

    /// What is kept; in the place of `before`, if that is as it was read.
    pub fn to_secret(&self, before: Option<&Secret>) -> Result<Secret> {
        let set = serde_json::to_vec_pretty(&self.set).context("write the set")?;
        let data = [(FORMER, self.former.clone().into_bytes()), (SET, set)];
        let data = data.map(|(key, value)| (key.to_owned(), ByteString(value)));
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(name(&self.set.name_any())),
                namespace: self.set.namespace(),
                labels: Some([(REALIGNED.to_owned(), "true".to_owned())].into()),
                resource_version: before
                    .and_then(|before| before.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            data: Some(data.into()),
            ..Secret::default()
        })
    }

    /// Whether the set is what was to be made: each template has the size that it shall have, or more.
    pub fn is_made(&self, set: &DynamicObject) -> bool {
        let (shall, is) = (sizes(&self.set), sizes(set));
        shall.len() == is.len()
            && shall
                .iter()
                .zip(&is)
                .all(|(shall, is)| is.0 == shall.0 && is.1 >= shall.1)
    }

    /// Whether somebody's webhook would make another set of it, whose pods would not be those there are.
    pub fn is_kept_by(&self, made: &DynamicObject) -> bool {
        spec(&self.set) == spec(made)
    }
}

/// What is to be changed of a set's templates; or why it is not made anew.
pub(super) fn plan(set: &StatefulSet) -> Result<Vec<Change>, String> {
    let meta = &set.metadata;
    if meta.deletion_timestamp.is_some() {
        return Err("it is being deleted".to_owned());
    }
    let mut owners = meta.owner_references.iter().flatten();
    if let Some(owner) = owners.find(|owner| owner.controller == Some(true)) {
        return Err(format!(
            "{} {} made it, and would make it as it was: change its sizes there",
            owner.kind, owner.name
        ));
    }
    if let Some(finalizer) = meta.finalizers.iter().flatten().next() {
        return Err(format!(
            "finalizer {finalizer} would hold it when it is deleted"
        ));
    }
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    if policy.is_some_and(|policy| policy.when_deleted.as_deref() == Some("Delete")) {
        return Err(
            "its claims are to go with it (persistentVolumeClaimRetentionPolicy.whenDeleted): say Retain there first"
                .to_owned(),
        );
    }
    let mut changes = Vec::new();
    for (template, shall) in sets::wanted(set) {
        let shall = shall?;
        let is = sets::template(set, &template).and_then(sets::size);
        let is = is.map(|(_, size)| size).unwrap_or_default();
        if shall > is {
            changes.push(Change {
                template,
                is,
                shall,
            });
        }
    }
    if changes.is_empty() {
        return Err(format!(
            "there is nothing to realign: no annotation {GROW}TEMPLATE asks for more than its template"
        ));
    }
    if set.spec.replicas == Some(0) {
        return Err(
            "it has no pods, by which a set that was deleted on purpose is told from one that is made anew: scale it up first"
                .to_owned(),
        );
    }
    if !is_settled(set) {
        return Err(
            "not all its pods are ready and of its newest revision, which it would take for that of all: wait until they are"
                .to_owned(),
        );
    }
    Ok(changes)
}

/// Whether all its pods are there, ready, and of its newest revision.
fn is_settled(set: &StatefulSet) -> bool {
    let Some(status) = &set.status else {
        return false;
    };
    let all = Some(set.spec.replicas.unwrap_or(1));
    status.observed_generation >= set.metadata.generation
        && [
            Some(status.replicas),
            status.ready_replicas,
            status.updated_replicas,
        ] == [all; 3]
}

/// Whether the set is being deleted without its pods.
pub(super) fn is_orphaning(set: &DynamicObject) -> bool {
    set.finalizers().iter().any(|held| held == ORPHAN)
}

/// The set with templates of these sizes, and without what the API server says of the one there is.
fn anew(set: &DynamicObject, sizes: &BTreeMap<&str, Bytes>) -> DynamicObject {
    let mut set = set.clone();
    let meta = &mut set.metadata;
    meta.uid = None;
    meta.resource_version = None;
    meta.generation = None;
    meta.creation_timestamp = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.finalizers = None;
    meta.self_link = None;
    // The API server takes none: whose a field is it asks when the set is next applied.
    meta.managed_fields = None;
    if let Some(data) = set.data.as_object_mut() {
        data.remove("status");
    }
    let templates = set.data.pointer_mut("/spec/volumeClaimTemplates");
    let templates = templates.and_then(Value::as_array_mut);
    for template in templates.into_iter().flatten() {
        let name = template["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(size) = sizes.get(name) {
            template["spec"]["resources"]["requests"]["storage"] = size.to_string().into();
        }
    }
    set
}

/// The names of the set's claim templates, and their sizes.
fn sizes(set: &DynamicObject) -> Vec<(Option<&str>, Option<Bytes>)> {
    let templates = set.data.pointer("/spec/volumeClaimTemplates");
    let templates = templates.and_then(Value::as_array).into_iter().flatten();
    let sizes = templates.map(|template| {
        let text = |path: &str| template.pointer(path).and_then(Value::as_str);
        let size = text(SIZE).and_then(|size| size.parse().ok());
        (text("/metadata/name"), size)
    });
    sizes.collect()
}

/// What decides about the pods and claims of a set. The API server may write a size in another way.
fn spec(set: &DynamicObject) -> Value {
    let mut spec = set.data["spec"].clone();
    let templates = spec.pointer_mut("/volumeClaimTemplates");
    let templates = templates.and_then(Value::as_array_mut);
    for template in templates.into_iter().flatten() {
        if let Some(size) = template.pointer_mut(SIZE)
            && let Some(bytes) = size.as_str().and_then(|size| size.parse::<Bytes>().ok())
        {
            *size = bytes.to_string().into();
        }
        if let Some(template) = template.as_object_mut() {
            template.remove("status");
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn set(more: Value) -> Value {
        let mut set = json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {
                "name": "db", "namespace": "shop", "uid": "1", "resourceVersion": "7", "generation": 2,
                "annotations": {"grow.flexvol.dev/data": "20Gi", "mine": "stays"},
            },
            "spec": {
                "replicas": 2, "serviceName": "db", "selector": {}, "template": {},
                "fieldOfTomorrow": {"kept": true},
                "volumeClaimTemplates": [template("log", "1Gi"), template("data", "10Gi")],
            },
            "status": {
                "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "observedGeneration": 2,
            },
        });
        merge(&mut set, more);
        set
    }

    fn merge(into: &mut Value, more: Value) {
        let Value::Object(more) = more else {
            *into = more;
            return;
        };
        for (key, value) in more {
            merge(&mut into[key], value);
        }
    }

    fn template(name: &str, size: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {"resources": {"requests": {"storage": size}}},
        })
    }

    fn planned(more: Value) -> Result<Vec<Change>, String> {
        plan(&from_value(set(more)).unwrap())
    }

    #[test]
    fn templates_get_the_sizes_of_annotations_and_nothing_else_changes() {
        let changes = planned(json!({})).unwrap();
        let there: DynamicObject = from_value(set(json!({}))).unwrap();
        let save = Save::new(&there, &changes);
        let mut later = there.clone();
        later.metadata.deletion_timestamp =
            Some(from_value(json!("2026-11-22T12:00:00Z")).unwrap());
        later.metadata.finalizers = Some(vec![ORPHAN.to_owned()]);
        assert!(is_orphaning(&later) && !is_orphaning(&there));
        assert_eq!(save.renewed(&later), save);
        later.data["spec"]["replicas"] = 3.into();
        assert_eq!(save.renewed(&later).set.data["spec"]["replicas"], 3);
        let mut shall = set(json!({}));
        shall.as_object_mut().unwrap().remove("status");
        for gone in ["uid", "resourceVersion", "generation"] {
            shall["metadata"].as_object_mut().unwrap().remove(gone);
        }
        shall["spec"]["volumeClaimTemplates"][1] = template("data", "20Gi");
        assert_eq!(serde_json::to_value(&save.set).unwrap(), shall);
        assert_eq!(save.former, "1");
        assert!(!save.is_made(&there));
        assert!(save.is_made(&save.set));
        let mut secret = save.to_secret(None).unwrap();
        assert_eq!(Save::of(&secret).unwrap(), save);
        secret.metadata.name = Some(name("other"));
        let strange = Save::of(&secret).unwrap_err().to_string();
        assert!(strange.contains("is not what realign saves"), "{strange}");
    }

    #[test]
    fn what_a_webhook_would_change_is_seen() {
        let there: DynamicObject = from_value(set(json!({}))).unwrap();
        let save = Save::new(&there, &planned(json!({})).unwrap());
        let mut made = save.set.clone();
        made.data["spec"]["volumeClaimTemplates"][0]["status"] = json!({"phase": "Pending"});
        made.data["spec"]["volumeClaimTemplates"][1] = template("data", "21474836480");
        assert!(save.is_kept_by(&made));
        made.data["spec"]["template"]["metadata"] = json!({"annotations": {"sidecar": "yes"}});
        assert!(!save.is_kept_by(&made));
    }

    #[test]
    fn a_set_that_others_make_or_that_would_take_its_claims_along_stays() {
        let owner = |controller: bool| {
            json!({"metadata": {"ownerReferences": [{
                "apiVersion": "a/v1", "kind": "Database", "name": "db", "uid": "9", "controller": controller,
            }]}})
        };
        assert!(planned(owner(false)).is_ok());
        let retention = |policy: &str| json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy}}});
        assert!(planned(retention("Retain")).is_ok());
        for (more, why) in [
            (owner(true), "Database db made it"),
            (retention("Delete"), "its claims are to go with it"),
            (
                json!({"metadata": {"finalizers": ["a/b"]}}),
                "finalizer a/b",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-11-22T12:00:00Z"}}),
                "is being deleted",
            ),
            (json!({"spec": {"replicas": 3}}), "not all its pods"),
            (json!({"spec": {"replicas": 0}}), "has no pods"),
            (
                json!({"status": {"updatedReplicas": 1}}),
                "not all its pods",
            ),
            (json!({"status": {"readyReplicas": 1}}), "not all its pods"),
            (json!({"metadata": {"generation": 3}}), "not all its pods"),
            (
                json!({"metadata": {"annotations": {"grow.flexvol.dev/data": "10Gi"}}}),
                "nothing to realign",
            ),
            (
                json!({"metadata": {"annotations": {"grow.flexvol.dev/data": "much"}}}),
                "annotation grow.flexvol.dev/data",
            ),
        ] {
            let refused = planned(more.clone()).unwrap_err();
            assert!(refused.contains(why), "{more}: {refused}");
        }
    }
}
