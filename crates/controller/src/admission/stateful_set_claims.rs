//! Existing claims of a stateful set, and the storage class that they have, or will get.
//!
//! Objects that are too large are read in part, and no verdict is based on a part.

use super::review::Verdict;
use crate::{
    api::well_known::is_object_name,
    client::Read,
    k8s::{
        claim::class_text,
        stateful_set::{claim_name, template, wanted_ordinals},
    },
};
use anyhow::{Context, Result};
use k8s_openapi::api::{
    apps::v1::StatefulSet, core::v1::PersistentVolumeClaim, storage::v1::StorageClass,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::{cmp::Reverse, fmt};

/// Annotations of the default class (`pkg/volume/util/storageclass.go` in Kubernetes).
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Maximum number of a set's claims that are reviewed. The controller checks all of them.
const MOST_CLAIMS: u32 = 500;

/// Maximum number of truncated claims of a list that are read one by one.
const MOST_TRUNCATED: usize = 8;

type Claims = Api<Read<PersistentVolumeClaim>>;

/// The error for a claim that was read in part, so that its size and class are unknown.
#[derive(Debug)]
struct TruncatedClaim(String);

impl fmt::Display for TruncatedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(
            f,
            "claim {name} is too large to be understood, so nobody knows whether the set's claims can grow; take finalizers and conditions from it"
        )
    }
}

impl std::error::Error for TruncatedClaim {}

/// Turns [`TruncatedClaim`] into a rejection, because the verdict depends on the unread part.
pub(super) fn refused_if_truncated(judged: Result<Verdict>) -> Result<Verdict> {
    judged.or_else(|error| {
        let TruncatedClaim(name) = error.downcast()?;
        Ok(Verdict::refused(TruncatedClaim(name).to_string()))
    })
}

/// Returns the storage class of a template: its own, or the default class that its first claim got, or would get now.
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

/// Returns the class of the first claim, which may exist even if the set has no pods.
async fn class_of_first_claim(
    client: &Client,
    set: &StatefulSet,
    template: &str,
) -> Result<Option<String>> {
    let first = claim_name(set, template, wanted_ordinals(set).start);
    let Some(claims) = claims_near(client, set).filter(|_| is_object_name(&first)) else {
        return Ok(None);
    };
    let claim = whole_claim(&claims, &first).await?;
    Ok(claim.as_ref().and_then(class_text).map(str::to_owned))
}

/// Reads a whole claim.
///
/// # Errors
/// [`TruncatedClaim`], when it was read in part.
async fn whole_claim(claims: &Claims, name: &str) -> Result<Option<PersistentVolumeClaim>> {
    let claim = claims.get_opt(name).await.context("read a claim")?;
    if claim.as_ref().is_some_and(|claim| claim.is_truncated) {
        return Err(TruncatedClaim(name.to_owned()).into());
    }
    Ok(claim.map(|claim| claim.object))
}

/// Returns the default class (`GetDefaultClass` in Kubernetes' `pkg/volume/util/storageclass.go`).
fn by_default(classes: Vec<StorageClass>) -> Option<StorageClass> {
    let is_default = |class: &StorageClass| {
        let annotations = class.metadata.annotations.as_ref();
        let text = |key: &&str| annotations?.get(*key).map(String::as_str);
        DEFAULT_CLASS.iter().any(|key| text(key) == Some("true"))
    };
    let defaults = classes.into_iter().filter(is_default);
    // The newest, or among equally old ones the first by name.
    defaults.max_by_key(|class| {
        let made = class.metadata.creation_timestamp.as_ref().map(|at| at.0);
        (made, Reverse(class.name_any()))
    })
}

/// The claims of the set's namespace, if the namespace's name is valid.
fn claims_near(client: &Client, set: &StatefulSet) -> Option<Claims> {
    let namespace = set.namespace().filter(|name| is_object_name(name))?;
    Some(Api::namespaced(client.clone(), &namespace))
}

/// Returns the existing claims of these templates, as far as they have the set's labels, up to a limit.
pub(super) async fn claims(
    client: &Client,
    set: &StatefulSet,
    templates: &[&str],
) -> Result<Vec<PersistentVolumeClaim>> {
    let Some(claims) = claims_near(client, set) else {
        return Ok(Vec::new());
    };
    // Kubernetes labels them with the set's selector (`pkg/controller/statefulset`).
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
    let found = claims.list(&listed).await.context("list claims")?.items;
    let (mut all, mut truncated) = (Vec::new(), 0);
    for claim in found {
        let name = claim.name_any();
        if !templates
            .iter()
            .any(|template| is_claim_of(set, template, &name))
        {
            continue;
        }
        if !claim.is_truncated {
            all.push(claim.object);
            continue;
        }
        truncated += 1;
        if truncated > MOST_TRUNCATED {
            return Err(TruncatedClaim(name).into());
        }
        all.extend(whole_claim(&claims, &name).await?);
    }
    Ok(all)
}

pub(super) fn is_claim_of(set: &StatefulSet, template: &str, name: &str) -> bool {
    let ordinal = name.rsplit('-').next().and_then(|text| text.parse().ok());
    ordinal.is_some_and(|ordinal| {
        wanted_ordinals(set).contains(&ordinal) && claim_name(set, template, ordinal) == name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

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
    fn claims_of_other_templates_sets_and_ordinals_are_not_looked_at() {
        let set = json!({
            "metadata": {"name": "db"},
            "spec": {"replicas": 2, "serviceName": "db", "selector": {}, "template": {}},
        });
        let set: StatefulSet = from_value(set).unwrap();
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

    /// The set's controller has created no pod of these ordinals yet.
    #[test]
    fn claims_of_a_set_that_is_scaled_up_by_far_are_looked_at() {
        let set = json!({
            "metadata": {"name": "db"},
            "spec": {
                "replicas": 500, "ordinals": {"start": 5}, "serviceName": "db", "selector": {}, "template": {},
            },
        });
        let set: StatefulSet = from_value(set).unwrap();
        for (name, is_its) in [
            ("data-db-504", true),
            ("data-db-505", false),
            ("data-db-4", false),
        ] {
            assert_eq!(is_claim_of(&set, "data", name), is_its, "{name}");
        }
    }
}
