//! Objects that do not belong to the controller, and stay unchanged.

use crate::{
    claims::{claim, class, condition, delete_claim, wait_bound, wait_nothing_left},
    controllers::{self, PLAIN, plain_volumes},
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{thread, time::Duration};

tests! {
    "claims: what is for others, not bound or bound to what was there is left alone", &[Need::Root]
        => of_others;
    "claims: a volume that is larger than its claim is left alone, conditions of others stay, and deleting needs no class", &[Need::Root]
        => large_enough;
}

/// Longer than any action of the controller takes.
const A_WHILE: Duration = Duration::from_secs(4);

fn of_others(points: &Points) {
    controllers::with(|scenario, _| {
        scenario.apply(&[
            class("plain", PLAIN, false, &json!({})),
            class("patient", PLAIN, true, &json!({})),
            class("of-others", "lab.example/nobody", false, &json!({})),
        ]);
        let there = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "there"},
            "spec": {
                "capacity": {"storage": "100Mi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "plain",
                "hostPath": {"path": "/var/lib/lab/there"},
            },
        });
        let mut bound = claim("bound", "plain", 10);
        bound["spec"]["volumeName"] = "there".into();
        scenario.apply(&[
            there,
            bound,
            claim("waits", "patient", 10),
            claim("foreign", "of-others", 10),
        ]);
        assert_eq!(wait_bound(scenario, "bound"), "there");
        scenario.ask_for("bound", 200);
        thread::sleep(A_WHILE);
        let claim_of = |name: &str| scenario.claim("default", name);
        for name in ["waits", "foreign", "bound"] {
            let finalizers = claim_of(name)["metadata"]["finalizers"].to_string();
            assert!(!finalizers.contains("flexvol"), "{name}: {finalizers}");
            let tellers = tellers(scenario, name);
            assert!(!tellers.contains("flexvol"), "{name}: {tellers}");
            points.add(1);
        }
        for growth in ["FileSystemResizePending", "ControllerResizeError"] {
            assert_eq!(condition(scenario, "bound", growth), None);
        }
        let orders = scenario.lab().kubectl(&["get", "nodevolumes"]);
        assert_eq!(orders.trim(), "");
        assert_eq!(plain_volumes(scenario), <[String; 0]>::default());
        for name in ["waits", "foreign", "bound"] {
            delete_claim(scenario, name);
        }
        let found = scenario.get("default", "persistentvolume", "there");
        assert_eq!(found["spec"]["capacity"]["storage"], "100Mi");
        scenario.lab().kubectl(&["delete", "pv", "there"]);
    });
}

fn large_enough(points: &Points) {
    controllers::with(|scenario, _| {
        let mut keeps = class("outlives", PLAIN, false, &json!({}));
        keeps["reclaimPolicy"] = "Retain".into();
        scenario.apply(&[keeps, claim("first", "outlives", 20)]);
        let volume = wait_bound(scenario, "first");
        delete_claim(scenario, "first");
        let phase = |phase: &str| {
            scenario.eventually(&format!("the volume to be {phase}"), || {
                scenario.get("default", "persistentvolume", &volume)["status"]["phase"] == phase
            });
        };
        phase("Released");
        // In one write, because Kubernetes would bind a volume without claim to any claim.
        let next = json!({
            "namespace": "default", "name": "second", "uid": null, "resourceVersion": null,
        });
        patch(
            scenario,
            "pv",
            &volume,
            &json!({"spec": {"claimRef": next}}),
        );
        let mut second = claim("second", "outlives", 10);
        second["spec"]["volumeName"] = volume.as_str().into();
        scenario.apply(&[second]);
        wait_bound(scenario, "second");
        let said =
            json!({"type": "Checked", "status": "True", "reason": "Fine", "message": "by hand"});
        scenario.lab().kubectl(&[
            "patch",
            "pvc",
            "second",
            "--subresource=status",
            "--type=merge",
            &format!("--patch={}", json!({"status": {"conditions": [said]}})),
        ]);
        scenario.ask_for("second", 15);
        thread::sleep(A_WHILE);
        let storage = format!("/var/lib/lab/plain/{volume}/size");
        let bytes = || scenario.lab().run("cat", &[&storage]);
        assert_eq!(bytes().trim(), (20 << 20).to_string());
        let size = || {
            scenario.get("default", "persistentvolume", &volume)["spec"]["capacity"]["storage"]
                .clone()
        };
        assert_eq!(size(), "20Mi");
        points.add(1);
        scenario.ask_for("second", 40);
        scenario.wait_grown("second", 40);
        assert_eq!(size(), "40Mi");
        assert_eq!(bytes().trim(), (40 << 20).to_string());
        let checked = condition(scenario, "second", "Checked").unwrap();
        assert_eq!(checked["message"], "by hand");
        points.add(1);
        let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        patch(scenario, "pv", &volume, &delete);
        scenario
            .lab()
            .kubectl(&["delete", "storageclass", "outlives"]);
        delete_claim(scenario, "second");
        wait_nothing_left(scenario);
        points.add(1);
    });
}

/// The components that wrote events of a claim.
fn tellers(scenario: &Scenario, claim: &str) -> String {
    let only = format!("--field-selector=involvedObject.name={claim}");
    let of_each = "--output=jsonpath={.items[*].reportingComponent} {.items[*].source.component}";
    scenario.lab().kubectl(&["get", "events", &only, of_each])
}

fn patch(scenario: &Scenario, kind: &str, name: &str, patch: &Value) {
    let patch = format!("--patch={patch}");
    scenario
        .lab()
        .kubectl(&["patch", kind, name, "--type=merge", &patch]);
}
