//! Edits of claim templates.
//!
//! Kubernetes rejects every edit of a set's claim templates. So this webhook moves the size of an edited template to
//! the annotation of [`crate::reconcile::stateful_set`], and restores the template. The request that reaches
//! Kubernetes' own validation contains no edit of a template any more, and its other changes pass. A manifest with
//! the edited size may be applied repeatedly with the same result. A manifest with a former size keeps the
//! annotation, and with it the size of the claims.

use super::{
    review::{Update, Verdict},
    stateful_set_claims::{class_of, refused_if_truncated},
};
use crate::{
    api::well_known::GROW,
    drivers::ServedDrivers,
    k8s::stateful_set::{size, template},
};
use anyhow::Result;
use flexvol_sdk::Bytes;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Client;
use serde_json::json;

/// A claim template whose size was edited.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    template: String,
    /// Index of the template in the edited set.
    index: usize,
    /// The stored size, as written and in bytes.
    old: (String, Bytes),
    /// The edited size.
    new: Bytes,
}

fn edits(update: &Update<StatefulSet>) -> Vec<Edit> {
    let templates = update.new.spec.volume_claim_templates.iter().flatten();
    let edits = templates.enumerate().filter_map(|(index, edited)| {
        let name = edited.metadata.name.as_deref()?;
        let ((_, new), old) = (size(edited)?, size(template(&update.old, name)?)?);
        (new != old.1).then(|| Edit {
            template: name.to_owned(),
            index,
            old,
            new,
        })
    });
    edits.collect()
}

/// Restores edited templates whose claims are ours to grow.
///
/// # Errors
/// When an object cannot be read.
pub async fn edit(
    client: &Client,
    ours: &ServedDrivers,
    update: &Update<StatefulSet>,
) -> Result<Verdict> {
    update.is_usual()?;
    refused_if_truncated(edit_known(client, ours, update).await)
}

async fn edit_known(
    client: &Client,
    ours: &ServedDrivers,
    update: &Update<StatefulSet>,
) -> Result<Verdict> {
    let mut edits_of_ours = Vec::new();
    for edit in edits(update) {
        let class = class_of(client, &update.old, &edit.template).await?;
        if class.is_some_and(|class| ours.driver_of(&class.provisioner).is_some()) {
            edits_of_ours.push(edit);
        }
    }
    Ok(put_back(update, &edits_of_ours))
}

fn put_back(update: &Update<StatefulSet>, edits: &[Edit]) -> Verdict {
    let mut verdict = Verdict::allowed();
    let mut annotated = update.new.metadata.annotations.is_some();
    for edit in edits {
        let Edit { template, .. } = edit;
        let (old, new) = (&edit.old.1, &edit.new);
        if new < old {
            return Verdict::refused(format!(
                "claim template {template:?} has {old}, and volumes do not shrink; leave it, or ask for more"
            ));
        }
        let path = format!(
            "/spec/volumeClaimTemplates/{}/spec/resources/requests/storage",
            edit.index
        );
        let back = json!({"op": "replace", "path": path, "value": edit.old.0});
        verdict.patch.push(back);
        let key = format!("{GROW}{template}");
        let here = requested_by_annotation(&update.new, template);
        // A manifest that replaces the set may lack the stored annotation.
        let before = here.or_else(|| requested_by_annotation(&update.old, template));
        let size = before.map_or(*new, |before| before.max(*new));
        if here != Some(size) {
            if !annotated {
                let path = "/metadata/annotations";
                let first = json!({"op": "add", "path": path, "value": {}});
                verdict.patch.push(first);
                annotated = true;
            }
            let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
            let annotation = json!({"op": "add", "path": path, "value": size.to_string()});
            verdict.patch.push(annotation);
        }
        if size > *new {
            verdict.warnings.push(format!(
                "claims of template {template:?} keep {size}, not {new}: volumes do not shrink; what none has yet is lowered by annotation {key}"
            ));
        } else {
            verdict.warnings.push(format!(
                "claim template {template:?} stays at {old}; its claims have {size} by annotation {key}"
            ));
        }
    }
    verdict
}

/// The size that an annotation requests.
fn requested_by_annotation(set: &StatefulSet, template: &str) -> Option<Bytes> {
    let annotations = set.metadata.annotations.as_ref()?;
    let text = annotations.get(&format!("{GROW}{template}"))?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_apiserver::{Key, Server};
    use kube::{
        Config,
        config::{KubeConfigOptions, Kubeconfig},
    };
    use proptest::prelude::*;
    use serde_json::{Value, from_value};

    /// A set with templates `data` and `log` of these sizes, and an annotation for `data`.
    fn set(data: &str, log: &str, grown: Option<&str>) -> Value {
        let template = |name: &str, size: &str| {
            json!({
                "metadata": {"name": name},
                "spec": {"storageClassName": "disk", "resources": {"requests": {"storage": size}}},
            })
        };
        let mut set = json!({
            "metadata": {"name": "db", "namespace": "ns"},
            "spec": {
                "replicas": 2, "serviceName": "db", "selector": {}, "template": {},
                "volumeClaimTemplates": [template("data", data), template("log", log)],
            },
        });
        if let Some(size) = grown {
            set["metadata"]["annotations"] = json!({"grow.flexvol.dev/data": size, "other": "x"});
        }
        set
    }

    fn update(old: &Value, new: &Value) -> Update<StatefulSet> {
        Update {
            uid: String::new(),
            new: from_value(new.clone()).unwrap(),
            old: from_value(old.clone()).unwrap(),
        }
    }

    /// The object that Kubernetes stores, and the author's warnings.
    fn stored(old: &Value, new: &Value) -> Result<(Value, Vec<String>), String> {
        let update = update(old, new);
        let verdict = put_back(&update, &edits(&update));
        if let Some(why) = verdict.refusal {
            return Err(why);
        }
        let mut stored = new.clone();
        for change in &verdict.patch {
            let path = change["path"].as_str().unwrap();
            let (parent, last) = path.rsplit_once('/').unwrap();
            let parent = stored.pointer_mut(parent).expect(path);
            let last = last.replace("~1", "/");
            match change["op"].as_str().unwrap() {
                "add" => parent[last] = change["value"].clone(),
                "replace" => *parent.get_mut(last).expect(path) = change["value"].clone(),
                other => panic!("{other}"),
            }
        }
        Ok((stored, verdict.warnings))
    }

    #[test]
    fn an_edited_template_becomes_an_annotation() {
        let old = set("1Gi", "1Gi", None);
        let mut new = set("2Gi", "1Gi", None);
        new["spec"]["replicas"] = 3.into();
        let (stored, warnings) = stored(&old, &new).unwrap();
        assert_eq!(
            stored["spec"]["volumeClaimTemplates"],
            old["spec"]["volumeClaimTemplates"]
        );
        assert_eq!(
            stored["metadata"]["annotations"]["grow.flexvol.dev/data"],
            "2Gi"
        );
        assert_eq!(stored["spec"]["replicas"], 3, "other edits pass");
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("its claims have 2Gi"));
    }

    #[test]
    fn several_templates_are_put_back_at_once_in_any_order() {
        let old = set("1Gi", "1Gi", None);
        let mut new = set("2Gi", "3Gi", None);
        let templates = new["spec"]["volumeClaimTemplates"].as_array_mut().unwrap();
        templates.reverse();
        let (stored, _) = stored(&old, &new).unwrap();
        for template in stored["spec"]["volumeClaimTemplates"].as_array().unwrap() {
            assert_eq!(template["spec"]["resources"]["requests"]["storage"], "1Gi");
        }
        let annotations = &stored["metadata"]["annotations"];
        assert_eq!(annotations["grow.flexvol.dev/data"], "2Gi");
        assert_eq!(annotations["grow.flexvol.dev/log"], "3Gi");
    }

    #[test]
    fn less_than_the_template_has_is_refused_and_the_same_in_other_words_is_no_edit() {
        let old = set("2Gi", "1Gi", None);
        let why = stored(&old, &set("1Gi", "1Gi", None)).unwrap_err();
        assert!(why.contains("volumes do not shrink"), "{why}");
        let same = set("2048Mi", "1Gi", None);
        assert_eq!(stored(&old, &same), Ok((same, vec![])));
    }

    #[test]
    fn a_former_size_changes_nothing_and_says_so() {
        let old = set("1Gi", "1Gi", Some("3Gi"));
        let new = set("2Gi", "1Gi", Some("3Gi"));
        let (stored, warnings) = stored(&old, &new).unwrap();
        assert_eq!(stored, old);
        assert!(warnings[0].contains("keep 3Gi"), "{warnings:?}");
    }

    /// The verdict on an edit of template `data` with this class, in a cluster with these claims and the classes
    /// `disk`, which is ours, and `other`.
    fn judged(
        class: Option<&str>,
        replicas: i32,
        claims: &[(&str, &str)],
        default: &str,
    ) -> Verdict {
        let server = Server::start().unwrap();
        let make = |kind: &str, namespace: &str, name: &str, mut object: Value| {
            object["metadata"]["name"] = name.into();
            let key = Key::new(kind, namespace, name);
            server.store().create(&key, object).unwrap();
        };
        for (name, provisioner) in [("disk", "example.com/disk"), ("other", "csi.example")] {
            let key = "storageclass.kubernetes.io/is-default-class";
            let annotations = json!({key: (name == default).to_string()});
            let metadata = json!({"annotations": annotations});
            let class = json!({"metadata": metadata, "provisioner": provisioner});
            make("StorageClass", "", name, class);
        }
        for (name, class) in claims {
            let spec = json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"]});
            let claim = json!({"metadata": {"namespace": "ns"}, "spec": spec});
            make("PersistentVolumeClaim", "ns", name, claim);
        }
        let sets = ["1Gi", "2Gi"].map(|size| {
            let mut set = set(size, "1Gi", None);
            set["spec"]["replicas"] = replicas.into();
            let data = &mut set["spec"]["volumeClaimTemplates"][0]["spec"];
            data["storageClassName"] = json!(class);
            set
        });
        let ours = ServedDrivers::of(&["example.com/disk".parse().unwrap()]).unwrap();
        let asked = async {
            let kubeconfig: Kubeconfig = serde_json::from_str(&server.kubeconfig()).unwrap();
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let client = Client::try_from(config.unwrap()).unwrap();
            edit(&client, &ours, &update(&sets[0], &sets[1])).await
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(asked).unwrap()
    }

    #[test]
    fn a_template_without_a_class_has_that_of_its_first_claim_or_the_default() {
        let put_back = |verdict: Verdict| !verdict.patch.is_empty();
        for replicas in [0, 2] {
            let judged =
                |class, claims, default| put_back(judged(class, replicas, claims, default));
            assert!(judged(Some("disk"), &[], "none"), "{replicas}");
            assert!(judged(None, &[], "disk"), "{replicas}");
            assert!(!judged(None, &[], "other"), "{replicas}");
            assert!(!judged(None, &[], "none"), "{replicas}");
            assert!(!judged(Some(""), &[], "disk"), "{replicas}");
            let kept = [("data-db-0", "disk")];
            assert!(judged(None, &kept, "other"), "{replicas}");
            let kept = [("data-db-0", "other")];
            assert!(!judged(None, &kept, "disk"), "{replicas}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_applied_templates_stay_sizes_never_fall_and_doing_it_again_changes_nothing(
            begun in 1_u64..9, sizes in prop::collection::vec((1_u64..9, any::<bool>()), 1..6),
        ) {
            let gi = |size: u64| format!("{size}Gi");
            let mut live = set(&gi(begun), "1Gi", None);
            let mut largest = begun;
            for (size, whole) in sizes {
                // The manifest is merged into the stored set, or replaces it.
                let mut new = set(&gi(size), "1Gi", None);
                if !whole && live["metadata"].get("annotations").is_some() {
                    new["metadata"]["annotations"] = live["metadata"]["annotations"].clone();
                }
                let Ok((after, _)) = stored(&live, &new) else {
                    prop_assert!(size < begun);
                    continue;
                };
                prop_assert!(size >= begun);
                prop_assert_eq!(&after["spec"], &live["spec"]);
                if size > begun {
                    largest = largest.max(size);
                    let key = "grow.flexvol.dev/data";
                    prop_assert_eq!(&after["metadata"]["annotations"][key], &json!(gi(largest)));
                } else if whole {
                    // No template was edited, so no growth was requested.
                    largest = begun;
                }
                prop_assert_eq!(stored(&after, &new).map(|(again, _)| again["spec"].clone()), Ok(after["spec"].clone()));
                live = after;
            }
        }
    }
}
