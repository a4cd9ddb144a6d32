//! Requests that the API server refuses from the controller's service account.

use super::as_bearer;
use crate::{
    claims::{claim, wait_bound},
    controllers,
    lab::Lab,
    scenario::Scenario,
};
use anyhow::Result;
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{fs, path::Path};

// Admission policies, available since Kubernetes 1.30.
tests! {
    "admission: of claims the controller writes its finalizer and a larger size alone", &[Need::Root] => claims;
    "admission: in the status of claims the controller writes their growth alone", &[Need::Root] => statuses;
    "admission: the controller makes, changes and takes away NodeVolumes of its own drivers alone", &[Need::Root]
        => node_volumes;
    "admission: of its webhooks the controller writes the certificate alone", &[Need::Root] => webhooks;
}

/// A client with the rights of the controller.
pub struct Controller<'a> {
    scenario: &'a Scenario,
    token: String,
}

impl<'a> Controller<'a> {
    pub fn of(scenario: &'a Scenario) -> Self {
        let token = controllers::token(scenario.lab(), "flexvol-controller", None);
        Controller { scenario, token }
    }

    pub fn call(&self, arguments: &[&str]) -> Result<String> {
        as_bearer(self.scenario, &self.token, arguments)
    }

    pub fn create(&self, object: &Value) -> Result<String> {
        let file = "/var/lib/lab/object.json";
        fs::write(self.lab().cluster().file(file), object.to_string()).unwrap();
        self.call(&["create", &format!("--filename={file}")])
    }

    pub fn patch(&self, kind: &str, name: &str, patch: &Value) -> Result<String> {
        let patch = format!("--patch={patch}");
        self.call(&["patch", kind, name, "--type=merge", &patch])
    }

    /// Patches the status of a claim. `kubectl` would read it first, by a right that the controller has not.
    fn patch_status(&self, claim: &str, patch: &Value) -> Result<String> {
        let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{claim}/status");
        let token = format!("Authorization: Bearer {}", self.token);
        let header = "Content-Type: application/merge-patch+json";
        let (patch, url) = (patch.to_string(), format!("https://127.0.0.1:6443{path}"));
        let how = ["--silent", "--insecure", "--request", "PATCH"];
        let what = [
            "--header", header, "--header", &token, "--data", &patch, &url,
        ];
        let answer = self.lab().run("curl", &[&how[..], &what].concat());
        let object: Value = serde_json::from_str(&answer).unwrap();
        anyhow::ensure!(object["kind"] == "PersistentVolumeClaim", "{answer}");
        Ok(answer)
    }

    fn lab(&self) -> &Lab {
        self.scenario.lab()
    }
}

#[track_caller]
pub fn expect_refused(result: Result<String>, points: &Points) {
    let words = format!(
        "{:#}",
        result.expect_err("it is not the controller's to do")
    );
    assert!(words.contains("the controller "), "{words}");
    points.add(1);
}

fn claims(points: &Points) {
    controllers::with(|scenario, _| {
        let controller = Controller::of(scenario);
        let mut object = claim("kept", "none", 64);
        object["metadata"]["annotations"] = json!({
            "volume.kubernetes.io/selected-node": "node", "example.com/note": "theirs",
        });
        object["metadata"]["finalizers"] = json!(["lab.example/kept"]);
        object["metadata"]["labels"] = json!({
            "app": "theirs", "app.kubernetes.io/name": "theirs", "app.kubernetes.io/part-of": "theirs",
        });
        scenario.apply(&[object]);
        let patch = |patch: Value| controller.patch("persistentvolumeclaim", "kept", &patch);
        let mut tries = 0;
        scenario.eventually("the policy to be in force", || {
            tries += 1;
            let mark =
                json!({"metadata": {"annotations": {"flexvol.dev/tries": tries.to_string()}}});
            patch(mark).is_err()
        });
        for theirs in [
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"},
            ]}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"finalizers": ["lab.example/kept", "lab.example/mine"]}}),
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "other"}}}),
            json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}),
            json!({"metadata": {"annotations": {"flexvol.dev/note": "mine"}}}),
            json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "mine"}}}),
            json!({"metadata": {"labels": {"flexvol.dev/managed": "true"}}}),
            json!({"metadata": {"labels": {"app.kubernetes.io/name": "mine"}}}),
            json!({"metadata": {"labels": {"app.kubernetes.io/part-of": null}}}),
            json!({"spec": {"volumeName": "thiefs"}}),
        ] {
            expect_refused(patch(theirs), points);
        }
        let found = scenario.claim("default", "kept");
        let theirs = found["metadata"]["finalizers"].as_array().unwrap().clone();
        let with_own = [theirs.as_slice(), &[json!("flexvol.dev/provisioning")]].concat();
        for own in [
            json!({"metadata": {"finalizers": with_own}}),
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}),
            // As a webhook of others may add to every write.
            json!({"metadata": {"finalizers": theirs, "labels": {"team": "a"}, "annotations": {"example.com/seen": "1"}}}),
        ] {
            patch(own).unwrap();
        }
        let free = r#"--patch={"metadata":{"finalizers":null}}"#;
        let lab = scenario.lab();
        lab.kubectl(&[
            "patch",
            "persistentvolumeclaim",
            "kept",
            "--type=merge",
            free,
        ]);
        lab.kubectl(&["delete", "persistentvolumeclaim", "kept"]);
    });
}

/// A claim that is bound by hand to a volume of a driver of ours, which no controller serves.
fn statuses(points: &Points) {
    controllers::with(|scenario, _| {
        let controller = Controller::of(scenario);
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "by-hand"},
            "spec": {
                "capacity": {"storage": "64Mi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "none",
                "claimRef": {"namespace": "default", "name": "bound"},
                "flexVolume": {"driver": "lab.example/none"},
            },
        });
        let claims = ["bound", "unbound"].map(|name| claim(name, "none", 64));
        scenario.apply(&[&[volume], &claims[..]].concat());
        wait_bound(scenario, "bound");
        let lab = scenario.lab();
        let others = json!({"type": "Mine", "status": "True", "message": "theirs"});
        let theirs = format!("--patch={}", json!({"status": {"conditions": [others]}}));
        lab.kubectl(&[
            "patch",
            "pvc",
            "bound",
            "--type=merge",
            "--subresource=status",
            &theirs,
        ]);
        let write = |name: &str, patch: Value| controller.patch_status(name, &patch);
        let status = |status: Value| write("bound", json!({ "status": status }));
        scenario.eventually("the policy to be in force", || {
            let mark = json!({"metadata": {"annotations": {"flexvol.dev/tries": "one more"}}});
            let forget = json!({"metadata": {"annotations": {"flexvol.dev/tries": null}}});
            write("bound", mark).is_err() || write("bound", forget).is_err()
        });
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"});
        for theirs in [
            json!({"status": {"phase": "Lost"}}),
            json!({"status": {"accessModes": ["ReadWriteMany"]}}),
            json!({"status": {"capacity": {"storage": "32Mi"}}}),
            json!({"status": {"capacity": null}}),
            json!({"status": {"conditions": null}}),
            json!({"status": {"conditions": [others, {"type": "Other", "status": "True"}]}}),
            json!({"metadata": {"ownerReferences": [owner]}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "other"}}}),
        ] {
            expect_refused(write("bound", theirs), points);
        }
        let failed = json!({"type": "ControllerResizeError", "status": "True"});
        let waits = json!({"type": "FileSystemResizePending", "status": "True"});
        let unbound = json!({"status": {"conditions": [failed]}});
        expect_refused(write("unbound", unbound), points);
        let grown = json!({
            "capacity": {"storage": "128Mi"},
            "allocatedResources": {"storage": "128Mi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        });
        let allocated = json!({
            "allocatedResources": {"storage": "128Mi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        });
        for (own, rest) in [
            (Some(failed), json!({})),
            (None, allocated),
            (Some(waits), grown),
            (None, json!({})),
        ] {
            // Kubernetes may add a condition of its own at any time.
            scenario.eventually("the growth to be written", || {
                let conditions = scenario.claim("default", "bound")["status"]["conditions"].clone();
                let all = conditions.as_array().unwrap().iter().cloned();
                let theirs = all.filter(|one| !one["type"].to_string().contains("Resize"));
                let mut rest = rest.clone();
                rest["conditions"] = theirs.chain(own.clone()).collect();
                status(rest).is_ok()
            });
        }
        let more = json!({"capacity": {"storage": "256Mi"}});
        for (provisioner, ours) in [("csi.example.com", false), ("lab.example/none", true)] {
            let made_by = format!("volume.kubernetes.io/storage-provisioner={provisioner}");
            lab.kubectl(&["annotate", "--overwrite", "pvc", "bound", &made_by]);
            if ours {
                status(more.clone()).unwrap();
            } else {
                expect_refused(status(more.clone()), points);
            }
        }
        lab.kubectl(&["delete", "pvc", "bound", "unbound"]);
        lab.kubectl(&["delete", "persistentvolume", "by-hand"]);
    });
}

fn node_volumes(points: &Points) {
    controllers::with(|scenario, _| {
        let controller = Controller::of(scenario);
        let node_volume = |name: &str, driver: &str, published: bool| {
            json!({
                "apiVersion": "flexvol.dev/v1alpha1",
                "kind": "NodeVolume",
                "metadata": {"name": name},
                "spec": {
                    // No agent has these drivers.
                    "driver": driver, "node": "node", "state": "Present", "size": 2, "published": published,
                    "claim": {"namespace": "default", "name": "none", "uid": "none"},
                },
            })
        };
        let of_another = node_volume("pvc-none", "other.example/none", false);
        scenario.eventually("the policy to be in force", || {
            controller.create(&of_another).is_err()
        });
        expect_refused(controller.create(&of_another), points);
        let of_another_claim = node_volume("pvc-other", "lab.example/none", false);
        expect_refused(controller.create(&of_another_claim), points);
        let delete = |name: &str| controller.call(&["delete", "nodevolume", name, "--wait=false"]);
        scenario.apply(&[of_another]);
        expect_refused(delete("pvc-none"), points);
        scenario
            .lab()
            .kubectl(&["delete", "nodevolume", "pvc-none"]);

        for (name, published) in [("pvc-none", false), ("pvc-before", true)] {
            let own = node_volume(name, "lab.example/none", published);
            controller.create(&own).unwrap();
            let status = r#"--patch={"status":{"state":"Present","size":3}}"#;
            let patch = [
                "patch",
                "nodevolume",
                name,
                "--type=merge",
                "--subresource=status",
                status,
            ];
            scenario.lab().kubectl(&patch);
            let size = |size: u64| {
                let patch = json!({"spec": {"size": size}});
                controller.patch("nodevolume", name, &patch)
            };
            // The actual size is larger than the requested one, as volume groups round it up.
            size(2).unwrap();
            size(5).unwrap();
            expect_refused(size(2), points);
            size(3).unwrap();
            // Storage of another volume, which would be deleted as this one's.
            let source = |source: Value| {
                let patch = json!({"spec": {"source": source}});
                controller.patch("nodevolume", name, &patch)
            };
            source(json!({"options": {"handle": "own"}})).unwrap();
            for theirs in [
                json!({"options": {"handle": "anothers"}}),
                json!({"fsType": "xfs"}),
                Value::Null,
            ] {
                let words = format!("{:#}", source(theirs).unwrap_err());
                assert!(words.contains("stays with its source"), "{words}");
                points.add(1);
            }
            delete(name).unwrap();
        }
    });
}

fn webhooks(points: &Points) {
    controllers::with(|scenario, _| {
        let controller = Controller::of(scenario);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cluster/webhooks.yaml");
        scenario
            .lab()
            .apply_text(&fs::read_to_string(file).unwrap());
        for kind in [
            "mutatingwebhookconfiguration",
            "validatingwebhookconfiguration",
        ] {
            let patch = |patch: &str| {
                let patch = format!("--patch={patch}");
                controller.call(&["patch", kind, "flexvol", "--type=json", &patch])
            };
            let secrets =
                r#"[{"op":"replace","path":"/webhooks/0/rules/0/resources","value":["secrets"]}]"#;
            scenario.eventually("the policy to be in force", || patch(secrets).is_err());
            for theirs in [
                secrets,
                r#"[{"op":"replace","path":"/webhooks/0/clientConfig","value":{"url":"https://thief.example/"}}]"#,
                r#"[{"op":"replace","path":"/webhooks/0/clientConfig/service/name","value":"thief"}]"#,
                r#"[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"}]"#,
                r#"[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":30}]"#,
                r#"[{"op":"replace","path":"/webhooks/0/matchPolicy","value":"Exact"}]"#,
                r#"[{"op":"replace","path":"/webhooks/0/sideEffects","value":"NoneOnDryRun"}]"#,
                r#"[{"op":"add","path":"/webhooks/0/admissionReviewVersions/0","value":"v1beta1"}]"#,
                r#"[{"op":"remove","path":"/webhooks/0/namespaceSelector"}]"#,
                r#"[{"op":"remove","path":"/webhooks/0/matchConditions"}]"#,
                r#"[{"op":"remove","path":"/webhooks/0"}]"#,
                r#"[{"op":"replace","path":"/webhooks/0/name","value":"thief.flexvol.dev"}]"#,
            ] {
                expect_refused(patch(theirs), points);
            }
            if kind == "mutatingwebhookconfiguration" {
                let again = r#"[{"op":"replace","path":"/webhooks/0/reinvocationPolicy","value":"IfNeeded"}]"#;
                expect_refused(patch(again), points);
            }
            patch(r#"[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":""}]"#)
                .unwrap();
            scenario.lab().kubectl(&["delete", kind, "flexvol"]);
        }
        let service = [
            "delete",
            "service",
            "flexvol-webhook",
            "--namespace=flexvol",
        ];
        scenario.lab().kubectl(&service);
    });
}
