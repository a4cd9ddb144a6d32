//! What the API server refuses from the controller's service account about persistent volumes.

use super::controller::{Controller, expect_refused};
use crate::{controllers, scenario::Scenario};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};

// Admission policies, available since Kubernetes 1.30.
tests! {
    "admission: the controller makes, changes and takes away persistent volumes of its own drivers alone", &[Need::Root]
        => volumes;
}

fn volumes(points: &Points) {
    controllers::with(|scenario, _| {
        let controller = Controller::of(scenario);
        let create = |volume: &Value| controller.create(volume);
        let volume = |name: &str, source: Value| {
            let mut volume = json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {
                    "name": name,
                    "finalizers": ["lab.example/kept"],
                    "labels": {"flexvol.dev/managed": "true", "app": "theirs"},
                    "annotations": {"flexvol.dev/node": "node"},
                },
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": "default", "name": "nobodys", "uid": "none"},
                },
            });
            let parts = source.as_object().unwrap().clone();
            volume["spec"].as_object_mut().unwrap().extend(parts);
            volume
        };
        // None of these drivers is served, so no controller acts on the volumes.
        let own = json!({"flexVolume": {"driver": "lab.example/none"}});
        let of_another = json!({"flexVolume": {"driver": "other.example/none"}});
        let secret = json!({"name": "any", "namespace": "kube-system"});
        let with_secret = json!({"driver": "lab.example/none", "secretRef": secret});
        let with_secret = json!({"flexVolume": with_secret});
        let of_the_node = json!({"hostPath": {"path": "/"}});
        let patch = |name: &str, patch: Value| controller.patch("persistentvolume", name, &patch);
        let refused = |result| expect_refused(result, points);

        scenario.eventually("the policy to be in force", || {
            let made = create(&volume("of-the-node", of_the_node.clone()));
            if made.is_ok() {
                forget(scenario, "of-the-node");
            }
            made.is_err()
        });
        refused(create(&volume("of-the-node", of_the_node.clone())));
        refused(create(&volume("with-secret", with_secret)));
        refused(create(&volume("of-another", of_another.clone())));

        let mut noted = volume("noted", own.clone());
        noted["metadata"]["annotations"] = json!({"flexvol.dev/recovery": "mine"});
        refused(create(&noted));

        create(&volume("own", own)).unwrap();
        let larger = json!({"spec": {"capacity": {"storage": "2Gi"}}});
        patch("own", larger.clone()).unwrap();
        for theirs in [
            json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            json!({"spec": {"claimRef": null}}),
            json!({"spec": {"claimRef": {"name": "thiefs"}}}),
            json!({"metadata": {"annotations": {"flexvol.dev/recovery": "mine"}}}),
            json!({"metadata": {"annotations": {"flexvol.dev/node": "other"}}}),
            json!({"metadata": {"annotations": null}}),
            json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "thief"}}}),
            json!({"metadata": {"labels": {"flexvol.dev/managed": null}}}),
            json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "other"}}}),
        ] {
            refused(patch("own", theirs));
        }
        // As a webhook of others may add to every write.
        let more = json!({"labels": {"team": "a"}, "annotations": {"example.com/seen": "1"}});
        patch("own", json!({ "metadata": more })).unwrap();
        patch("own", json!({"metadata": {"finalizers": null}})).unwrap();
        controller
            .call(&["delete", "persistentvolume", "own"])
            .unwrap();

        for (name, source) in [("of-the-node", of_the_node), ("of-another", of_another)] {
            scenario.apply(&[volume(name, source)]);
            refused(patch(name, larger.clone()));
            refused(controller.call(&["delete", "persistentvolume", name]));
            forget(scenario, name);
        }
    });
}

/// Deletes a persistent volume with its finalizers.
fn forget(scenario: &Scenario, name: &str) {
    let free = r#"--patch={"metadata":{"finalizers":null}}"#;
    let lab = scenario.lab();
    lab.kubectl(&["patch", "persistentvolume", name, "--type=merge", free]);
    lab.kubectl(&["delete", "persistentvolume", name, "--ignore-not-found"]);
}
