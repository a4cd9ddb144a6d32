//! Sizes in the annotations of stateful sets, whoever writes them: people, or [`super::set_templates`]. And
//! the annotation that lets pods be stopped for growth.

use super::review::{Update, Verdict};
use crate::{
    api::labels::is_object_name,
    k8s::{
        claim::class_text,
        class::beyond,
        stateful_set::{claim_name, ordinals, restarts, size, template, too_large, wanted},
    },
};
use anyhow::{Context, Result};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{
    apps::v1::StatefulSet, core::v1::PersistentVolumeClaim, storage::v1::StorageClass,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::cmp::Reverse;

/// What the default class is annotated with (`pkg/volume/util/storageclass.go` in Kubernetes).
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// So many claims of a set are looked at before a size is accepted; the controller looks at all.
const MOST_CLAIMS: u32 = 500;

/// The storage class of a template: its own, or the one that its first claim was given by default, or
/// would be given now.
pub(super) async fn class_of(
    client: &Client,
    set: &StatefulSet,
    name: &str,
) -> Result<Option<StorageClass>> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class = match template(set, name).and_then(class_text) {
        Some(class) => Some(class.to_owned()),
        None => class_of_first_claim(client, set, name).await?,
    };
    let Some(class) = class else {
        let all = classes.list(&ListParams::default()).await;
        return Ok(by_default(all.context("list the storage classes")?.items));
    };
    if !is_object_name(&class) {
        return Ok(None);
    }
    let class = classes.get_opt(&class).await;
    class.context("read the storage class")
}

/// Also of a set with no pods, whose claims may be there still.
async fn class_of_first_claim(
    client: &Client,
    set: &StatefulSet,
    template: &str,
) -> Result<Option<String>> {
    let first = claim_name(set, template, ordinals(set).start);
    let Some(claims) = claims_near(client, set).filter(|_| is_object_name(&first)) else {
        return Ok(None);
    };
    let claim = claims.get_opt(&first).await.context("read a claim")?;
    Ok(claim.as_ref().and_then(class_text).map(str::to_owned))
}

/// The class of claims that name none (`GetDefaultClass` in Kubernetes' `pkg/volume/util/storageclass.go`).
fn by_default(classes: Vec<StorageClass>) -> Option<StorageClass> {
    let is_default = |class: &StorageClass| {
        let annotations = class.metadata.annotations.as_ref();
        let text = |key: &&str| annotations?.get(*key).map(String::as_str);
        DEFAULT_CLASS.iter().any(|key| text(key) == Some("true"))
    };
    let defaults = classes.into_iter().filter(is_default);
    // The newest, and of several the one whose name comes first.
    defaults.max_by_key(|class| {
        let made = class.metadata.creation_timestamp.as_ref().map(|at| at.0);
        (made, Reverse(class.name_any()))
    })
}

/// Judges what is new in annotations.
///
/// # Errors
/// When what has to be known cannot be read.
pub async fn judge(client: &Client, update: &Update<StatefulSet>) -> Result<Verdict> {
    if let Some(why) = meaningless(update) {
        return Ok(Verdict::refused(why));
    }
    for (template, size) in changed(update) {
        let size = match size {
            Ok(size) => size,
            Err(why) => return Ok(Verdict::refused(format!("{why}; mend or remove it"))),
        };
        let class = class_of(client, &update.new, &template).await?;
        let claims = claims(client, &update.new, &template).await?;
        if let Some(why) = impossible(&update.new, &template, size, class.as_ref(), &claims) {
            return Ok(Verdict::refused(why));
        }
    }
    Ok(Verdict::allowed())
}

/// What annotations ask for that did not stand there before. What was there is not judged again:
/// whatever else is changed of a set must not be hindered by it.
fn changed(update: &Update<StatefulSet>) -> Vec<(String, Result<Bytes, String>)> {
    let before = wanted(&update.old);
    let mut all = wanted(&update.new);
    all.retain(|wish| !before.contains(wish));
    all
}

/// Why what the annotation newly says of pods means nothing.
fn meaningless(update: &Update<StatefulSet>) -> Option<String> {
    let why = restarts(&update.new).err()?;
    (restarts(&update.old).err().as_ref() != Some(&why)).then_some(why)
}

/// The claims of the set's namespace, if that can be one.
fn claims_near(client: &Client, set: &StatefulSet) -> Option<Api<PersistentVolumeClaim>> {
    let namespace = set.namespace().filter(|name| is_object_name(name))?;
    Some(Api::namespaced(client.clone(), &namespace))
}

/// The claims of a template that are there, as far as they carry labels and are not too many.
async fn claims(
    client: &Client,
    set: &StatefulSet,
    template: &str,
) -> Result<Vec<PersistentVolumeClaim>> {
    let Some(claims) = claims_near(client, set) else {
        return Ok(Vec::new());
    };
    // Kubernetes labels them with what the set selects (`pkg/controller/statefulset`).
    let labels = set.spec.selector.match_labels.iter().flatten();
    let labels: Vec<_> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if labels.is_empty() {
        return Ok(Vec::new());
    }
    let listed = ListParams::default()
        .labels(&labels.join(","))
        .limit(MOST_CLAIMS);
    let mut found = claims.list(&listed).await.context("list claims")?.items;
    found.retain(|claim| is_claim_of(set, template, &claim.name_any()));
    Ok(found)
}

fn is_claim_of(set: &StatefulSet, template: &str, name: &str) -> bool {
    let ordinal = name.rsplit('-').next().and_then(|text| text.parse().ok());
    ordinal.is_some_and(|ordinal| {
        ordinals(set).contains(&ordinal) && claim_name(set, template, ordinal) == name
    })
}

/// Why claims of a template cannot have a size.
fn impossible(
    set: &StatefulSet,
    name: &str,
    asked: Bytes,
    class: Option<&StorageClass>,
    claims: &[PersistentVolumeClaim],
) -> Option<String> {
    let begun = template(set, name).and_then(size).map(|(_, size)| size);
    if let Some(begun) = begun.filter(|begun| asked < *begun) {
        return Some(format!(
            "claims of template {name:?} are made with {begun}, and volumes do not shrink to {asked}; ask for more, or remove the annotation"
        ));
    }
    for claim in claims {
        if let Some(has) = too_large(claim, asked) {
            return Some(format!(
                "claim {} has {has}, and volumes do not shrink to {asked}; ask for at least {has}, or remove the annotation",
                claim.name_any()
            ));
        }
    }
    let class = class?;
    if class.allow_volume_expansion != Some(true) {
        return Some(format!(
            "storage class {:?} of template {name:?} lets no claim grow; set its allowVolumeExpansion to true",
            class.name_any()
        ));
    }
    beyond(class, asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    const GIB: u64 = 1 << 30;

    /// A set whose claims are made with a GiB, with an annotation.
    fn set(grown: Option<&str>) -> StatefulSet {
        let annotations = grown.map(|size| json!({"grow.flexvol.dev/data": size}));
        let template = json!({
            "metadata": {"name": "data"},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        });
        let set: Value = json!({
            "metadata": {"name": "db", "annotations": annotations},
            "spec": {
                "serviceName": "db", "selector": {}, "template": {},
                "volumeClaimTemplates": [template],
            },
        });
        from_value(set).unwrap()
    }

    #[test]
    fn the_default_class_is_the_one_that_kubernetes_would_give() {
        let class = |name: &str, default: &str, at: &str| -> StorageClass {
            let annotations = json!({DEFAULT_CLASS[0]: default});
            from_value(json!({
                "metadata": {
                    "name": name, "annotations": annotations,
                    "creationTimestamp": format!("2026-11-22T12:00:0{at}Z"),
                },
                "provisioner": "example.com/disk",
            }))
            .unwrap()
        };
        let name = |classes: &[StorageClass]| by_default(classes.to_vec()).map(|it| it.name_any());
        assert_eq!(name(&[]), None);
        let (newest, other) = (class("x", "false", "9"), class("o", "yes", "9"));
        assert_eq!(name(&[newest.clone(), other]), None);
        let (old, b, a) = (
            class("old", "true", "1"),
            class("b", "true", "2"),
            class("a", "true", "2"),
        );
        assert_eq!(name(&[old.clone(), newest]), Some("old".to_owned()));
        assert_eq!(name(&[old, b, a]), Some("a".to_owned()));
        let mut beta = class("beta", "false", "3");
        let annotations = json!({DEFAULT_CLASS[1]: "true"});
        beta.metadata.annotations = from_value(annotations).unwrap();
        assert_eq!(name(&[beta]), Some("beta".to_owned()));
    }

    #[test]
    fn only_what_an_annotation_says_anew_is_judged() {
        let update = |new: Option<&str>| Update {
            uid: String::new(),
            new: set(new),
            old: set(Some("3Gi")),
        };
        assert_eq!(changed(&update(Some("3Gi"))), []);
        let change = ("data".to_owned(), Ok(Bytes(4 * GIB)));
        assert_eq!(changed(&update(Some("4Gi"))), [change]);
        assert_eq!(changed(&update(None)), []);
    }

    #[test]
    fn only_a_new_mistake_about_stopping_pods_is_refused() {
        let update = |old: Option<&str>, new: Option<&str>| {
            let [old, new] = [old, new].map(|text| {
                let mut set = set(Some("3Gi"));
                let annotations = set.metadata.annotations.as_mut().unwrap();
                let key = "grow.flexvol.dev/offline".to_owned();
                annotations.extend(text.map(|text| (key, text.to_owned())));
                set
            });
            let uid = String::new();
            meaningless(&Update { uid, new, old })
        };
        assert_eq!(update(None, Some("restart")), None);
        assert_eq!(update(Some("restart"), None), None);
        let why = update(Some("restart"), Some("always")).unwrap();
        assert!(why.contains("\"always\"") && why.contains("write \"restart\""));
        assert_eq!(update(Some("always"), Some("always")), None);
    }

    #[test]
    fn claims_of_other_templates_sets_and_ordinals_are_not_looked_at() {
        let mut set = set(None);
        set.spec.replicas = Some(2);
        for own in ["data-db-0", "data-db-1"] {
            assert!(is_claim_of(&set, "data", own), "{own}");
        }
        for others in [
            "data-db-2",
            "log-db-0",
            "data-db-x-0",
            "data-db-01",
            "data-db",
            "",
        ] {
            assert!(!is_claim_of(&set, "data", others), "{others}");
        }
    }

    #[test]
    fn what_no_claim_can_have_is_refused_with_what_to_do() {
        let set = set(None);
        let class = |grows: bool| -> StorageClass {
            from_value(json!({
                "metadata": {"name": "disk", "annotations": {"flexvol.dev/largest": "5Gi"}},
                "provisioner": "example.com/disk",
                "allowVolumeExpansion": grows,
            }))
            .unwrap()
        };
        let claim: PersistentVolumeClaim = from_value(json!({
            "metadata": {"name": "data-db-1"},
            "spec": {"resources": {"requests": {"storage": "3Gi"}}},
            "status": {"capacity": {"storage": "3Gi"}},
        }))
        .unwrap();
        let rounded_up: PersistentVolumeClaim = from_value(json!({
            "metadata": {"name": "data-db-2"},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
            "status": {"capacity": {"storage": "3Gi"}},
        }))
        .unwrap();
        let why = |asked: u64, grows: bool, claims: &[PersistentVolumeClaim]| {
            impossible(&set, "data", Bytes(asked), Some(&class(grows)), claims)
        };
        let says = |why: Option<String>, text: &str| {
            let why = why.unwrap();
            assert!(why.contains(text), "{why}");
        };
        assert_eq!(why(4 * GIB, true, std::slice::from_ref(&claim)), None);
        assert_eq!(why(2 * GIB, true, &[rounded_up]), None);
        says(
            why(2 * GIB, true, std::slice::from_ref(&claim)),
            "claim data-db-1 has 3Gi",
        );
        says(why(GIB / 2, true, &[]), "are made with 1Gi");
        says(why(4 * GIB, false, &[]), "allowVolumeExpansion");
        says(why(6 * GIB, true, &[]), "allows at most 5Gi");
    }
}
