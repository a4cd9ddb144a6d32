//! Admission of sizes in stateful sets' annotations, written by users or by [`super::stateful_set_templates`], and of
//! the annotation that permits evictions.

use super::{
    review::{Update, Verdict},
    stateful_set_claims::{claims, class_of, is_claim_of, refused_if_truncated},
};
use crate::k8s::{
    class::limit_violation,
    stateful_set::{restarts, size, template, too_large, wanted},
};
use anyhow::Result;
use flexvol_sdk::Bytes;
use k8s_openapi::api::{
    apps::v1::StatefulSet, core::v1::PersistentVolumeClaim, storage::v1::StorageClass,
};
use kube::{Client, ResourceExt};

/// Reviews changed annotations.
///
/// # Errors
/// When an object cannot be read.
pub async fn judge(client: &Client, update: &Update<StatefulSet>) -> Result<Verdict> {
    update.is_usual()?;
    refused_if_truncated(judge_known(client, update).await)
}

async fn judge_known(client: &Client, update: &Update<StatefulSet>) -> Result<Verdict> {
    if let Some(why) = meaningless(update) {
        return Ok(Verdict::refused(why));
    }
    // Validated before any read. There is at most one size for each template.
    let mut sizes = Vec::new();
    for (template, size) in changed(update) {
        match size {
            Ok(size) => sizes.push((template, size)),
            Err(why) => return Ok(Verdict::refused(format!("{why}; mend or remove it"))),
        }
    }
    if sizes.is_empty() {
        return Ok(Verdict::allowed());
    }
    let set = &update.new;
    let templates: Vec<_> = sizes.iter().map(|(template, _)| &**template).collect();
    let all = claims(client, set, &templates).await?;
    for (template, size) in sizes {
        let class = class_of(client, set, &template).await?;
        let of_template =
            |claim: &&PersistentVolumeClaim| is_claim_of(set, &template, &claim.name_any());
        let claims: Vec<_> = all.iter().filter(of_template).collect();
        if let Some(why) = impossible(set, &template, size, class.as_ref(), &claims) {
            return Ok(Verdict::refused(why));
        }
    }
    Ok(Verdict::allowed())
}

/// Returns the requests that are new or changed. Existing ones are not reviewed again, so that they never block other
/// changes of the set.
fn changed(update: &Update<StatefulSet>) -> Vec<(String, Result<Bytes, String>)> {
    let before = wanted(&update.old);
    let mut all = wanted(&update.new);
    all.retain(|wish| !before.contains(wish));
    all
}

/// Returns why the changed annotation about evictions is invalid.
fn meaningless(update: &Update<StatefulSet>) -> Option<String> {
    let why = restarts(&update.new).err()?;
    (restarts(&update.old).err().as_ref() != Some(&why)).then_some(why)
}

/// Returns why a template's claims cannot have a size.
fn impossible(
    set: &StatefulSet,
    name: &str,
    asked: Bytes,
    class: Option<&StorageClass>,
    claims: &[&PersistentVolumeClaim],
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
    limit_violation(class, asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{Budget, Fence, connect},
        support::metrics::Metrics,
    };
    use flexvol_apiserver::{Key, Server};
    use kube::client::Body;
    use serde_json::{Value, from_value, json};
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tower::BoxError;

    const GIB: u64 = 1 << 30;

    /// A set whose claims are created with 1 GiB, with an annotation.
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

    #[tokio::test]
    async fn a_set_with_many_annotations_costs_the_api_server_few_requests() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let nothing = tower::service_fn(move |_: http::Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let list = json!({"metadata": {}, "items": [], "kind": "List", "apiVersion": "v1"});
            async move {
                Ok::<_, BoxError>(http::Response::new(Body::from(
                    list.to_string().into_bytes(),
                )))
            }
        });
        let client = Client::new(nothing, "default");
        let update = |templates: usize, annotations: usize| {
            let sizes: Value = (0..annotations)
                .map(|number| (format!("grow.flexvol.dev/t{number}"), json!("2Gi")))
                .collect();
            let templates: Vec<_> = (0..templates)
                .map(|number| json!({
                    "metadata": {"name": format!("t{number}")}, "spec": {"storageClassName": ""},
                }))
                .collect();
            let set: Value = json!({
                "metadata": {"name": "db", "namespace": "ns", "annotations": sizes},
                "spec": {
                    "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": {},
                    "volumeClaimTemplates": templates,
                },
            });
            Update {
                uid: String::new(),
                new: from_value(set).unwrap(),
                old: StatefulSet::default(),
            }
        };
        let requests = async |templates: usize, annotations: usize| {
            asked.store(0, Ordering::Relaxed);
            let verdict = judge(&client, &update(templates, annotations)).await;
            (
                verdict.map(|verdict| verdict.refusal.is_some()).ok(),
                asked.load(Ordering::Relaxed),
            )
        };
        assert_eq!(requests(16, 16).await, (Some(false), 1));
        assert_eq!(requests(16, 250).await, (Some(true), 0));
        assert_eq!(requests(17, 17).await, (None, 0));
        assert_eq!(requests(16, 0).await, (Some(false), 0));
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

    /// The verdict on an annotation of 3Gi of a set without a class, with this first claim.
    fn judged(claim: Value) -> Verdict {
        let server = Server::start().unwrap();
        let make = |kind: &str, namespace: &str, name: &str, mut object: Value| {
            object["metadata"]["name"] = name.into();
            let key = Key::new(kind, namespace, name);
            server.store().create(&key, object).unwrap();
        };
        let default = json!({
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "csi.example", "allowVolumeExpansion": true,
        });
        make("StorageClass", "", "default", default);
        let disk = json!({"provisioner": "example.com/disk", "allowVolumeExpansion": false});
        make("StorageClass", "", "disk", disk);
        make("PersistentVolumeClaim", "ns", "data-db-0", claim);
        let [old, new] = [None, Some("3Gi")].map(|grown| {
            let mut set = set(grown);
            set.metadata.namespace = Some("ns".to_owned());
            set.spec.selector.match_labels = from_value(json!({"app": "db"})).unwrap();
            set
        });
        let update = Update {
            uid: String::new(),
            new,
            old,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), server.kubeconfig()).unwrap();
        let judged = async {
            let budget = Budget::of(Some(100.0));
            let (fence, metrics) = (Fence::default(), Metrics::default());
            let client = connect(Some(file.path()), budget, fence, metrics).await;
            judge(&client.unwrap(), &update).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(judged).unwrap()
    }

    #[test]
    fn a_claim_that_is_too_large_to_be_understood_is_not_judged_by_what_was_read() {
        let claim = |finalizers: usize, conditions: usize| {
            let finalizers = (0..finalizers).map(|number| format!("a/{number:0>1000}"));
            let condition = json!({"type": "Mine", "status": "True", "message": "x".repeat(1000)});
            json!({
                "metadata": {
                    "namespace": "ns", "labels": {"app": "db"},
                    "finalizers": Vec::from_iter(finalizers),
                },
                "spec": {"storageClassName": "disk"},
                "status": {"conditions": vec![condition; conditions]},
            })
        };
        let why = |claim| judged(claim).refusal.unwrap_or_default();
        let by_class = why(claim(0, 0));
        assert!(by_class.contains("storage class \"disk\""), "{by_class}");
        // The list returns only a part of it.
        assert_eq!(why(claim(0, 30)), by_class);
        let cut = why(claim(100, 0));
        let told = "claim data-db-0 is too large to be understood";
        assert!(cut.starts_with(told), "{cut}");
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
        let why = |asked: u64, grows: bool, claims: &[&PersistentVolumeClaim]| {
            impossible(&set, "data", Bytes(asked), Some(&class(grows)), claims)
        };
        let says = |why: Option<String>, text: &str| {
            let why = why.unwrap();
            assert!(why.contains(text), "{why}");
        };
        assert_eq!(why(4 * GIB, true, &[&claim]), None);
        assert_eq!(why(2 * GIB, true, &[&rounded_up]), None);
        says(why(2 * GIB, true, &[&claim]), "claim data-db-1 has 3Gi");
        says(why(GIB / 2, true, &[]), "are made with 1Gi");
        says(why(4 * GIB, false, &[]), "allowVolumeExpansion");
        says(why(6 * GIB, true, &[]), "allows at most 5Gi");
    }
}
