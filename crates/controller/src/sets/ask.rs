//! What a set's annotations ask of its claims, and what a claim needs to have it.

use crate::{
    names::{GROW, OFFLINE},
    observe::{capacity, is_bound},
    ours::Ours,
    wish::{provisioner, request},
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};
use kube::ResourceExt;
use std::{collections::HashSet, ops::Range};

/// What one claim of a set needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: it is there, and large enough or larger.
    Nothing,
    /// Time: it cannot be asked yet, being unbound or deleted, or refused.
    Time,
    /// Time: it was asked, and has not grown.
    Growth,
    /// To be asked for this size.
    Ask(Bytes),
    /// What it has cannot be taken away.
    Smaller(Bytes),
}

/// What a claim has, where it would have to shrink to have only what is wanted. Drivers may make more
/// than was asked for: what was asked for must be more too.
pub(crate) fn too_large(claim: &PersistentVolumeClaim, wanted: Bytes) -> Option<Bytes> {
    let has = capacity(claim);
    (has > wanted && asked(claim) > wanted).then_some(has)
}

fn asked(claim: &PersistentVolumeClaim) -> Bytes {
    let size = claim.spec.as_ref().map(request);
    size.and_then(Result::ok).unwrap_or_default()
}

pub(super) fn need(claim: &PersistentVolumeClaim, wanted: Bytes) -> Need {
    let asked = asked(claim);
    if claim.metadata.deletion_timestamp.is_some() || !is_bound(claim) {
        Need::Time
    } else if let Some(has) = too_large(claim, wanted) {
        Need::Smaller(has)
    } else if capacity(claim) >= wanted {
        Need::Nothing
    } else if asked < wanted {
        Need::Ask(wanted)
    } else {
        Need::Growth
    }
}

/// The provisioner of a claim that is not ours to grow.
pub(super) fn stranger<'a>(claim: &'a PersistentVolumeClaim, ours: &Ours) -> Option<&'a str> {
    provisioner(claim).filter(|name| ours.driver_of(name).is_none())
}

/// The names of a set's claim templates.
pub(crate) fn templates(set: &StatefulSet) -> HashSet<&str> {
    let templates = set.spec.volume_claim_templates.iter().flatten();
    let names = templates.filter_map(|template| template.metadata.name.as_deref());
    names.collect()
}

/// A claim template of the set.
pub(crate) fn template<'a>(set: &'a StatefulSet, name: &str) -> Option<&'a PersistentVolumeClaim> {
    let mut all = set.spec.volume_claim_templates.iter().flatten();
    all.find(|template| template.metadata.name.as_deref() == Some(name))
}

/// The size of a template, as it is written, and what that is; none if it is no size.
pub(crate) fn size(template: &PersistentVolumeClaim) -> Option<(String, Bytes)> {
    let requests = template.spec.as_ref()?.resources.as_ref()?;
    let text = &requests.requests.as_ref()?.get("storage")?.0;
    Some((text.clone(), text.parse().ok()?))
}

/// Whether pods of the set may be stopped, one at a time, so that their volumes grow; or what is wrong
/// with the annotation. Where a claim template has that very name, the annotation is its size.
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

/// The sizes that a set's annotations ask for: template, and size or what is wrong with it.
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

/// A set has claims for the pods that it has made, and maybe for this many more.
const AHEAD: i32 = 100;

/// The ordinals of the pods that may have claims: a set may ask for more than can be counted.
pub(crate) fn ordinals(set: &StatefulSet) -> Range<i32> {
    let first = set
        .spec
        .ordinals
        .as_ref()
        .and_then(|ordinals| ordinals.start);
    let made = set.status.as_ref().map_or(0, |status| status.replicas);
    let count = set.spec.replicas.unwrap_or(1);
    let (first, count) = (first.unwrap_or(0), count.min(made.saturating_add(AHEAD)));
    first..first.saturating_add(count)
}

/// The name of a template's claim (`pkg/controller/statefulset/stateful_set_utils.go`).
pub(crate) fn claim_name(set: &StatefulSet, template: &str, ordinal: i32) -> String {
    format!("{template}-{}-{ordinal}", set.name_any())
}

/// A claim that a set's annotations are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub claim: String,
    /// Of the pod that has it.
    pub ordinal: i32,
    /// What it shall have.
    pub size: Bytes,
}

/// A template's claims, the last first: that is the order in which sets update pods.
fn claims_of<'a>(
    set: &'a StatefulSet,
    template: &str,
    size: Bytes,
) -> impl Iterator<Item = Asked> + use<'a> {
    let template = template.to_owned();
    let ordinals = ordinals(set).rev();
    ordinals.map(move |ordinal| Asked {
        claim: claim_name(set, &template, ordinal),
        ordinal,
        size,
    })
}

/// All claims that a set's annotations are about, with the sizes that they shall have.
pub(super) fn asked_for(set: &StatefulSet) -> impl Iterator<Item = Asked> {
    let sizes = wanted(set).into_iter();
    let sizes = sizes.filter_map(|(template, size)| Some((template, size.ok()?)));
    sizes.flat_map(|(template, size)| claims_of(set, &template, size))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    /// Of three pods, whose claims of the one template shall have 2 GiB.
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
    fn claims_are_named_by_ordinal_and_taken_from_the_last() {
        let names = |more: Value| {
            let set = set(more);
            let claims = claims_of(&set, "data", Bytes(1));
            claims.map(|asked| asked.claim).collect::<Vec<_>>()
        };
        assert_eq!(names(json!({})), ["data-db-2", "data-db-1", "data-db-0"]);
        let later = json!({"ordinals": {"start": 5}, "replicas": 1});
        assert_eq!(names(later), ["data-db-5"]);
        assert!(names(json!({"replicas": 0})).is_empty());
        let mut endless = set(json!({"replicas": i32::MAX}));
        assert_eq!(claims_of(&endless, "data", Bytes(1)).count(), 100);
        endless.status = Some(from_value(json!({"replicas": 500})).unwrap());
        assert_eq!(claims_of(&endless, "data", Bytes(1)).count(), 600);
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

    #[test]
    fn claims_of_other_provisioners_are_strangers_and_those_of_volumes_by_hand_are_not() {
        let claim = |annotations: Value| -> PersistentVolumeClaim {
            from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let by = |driver: &str| claim(json!({"volume.kubernetes.io/storage-provisioner": driver}));
        let ours = Ours::from(["a/b"]);
        assert_eq!(stranger(&by("a/b"), &ours), None);
        assert_eq!(stranger(&by("csi.c"), &ours), Some("csi.c"));
        assert_eq!(stranger(&claim(json!({})), &ours), None);
    }

    #[test]
    fn a_claim_is_asked_once_it_is_bound_and_never_for_less() {
        let claim = |phase: &str, asked: &str, has: &str| -> PersistentVolumeClaim {
            from_value(json!({
                "metadata": {"name": "data-db-0"},
                "spec": {"resources": {"requests": {"storage": asked}}},
                "status": {"phase": phase, "capacity": {"storage": has}},
            }))
            .unwrap()
        };
        let size = Bytes(2 << 30);
        assert_eq!(need(&claim("Pending", "1Gi", "0"), size), Need::Time);
        assert_eq!(need(&claim("Bound", "1Gi", "1Gi"), size), Need::Ask(size));
        assert_eq!(need(&claim("Bound", "2Gi", "1Gi"), size), Need::Growth);
        assert_eq!(need(&claim("Bound", "3Gi", "1Gi"), size), Need::Growth);
        assert_eq!(need(&claim("Bound", "2Gi", "2Gi"), size), Need::Nothing);
        let rounded = need(&claim("Bound", "2Gi", "2052Mi"), size);
        assert_eq!(rounded, Need::Nothing, "the driver rounds up");
        let roomy = need(&claim("Bound", "1Gi", "3Gi"), size);
        assert_eq!(
            roomy,
            Need::Nothing,
            "the driver makes none that are smaller"
        );
        assert_eq!(
            need(&claim("Bound", "3Gi", "3Gi"), size),
            Need::Smaller(Bytes(3 << 30))
        );
    }
}
