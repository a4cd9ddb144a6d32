//! Stateful sets, and the sizes that their annotations request for their claims.

use super::claim::{asked, capacity};
use crate::api::well_known::{GROW, OFFLINE};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};
use kube::ResourceExt;
use std::{collections::HashSet, ops::Range};

/// Number of ordinals beyond the created pods whose claims are considered too.
const AHEAD: i64 = 100;

/// The names of the set's claim templates.
pub(crate) fn templates(set: &StatefulSet) -> HashSet<&str> {
    let templates = set.spec.volume_claim_templates.iter().flatten();
    let names = templates.filter_map(|template| template.metadata.name.as_deref());
    names.collect()
}

/// Returns the set's claim template of this name.
pub(crate) fn template<'a>(set: &'a StatefulSet, name: &str) -> Option<&'a PersistentVolumeClaim> {
    let mut all = set.spec.volume_claim_templates.iter().flatten();
    all.find(|template| template.metadata.name.as_deref() == Some(name))
}

/// The size of a template, as written and in bytes, or none if it is invalid.
pub(crate) fn size(template: &PersistentVolumeClaim) -> Option<(String, Bytes)> {
    let requests = template.spec.as_ref()?.resources.as_ref()?;
    let text = &requests.requests.as_ref()?.get("storage")?.0;
    Some((text.clone(), text.parse().ok()?))
}

/// Whether pods of the set may be evicted, one at a time, so that their volumes grow, or what is wrong with the
/// annotation. If a claim template has the annotation's very name, the annotation is that template's size.
pub(crate) fn restarts(set: &StatefulSet) -> Result<bool, String> {
    let key = format!("{GROW}{OFFLINE}");
    let annotations = set.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(&key));
    match text.map(String::as_str) {
        _ if templates(set).contains(OFFLINE) => Ok(false),
        None => Ok(false),
        Some("restart") => Ok(true),
        Some(text) => Err(format!(
            "annotation {key}: {text:?} says nothing; write \"restart\", by which pods are stopped one at a time, or remove it"
        )),
    }
}

/// The sizes that the set's annotations request: each template with its size, or with what is wrong.
pub(crate) fn wanted(set: &StatefulSet) -> Vec<(String, Result<Bytes, String>)> {
    let known = templates(set);
    let annotations = set.metadata.annotations.iter().flatten();
    annotations
        .filter_map(|(key, text)| {
            let name = key.strip_prefix(GROW)?;
            if name == OFFLINE && !known.contains(name) {
                return None;
            }
            let size = if known.contains(name) {
                text.parse::<Bytes>()
                    .map_err(|error| format!("annotation {key}: {error}"))
            } else {
                Err(format!(
                    "annotation {key}: the set has no claim template {name:?}"
                ))
            };
            Some((name.to_owned(), size))
        })
        .collect()
}

/// The ordinals of the set's desired pods. There may be too many to iterate.
pub(crate) fn wanted_ordinals(set: &StatefulSet) -> Range<i64> {
    let ordinals = set.spec.ordinals.as_ref();
    let first = ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
    let (first, replicas) = (i64::from(first), i64::from(set.spec.replicas.unwrap_or(1)));
    first..first.saturating_add(replicas)
}

/// The ordinals of the pods that may already have claims.
pub(crate) fn ordinals(set: &StatefulSet) -> Range<i64> {
    let made = set.status.as_ref().map_or(0, |status| status.replicas);
    let Range { start, end } = wanted_ordinals(set);
    start..end.min(start.saturating_add(i64::from(made).saturating_add(AHEAD)))
}

/// The name of the claim of a template and an ordinal (`pkg/controller/statefulset/stateful_set_utils.go`).
pub(crate) fn claim_name(set: &StatefulSet, template: &str, ordinal: i64) -> String {
    format!("{template}-{}-{ordinal}", set.name_any())
}

/// Returns the claim's capacity if the claim would have to shrink to the wanted size. Drivers may round up, so the
/// request has to exceed the wanted size too.
pub(crate) fn too_large(claim: &PersistentVolumeClaim, wanted: Bytes) -> Option<Bytes> {
    let has = capacity(claim);
    (has > wanted && asked(claim) > wanted).then_some(has)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    /// A set of three pods, whose one template's claims shall have 2 GiB.
    pub fn set(more: Value) -> StatefulSet {
        let mut set = json!({
            "metadata": {"name": "db", "namespace": "ns", "annotations": {"grow.flexvol.dev/data": "2Gi"}},
            "spec": {
                "replicas": 3, "serviceName": "db", "selector": {}, "template": {},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
            },
        });
        for (key, value) in more.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        from_value(set).unwrap()
    }

    #[test]
    fn sizes_and_templates_that_are_none_are_told() {
        assert_eq!(
            wanted(&set(json!({}))),
            [("data".to_owned(), Ok(Bytes(2 << 30)))]
        );
        let other = set(json!({"volumeClaimTemplates": []}));
        assert!(
            wanted(&other)[0]
                .1
                .as_ref()
                .unwrap_err()
                .contains("no claim template")
        );
        let mut wrong = set(json!({}));
        let annotations = wrong.metadata.annotations.as_mut().unwrap();
        annotations.insert("grow.flexvol.dev/data".to_owned(), "big".to_owned());
        assert!(wanted(&wrong)[0].1.as_ref().unwrap_err().contains("big"));
    }

    #[test]
    fn pods_are_stopped_only_where_an_annotation_says_exactly_that() {
        let said = |text: Option<&str>, more: Value| {
            let mut set = set(more);
            let annotations = set.metadata.annotations.as_mut().unwrap();
            if let Some(text) = text {
                annotations.insert("grow.flexvol.dev/offline".to_owned(), text.to_owned());
            }
            (restarts(&set), wanted(&set).len())
        };
        assert_eq!(said(None, json!({})), (Ok(false), 1));
        assert_eq!(said(Some("restart"), json!({})), (Ok(true), 1));
        for other in ["", "Restart", "true", "delete", "2Gi"] {
            let (why, sizes) = said(Some(other), json!({}));
            assert!(why.unwrap_err().contains("write \"restart\""), "{other}");
            assert_eq!(sizes, 1, "it is no template's");
        }
        let template = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        let own = json!({"volumeClaimTemplates": [template("data"), template("offline")]});
        assert_eq!(said(Some("2Gi"), own), (Ok(false), 2), "a template's size");
    }
}
