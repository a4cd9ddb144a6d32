//! What is refused before anything is made.

use crate::{
    controllers,
    lab::DISK,
    objects::{pod, pod_with, within},
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

// Of policies of the API server, which are there since Kubernetes 1.30.
tests! {
    POLICIES:
    "admission: inline volumes are kept to the namespaces that allow them", &[Need::Root] => inline;
    "admission: the controller makes, changes and takes away persistent volumes of its own drivers alone", &[Need::Root]
        => volumes;
}

// Of tokens that name a node, which are there since Kubernetes 1.33.
tests! {
    AGENTS:
    "admission: an agent writes nothing about another node", &[Need::Root] => agents;
}

/// Calls kubectl with the rights that a token gives.
fn as_bearer(scenario: &Scenario, token: &str, arguments: &[&str]) -> anyhow::Result<String> {
    // Without the administrator's file, whose token would be used.
    let to = ["--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443"];
    let token = format!("--token={token}");
    let who = ["--insecure-skip-tls-verify=true", &token];
    let cluster = scenario.lab().cluster();
    cluster.kubectl(&[arguments, &to, &who].concat())
}

fn volumes(points: &Points) {
    controllers::with(|scenario, _| {
        let controller = controllers::token(scenario.lab(), "flexvol-controller", None);
        let as_controller = |arguments: &[&str]| as_bearer(scenario, &controller, arguments);
        let create = |volume: &Value| {
            let file = "/var/lib/lab/volume.json";
            fs::write(scenario.lab().cluster().file(file), volume.to_string()).unwrap();
            as_controller(&["create", &format!("--filename={file}")])
        };
        let volume = |name: &str, source: Value| {
            let mut volume = json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name, "finalizers": ["lab.example/kept"]},
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
        // None of these drivers is served: nobody else acts on them.
        let own = json!({"flexVolume": {"driver": "lab.example/none"}});
        let of_another = json!({"flexVolume": {"driver": "other.example/none"}});
        let secret = json!({"name": "any", "namespace": "kube-system"});
        let with_secret = json!({"driver": "lab.example/none", "secretRef": secret});
        let with_secret = json!({"flexVolume": with_secret});
        let of_the_node = json!({"hostPath": {"path": "/"}});
        let patch = |name: &str, patch: Value| {
            let patch = format!("--patch={patch}");
            as_controller(&["patch", "persistentvolume", name, "--type=merge", &patch])
        };
        let refused = |result: anyhow::Result<String>| {
            let words = format!(
                "{:#}",
                result.expect_err("it is not the controller's to do")
            );
            assert!(words.contains("the controller "), "{words}");
            points.add(1);
        };

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

        create(&volume("own", own)).unwrap();
        let larger = json!({"spec": {"capacity": {"storage": "2Gi"}}});
        patch("own", larger.clone()).unwrap();
        for theirs in [
            json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            json!({"spec": {"claimRef": null}}),
            json!({"spec": {"claimRef": {"name": "thiefs"}}}),
        ] {
            refused(patch("own", theirs));
        }
        patch("own", json!({"metadata": {"finalizers": null}})).unwrap();
        as_controller(&["delete", "persistentvolume", "own"]).unwrap();

        for (name, source) in [("of-the-node", of_the_node), ("of-another", of_another)] {
            scenario.apply(&[volume(name, source)]);
            refused(patch(name, larger.clone()));
            refused(as_controller(&["delete", "persistentvolume", name]));
            forget(scenario, name);
        }
    });
}

/// Deletes a persistent volume, whatever keeps it.
fn forget(scenario: &Scenario, name: &str) {
    let free = r#"--patch={"metadata":{"finalizers":null}}"#;
    let lab = scenario.lab();
    lab.kubectl(&["patch", "persistentvolume", name, "--type=merge", free]);
    lab.kubectl(&["delete", "persistentvolume", name, "--ignore-not-found"]);
}

fn agents(points: &Points) {
    controllers::with(|scenario, _| {
        let agent = controllers::token(scenario.lab(), "flexvol-agent", Some("node"));
        let as_agent = |arguments: &[&str]| as_bearer(scenario, &agent, arguments);
        for node in ["node", "other"] {
            scenario.apply(&[json!({
                "apiVersion": "flexvol.dev/v1alpha1",
                "kind": "NodeVolume",
                "metadata": {"name": format!("pvc-of-{node}")},
                "spec": {
                    // Of a driver that the agent does not serve.
                    "driver": "lab.example/none", "node": node, "state": "Present", "size": 1,
                    "published": true,
                    "claim": {"namespace": "default", "name": "none", "uid": format!("of-{node}")},
                },
            })]);
        }
        let answer = |volume: &str| {
            let order = scenario.get("default", "nodevolume", volume);
            let mut order = order.clone();
            order["status"] = json!({"state": "Absent"});
            let file = "/var/lib/lab/answer.json";
            fs::write(scenario.lab().cluster().file(file), order.to_string()).unwrap();
            let file = format!("--filename={file}");
            as_agent(&["replace", "--subresource=status", &file])
        };
        let refused = |result: anyhow::Result<String>| {
            let words = format!("{:#}", result.expect_err("it is about another node"));
            assert!(words.contains("only what is about the node"), "{words}");
            points.add(1);
        };
        scenario.eventually("the policy to be in force", || {
            answer("pvc-of-other").is_err()
        });
        refused(answer("pvc-of-other"));
        answer("pvc-of-node").unwrap();
        for theirs in [
            json!({"node": "other"}),
            json!({"driver": "lab.example/other"}),
            json!({"claim": {"uid": "of-other"}}),
        ] {
            let patch = format!("--patch={}", json!({"spec": theirs}));
            let patch = ["patch", "nodevolume", "pvc-of-node", "--type=merge", &patch];
            let words = scenario.lab().cluster().kubectl(&patch).unwrap_err();
            let words = format!("{words:#}");
            assert!(words.contains("a NodeVolume stays with its"), "{words}");
            points.add(1);
        }
        let rest = r#"--patch={"spec":{"size":2}}"#;
        let patch = ["patch", "nodevolume", "pvc-of-node", "--type=merge", rest];
        scenario.lab().kubectl(&patch);
        let other = json!({
            "apiVersion": "flexvol.dev/v1alpha1",
            "kind": "StorageNode",
            "metadata": {"name": "other"},
        });
        let file = "/var/lib/lab/other.json";
        fs::write(scenario.lab().cluster().file(file), other.to_string()).unwrap();
        refused(as_agent(&["create", &format!("--filename={file}")]));
        scenario
            .lab()
            .kubectl(&["delete", "nodevolume", "pvc-of-node", "pvc-of-other"]);
    });
}

fn inline(_: &Points) {
    let scenario = Scenario::begin();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cluster/admission.yaml");
    let policy = fs::read_to_string(file).unwrap();
    scenario.lab().apply_text(&policy);
    let result = catch_unwind(AssertUnwindSafe(|| kept(&scenario)));
    // Other scenarios have inline volumes.
    for kind in [
        "validatingadmissionpolicybinding",
        "validatingadmissionpolicy",
    ] {
        scenario.lab().kubectl(&["delete", kind, "flexvol-inline"]);
    }
    let volume = || {
        scenario
            .lab()
            .cluster()
            .apply(&[inline_pod("probe")])
            .is_ok()
    };
    scenario.eventually("the policy to be forgotten", volume);
    if let Err(panic) = result {
        resume_unwind(panic);
    }
    scenario.end();
}

/// A pod with a volume that nobody made, which waits for ever and is deleted soon.
fn inline_pod(name: &str) -> Value {
    pod_with(
        name,
        &json!({"flexVolume": {"driver": DISK, "options": {"handle": "none"}}}),
    )
}

fn kept(scenario: &Scenario) {
    let apply = |pod: Value| scenario.lab().cluster().apply(&[pod]);
    // A policy is in force some time after it is made.
    let mut refused = String::new();
    scenario.eventually("an inline volume to be refused", || {
        match apply(inline_pod("inline")) {
            Ok(_) => {
                scenario.delete_pod(&inline_pod("inline"));
                false
            }
            Err(error) => {
                refused = format!("{error:#}");
                true
            }
        }
    });
    assert!(
        refused.contains("use a persistent volume claim"),
        "{refused}"
    );
    apply(pod("claims", "nobodys")).unwrap();
    scenario.namespace("inline-allowed");
    let label = [
        "label",
        "namespace",
        "inline-allowed",
        "--overwrite",
        "flexvol.dev/inline=allowed",
    ];
    scenario.lab().kubectl(&label);
    let allowed = within("inline-allowed", inline_pod("inline"));
    scenario.eventually("the label to be heeded", || apply(allowed.clone()).is_ok());
}
