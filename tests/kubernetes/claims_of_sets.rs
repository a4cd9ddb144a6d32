//! Stateful sets whose claims grow.

use crate::{
    claims::{class, wait_nothing_left},
    controllers::{self, PLAIN},
    lab::DISK,
    objects::sleeping,
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};

tests! {
    "claims: an annotation grows all claims of a stateful set under its pods, later ones too, and shrinks none", &[Need::Root]
        => set_grows;
    "claims: a set that is deleted without its pods and applied again has templates of the sizes that it grew to", &[Need::Root]
        => set_recreated;
}

/// A set of two pods with two claims each: one of a driver with file systems, one of a driver without.
pub fn set() -> Value {
    let template = |name: &str, class: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class,
                "resources": {"requests": {"storage": "320Mi"}},
            },
        })
    };
    let mounts = json!([
        {"name": "data", "mountPath": "/data"},
        {"name": "log", "mountPath": "/log"},
    ]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "serviceName": "db",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": sleeping(&mounts, &json!([])),
            },
            "volumeClaimTemplates": [template("data", "at-once"), template("log", "plain")],
        },
    })
}

/// The same set with only its data claims, which have this class.
pub fn set_of_data(class: &str) -> Value {
    let mut set = set();
    let templates = set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap();
    templates.truncate(1);
    templates[0]["spec"]["storageClassName"] = class.into();
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = mounts;
    set
}

pub fn annotate(scenario: &Scenario, template: &str, size: &str) {
    let annotation = format!("grow.flexvol.dev/{template}={size}");
    let set = ["annotate", "--overwrite", "statefulset", "db", &annotation];
    scenario.lab().kubectl(&set);
}

pub fn scale(scenario: &Scenario, replicas: u64) {
    let replicas = format!("--replicas={replicas}");
    let set = ["scale", "statefulset", "db", &replicas];
    scenario.lab().kubectl(&set);
}

pub fn ready(scenario: &Scenario, replicas: u64) {
    scenario.eventually("the set's pods to be ready", || {
        scenario.get("default", "statefulset", "db")["status"]["readyReplicas"] == replicas
    });
}

fn set_grows(points: &Points) {
    controllers::with(|scenario, _| {
        scenario.apply(&[
            class("at-once", DISK, false, &json!({"pool": "default"})),
            class("plain", PLAIN, false, &json!({})),
            set(),
        ]);
        ready(scenario, 2);
        let pods = || {
            let uids = "--output=jsonpath={.items[*].metadata.uid}";
            scenario
                .lab()
                .kubectl(&["get", "pods", "--selector=app=db", uids])
        };
        let before = pods();
        annotate(scenario, "data", "352Mi");
        annotate(scenario, "log", "1Gi");
        for ordinal in 0..2 {
            scenario.wait_grown_to(&format!("data-db-{ordinal}"), "352Mi");
            scenario.wait_grown_to(&format!("log-db-{ordinal}"), "1Gi");
            points.add(2);
        }
        assert_eq!(pods(), before, "no pod was restarted");
        // The template still says 320Mi, so the new claim is made with that, and grows.
        scale(scenario, 3);
        ready(scenario, 3);
        scenario.wait_grown_to("data-db-2", "352Mi");
        scenario.wait_grown_to("log-db-2", "1Gi");
        // Other edits of the set do not change sizes, and succeed.
        let image = r#"{"spec":{"template":{"metadata":{"annotations":{"changed":"yes"}}}}}"#;
        scenario
            .lab()
            .kubectl(&["patch", "statefulset", "db", "--patch", image]);
        scenario
            .lab()
            .kubectl(&["rollout", "undo", "statefulset", "db"]);
        annotate(scenario, "data", "330Mi");
        scenario.wait_event("default", "db", "volumes do not shrink");
        assert_eq!(
            scenario.claim("default", "data-db-0")["status"]["capacity"]["storage"],
            "352Mi"
        );
        annotate(scenario, "nothing", "1Gi");
        scenario.wait_event("default", "db", "has no claim template");
        delete_set(scenario);
    });
}

/// Deletes the set with its pods and claims, and waits until everything is gone.
pub fn delete_set(scenario: &Scenario) {
    let lab = scenario.lab();
    lab.kubectl(&["delete", "statefulset", "db", "--timeout=60s"]);
    lab.kubectl(&["delete", "pods", "--all", "--timeout=150s"]);
    lab.kubectl(&["delete", "pvc", "--all", "--timeout=150s"]);
    wait_nothing_left(scenario);
}

/// Runs the commands of docs/operate/stateful-sets.md.
fn set_recreated(points: &Points) {
    controllers::with(|scenario, _| {
        let class = class("recreated", DISK, false, &json!({"pool": "default"}));
        scenario.apply(&[class, set_of_data("recreated")]);
        ready(scenario, 2);
        let pods = || {
            [0, 1].map(|ordinal| {
                let pod = scenario.get("default", "pod", &format!("db-{ordinal}"));
                pod["metadata"]["uid"].clone()
            })
        };
        let before = pods();
        annotate(scenario, "data", "330Mi");
        for ordinal in 0..2 {
            scenario.wait_grown_to(&format!("data-db-{ordinal}"), "330Mi");
        }
        let orphan = ["delete", "statefulset", "db", "--cascade=orphan"];
        scenario.lab().kubectl(&orphan);
        let mut larger = set_of_data("recreated");
        let template = &mut larger["spec"]["volumeClaimTemplates"][0];
        template["spec"]["resources"]["requests"]["storage"] = "330Mi".into();
        scenario.apply(&[larger]);
        ready(scenario, 2);
        assert_eq!(pods(), before, "no pod was restarted");
        // Only the template gives the size to a new claim.
        scale(scenario, 3);
        ready(scenario, 3);
        let third = scenario.claim("default", "data-db-2");
        assert_eq!(third["status"]["capacity"]["storage"], "330Mi");
        points.add(4);
        delete_set(scenario);
    });
}
