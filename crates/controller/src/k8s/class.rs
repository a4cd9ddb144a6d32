//! Storage classes.

use super::claim;
use crate::api::well_known::{LARGEST, NAMESPACES};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use std::collections::BTreeMap;

/// Returns a message if a size exceeds the class's limit.
pub(crate) fn limit_violation(class: &StorageClass, asked: Bytes) -> Option<String> {
    let text = class.metadata.annotations.as_ref()?.get(LARGEST)?;
    let name = class.metadata.name.as_deref().unwrap_or_default();
    match text.parse::<Bytes>() {
        Ok(largest) if asked <= largest => None,
        Ok(largest) => Some(format!(
            "storage class {name:?} allows at most {largest}, and {asked} is asked for; ask for less"
        )),
        Err(error) => Some(format!(
            "annotation {LARGEST} of storage class {name:?} is no size, so nothing is made and nothing grows: {error}; mend it"
        )),
    }
}

/// Returns a message if the class is for claims of other namespaces.
pub(crate) fn namespace_violation(class: &StorageClass, namespace: &str) -> Option<String> {
    let text = class.metadata.annotations.as_ref()?.get(NAMESPACES)?;
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let is_allowed = text.split(',').any(|allowed| allowed.trim() == namespace);
    (!is_allowed).then(|| {
        format!(
            "storage class {name:?} is for claims of other namespaces, by its annotation {NAMESPACES}; make a claim of another class"
        )
    })
}

/// The largest size that a class allows, if it has a limit.
pub(crate) fn size_limit(class: &StorageClass) -> Option<Bytes> {
    let text = class.metadata.annotations.as_ref()?.get(LARGEST)?;
    text.parse().ok()
}

/// Whether a class allows volumes on nodes with these labels: all labels of at least one of its terms.
pub(crate) fn allows_node(class: &StorageClass, labels: Option<&BTreeMap<String, String>>) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            term.match_label_expressions.iter().flatten().all(|asked| {
                let has = labels.and_then(|labels| labels.get(&asked.key));
                has.is_some_and(|value| asked.values.contains(value))
            })
        })
}

/// Returns why the class forbids growth, if the claim requests it. Otherwise the class may not have been read.
pub(crate) fn forbidden_expansion(
    class: Option<&StorageClass>,
    claim: &PersistentVolumeClaim,
) -> Option<String> {
    let name = claim::class_name(claim).unwrap_or_default();
    let why = match class {
        None => "is not there, so nobody can know whether the volume may grow; make it",
        Some(class) if class.allow_volume_expansion != Some(true) => {
            "does not allow growth any more; set its allowVolumeExpansion to true"
        }
        Some(_) => return None,
    };
    claim::is_expanding(claim).then(|| format!("storage class {name:?} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    #[test]
    fn who_asks_for_growth_that_the_class_does_not_allow_any_more_is_told() {
        let forbidden = |asked: &str, allows: Option<bool>| {
            let claim = from_value(json!({
                "spec": {
                    "storageClassName": "disk", "volumeName": "pvc-1",
                    "resources": {"requests": {"storage": asked}},
                },
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            }));
            let class = allows.map(|allows| StorageClass {
                allow_volume_expansion: Some(allows),
                ..StorageClass::default()
            });
            forbidden_expansion(class.as_ref(), &claim.unwrap()).unwrap_or_default()
        };
        assert!(forbidden("2Gi", None).contains("\"disk\" is not there"));
        assert!(forbidden("2Gi", Some(false)).contains("does not allow growth"));
        assert_eq!(forbidden("2Gi", Some(true)), "");
        for class in [None, Some(false)] {
            assert_eq!(forbidden("1Gi", class), "", "nothing is asked");
        }
    }

    #[test]
    fn a_class_for_some_namespaces_is_for_no_other_one() {
        let is_for = |namespaces: Option<&str>, namespace: &str| {
            let annotations = namespaces.map(|names| json!({NAMESPACES: names}));
            let class = json!({"provisioner": "a/b", "metadata": {"annotations": annotations}});
            namespace_violation(&from_value(class).unwrap(), namespace).is_none()
        };
        assert!(is_for(None, "a"));
        assert!(is_for(Some("a"), "a"));
        assert!(is_for(Some("b, a"), "a"));
        assert!(!is_for(Some("b, ab"), "a"));
        assert!(!is_for(Some(""), "a"));
    }

    #[test]
    fn a_class_with_topologies_has_volumes_on_their_nodes_alone() {
        let class = |terms: Value| -> StorageClass {
            from_value(json!({"provisioner": "a/b", "allowedTopologies": terms})).unwrap()
        };
        let zone =
            |zones: &[&str]| json!({"matchLabelExpressions": [{"key": "zone", "values": zones}]});
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let allows = |terms: Value| allows_node(&class(terms), Some(&labels));
        assert!(allows(json!([])));
        assert!(allows(json!([zone(&["b"]), zone(&["c", "a"])])));
        assert!(!allows(json!([zone(&["b"])])));
        assert!(!allows_node(&class(json!([zone(&["a"])])), None));
    }
}
