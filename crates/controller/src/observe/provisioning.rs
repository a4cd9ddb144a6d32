//! What a claim wants of us, or why that is impossible.

use crate::{
    api::well_known::{CLASS, volume_name},
    claims::Wish,
    drivers::ServedDrivers,
    k8s::{
        claim::{class_name, is_bound, provisioner, request, selected_node},
        class::{limit_violation, namespace_violation},
        meta::uid,
    },
};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec},
    storage::v1::StorageClass,
};

/// Returns what a claim wants, if one of our drivers is its provisioner.
#[must_use]
pub fn wish(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    ours: &ServedDrivers,
) -> Wish {
    let Some(spec) = &claim.spec else {
        return Wish::Nothing;
    };
    // The claim's author may write the name of its future volume, which binds nothing.
    let own = volume_name(uid(&claim.metadata));
    let named = spec.volume_name.as_deref().unwrap_or_default();
    let names_another = !named.is_empty() && named != own;
    let has_volume = names_another || is_bound(claim);
    if has_volume || claim.metadata.deletion_timestamp.is_some() {
        return Wish::Nothing;
    }
    let is_ours = |driver: &&str| ours.driver_of(driver).is_some();
    let Some(driver) = provisioner(claim).filter(is_ours) else {
        return Wish::OtherProvisioner;
    };
    let Some(class) = class else {
        return Wish::Refused(match class_name(claim) {
            Some(name) => {
                format!("storage class {name:?} is not there; make it, or delete the claim")
            }
            None => format!(
                "the claim names no storage class that can be; set spec.storageClassName, without annotation {CLASS}, and make it anew"
            ),
        });
    };
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(why) = namespace_violation(class, namespace) {
        return Wish::Refused(why);
    }
    if let Err(why) = possible(spec, class, driver, ours) {
        return Wish::Refused(why);
    }
    if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
        return Wish::Storage { node: None };
    }
    match selected_node(claim) {
        None => Wish::StorageLater,
        Some(node) => Wish::Storage {
            node: Some(node.to_owned()),
        },
    }
}

fn possible(
    spec: &PersistentVolumeClaimSpec,
    class: &StorageClass,
    provisioner: &str,
    ours: &ServedDrivers,
) -> Result<(), String> {
    let size = request(spec)?;
    if let Some(why) = limit_violation(class, size) {
        return Err(why);
    }
    let name = class.metadata.name.as_deref().unwrap_or_default();
    if ours.driver_of(&class.provisioner) != ours.driver_of(provisioner) {
        return Err(format!(
            "storage class {name:?} is of provisioner {}, and the claim of {provisioner}; make the claim anew",
            class.provisioner
        ));
    }
    if spec.selector.is_some() {
        return Err(
            "the claim has a selector, which only volumes that are there can match; remove it"
                .to_owned(),
        );
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(
            "the claim wants a block device, and FlexVolume has file systems only; set volumeMode to Filesystem"
                .to_owned(),
        );
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Err(
            "the claim has a data source, and volumes are made empty; remove it".to_owned(),
        );
    }
    // Kubernetes binds only volumes of the claim's attributes class (`FindMatchingVolume` in
    // `component-helpers/storage/volume/pv_helpers.go`), and only volumes of CSI drivers have one.
    if let Some(attributes) = spec.volume_attributes_class_name.as_deref()
        && !attributes.is_empty()
    {
        return Err(format!(
            "the claim wants volume attributes class {:?}, which FlexVolume has none of; make it without volumeAttributesClassName",
            attributes.chars().take(253).collect::<String>()
        ));
    }
    for mode in spec.access_modes.iter().flatten() {
        if mode != "ReadWriteOnce" {
            return Err(format!(
                "the claim wants {mode}, and a volume is on one node; ask for ReadWriteOnce"
            ));
        }
    }
    if class
        .mount_options
        .as_ref()
        .is_some_and(|options| !options.is_empty())
    {
        return Err(format!(
            "storage class {name:?} has mountOptions, which Kubernetes gives no FlexVolume driver; remove them"
        ));
    }
    let immediate = class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer");
    if immediate
        && class
            .allowed_topologies
            .as_ref()
            .is_some_and(|terms| !terms.is_empty())
    {
        return Err(format!(
            "storage class {name:?} has allowedTopologies; only the scheduler heeds them: set volumeBindingMode to WaitForFirstConsumer"
        ));
    }
    for key in class
        .parameters
        .iter()
        .flat_map(|parameters| parameters.keys())
    {
        if key.contains("kubernetes.io/") || key.contains("k8s.io/") || key.starts_with("request") {
            return Err(format!(
                "storage class {name:?} has parameter {key:?}, which is not the driver's to read; remove it"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::well_known::{LARGEST, NAMESPACES, PROVISIONER, SELECTED_NODE},
        drivers::Driver,
    };
    use serde_json::{Value, from_value, json};

    fn of(claim: Value, class: Value) -> Wish {
        let named: Driver = "example.com/disk=disk.example.com".parse().unwrap();
        let ours = [named].into_iter().collect();
        let class: Option<StorageClass> = from_value(class).unwrap();
        wish(&from_value(claim).unwrap(), class.as_ref(), &ours)
    }

    fn claim(spec: Value) -> Value {
        let mut claim = json!({
            "metadata": {"name": "data", "annotations": {PROVISIONER[0]: "example.com/disk"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "disk",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        for (key, value) in spec.as_object().unwrap() {
            claim["spec"][key] = value.clone();
        }
        claim
    }

    fn class(more: Value) -> Value {
        let mut class = json!({"metadata": {"name": "disk"}, "provisioner": "example.com/disk"});
        for (key, value) in more.as_object().unwrap() {
            class[key] = value.clone();
        }
        class
    }

    #[test]
    fn a_claim_of_ours_wants_storage_where_the_scheduler_says_or_anywhere() {
        let anywhere = of(claim(json!({})), class(json!({})));
        assert_eq!(anywhere, Wish::Storage { node: None });
        let later = class(json!({"volumeBindingMode": "WaitForFirstConsumer"}));
        assert_eq!(of(claim(json!({})), later.clone()), Wish::StorageLater);
        let mut chosen = claim(json!({}));
        chosen["metadata"]["annotations"][SELECTED_NODE] = "node-1".into();
        let node = Some("node-1".to_owned());
        assert_eq!(of(chosen, later), Wish::Storage { node });
    }

    #[test]
    fn the_class_of_a_claim_is_that_which_kubernetes_counts_it_for() {
        let class = |annotated: Option<&str>, said: Option<&str>| {
            let annotations = annotated.map(|name| json!({CLASS: name}));
            let claim: PersistentVolumeClaim = from_value(json!({
                "metadata": {"annotations": annotations}, "spec": {"storageClassName": said},
            }))
            .unwrap();
            class_name(&claim).map(str::to_owned)
        };
        assert_eq!(class(None, Some("fast")).as_deref(), Some("fast"));
        assert_eq!(class(Some("slow"), Some("fast")).as_deref(), Some("slow"));
        assert_eq!(class(Some("slow"), None).as_deref(), Some("slow"));
        assert_eq!(class(None, None), None);
        // The name would become a part of a path.
        for no_name in ["", "../nodes/a", "a/b", "A"] {
            assert_eq!(class(Some(no_name), Some("fast")), None, "{no_name}");
            assert_eq!(class(None, Some(no_name)), None, "{no_name}");
        }
    }

    #[test]
    fn a_claim_without_volume_attributes_is_as_one_that_names_none() {
        let none = of(
            claim(json!({"volumeAttributesClassName": ""})),
            class(json!({})),
        );
        assert_eq!(none, Wish::Storage { node: None });
    }

    #[test]
    fn both_names_of_a_provisioner_mean_one_driver() {
        for (of_claim, of_class) in [
            ("disk.example.com", "disk.example.com"),
            ("disk.example.com", "example.com/disk"),
            ("example.com/disk", "disk.example.com"),
        ] {
            let mut named = claim(json!({}));
            named["metadata"]["annotations"][PROVISIONER[0]] = of_claim.into();
            let class = class(json!({"provisioner": of_class}));
            assert_eq!(of(named, class), Wish::Storage { node: None }, "{of_claim}");
        }
    }

    #[test]
    fn claims_of_others_and_claims_that_are_bound_or_go_want_nothing() {
        let mut others = claim(json!({}));
        others["metadata"]["annotations"][PROVISIONER[0]] = "example.com/other".into();
        let mut nobodys = claim(json!({}));
        nobodys["metadata"]["annotations"] = json!({});
        let mut goes = claim(json!({}));
        goes["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let mut bound = named_after_itself();
        bound["status"] = json!({"phase": "Bound"});
        for (claim, wanted) in [
            (others, Wish::OtherProvisioner),
            (nobodys, Wish::OtherProvisioner),
            (goes, Wish::Nothing),
            (claim(json!({"volumeName": "pv"})), Wish::Nothing),
            (bound, Wish::Nothing),
        ] {
            assert_eq!(of(claim.clone(), class(json!({}))), wanted, "{claim}");
        }
    }

    /// A claim whose author wrote the name of its future volume.
    fn named_after_itself() -> Value {
        let mut named = claim(json!({"volumeName": "pvc-1"}));
        named["metadata"]["uid"] = "1".into();
        named
    }

    #[test]
    fn a_claim_that_says_the_name_of_its_own_volume_is_not_bound_by_that() {
        for phase in [
            json!({}),
            json!({"phase": "Pending"}),
            json!({"phase": "Lost"}),
        ] {
            let mut named = named_after_itself();
            named["status"] = phase;
            assert_eq!(of(named, class(json!({}))), Wish::Storage { node: None });
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_what_to_do() {
        let good = || claim(json!({}));
        let cases = [
            (good(), Value::Null, "make it"),
            (
                good(),
                class(json!({"provisioner": "example.com/other"})),
                "make the claim anew",
            ),
            (
                claim(json!({"selector": {"matchLabels": {"a": "b"}}})),
                class(json!({})),
                "selector",
            ),
            (
                claim(json!({"volumeMode": "Block"})),
                class(json!({})),
                "Filesystem",
            ),
            (
                claim(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}})),
                class(json!({})),
                "data source",
            ),
            (
                claim(json!({"volumeAttributesClassName": "gold"})),
                class(json!({})),
                "volumeAttributesClassName",
            ),
            (
                claim(json!({"storageClassName": "../disk"})),
                Value::Null,
                "spec.storageClassName",
            ),
            (
                claim(json!({"accessModes": ["ReadWriteMany"]})),
                class(json!({})),
                "ReadWriteOnce",
            ),
            (
                claim(json!({"resources": {}})),
                class(json!({})),
                "requests.storage",
            ),
            (
                claim(json!({"resources": {"requests": {"storage": "0"}}})),
                class(json!({})),
                "cannot be had",
            ),
            (
                claim(json!({"resources": {"requests": {"storage": "9Ei"}}})),
                class(json!({})),
                "cannot be had",
            ),
            (
                good(),
                class(json!({"metadata": {"name": "disk", "annotations": {LARGEST: "1023Mi"}}})),
                "allows at most 1023Mi, and 1Gi is asked for",
            ),
            (
                good(),
                class(json!({"metadata": {"name": "disk", "annotations": {NAMESPACES: "a,b"}}})),
                "for claims of other namespaces",
            ),
            (
                good(),
                class(json!({"mountOptions": ["noatime"]})),
                "mountOptions",
            ),
            (
                good(),
                class(json!({"allowedTopologies": [{"matchLabelExpressions": []}]})),
                "WaitForFirstConsumer",
            ),
            (
                good(),
                class(json!({"parameters": {"kubernetes.io/pvOrVolumeName": "x"}})),
                "remove it",
            ),
            (
                good(),
                class(json!({"parameters": {"requestBytes": "1"}})),
                "remove it",
            ),
        ];
        for (claim, class, remedy) in cases {
            match of(claim.clone(), class.clone()) {
                Wish::Refused(why) => assert!(why.contains(remedy), "{why}"),
                other => panic!("{other:?} for {claim} of {class}"),
            }
        }
    }
}
