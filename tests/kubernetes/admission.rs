//! Requests that the API server refuses.

pub mod controller;
pub mod volumes;

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

// Admission policies of the API server, available since Kubernetes 1.30.
tests! {
    POLICIES:
    "admission: inline volumes are kept to the namespaces that allow them", &[Need::Root] => inline;
}

// Tokens that name a node, available since Kubernetes 1.33.
tests! {
    AGENTS:
    "admission: an agent writes nothing about another node", &[Need::Root] => agents;
}

/// Calls kubectl with the rights of a token.
fn as_bearer(scenario: &Scenario, token: &str, arguments: &[&str]) -> anyhow::Result<String> {
    // Without the administrator's kubeconfig, because kubectl would use its token.
    let to = ["--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443"];
    let token = format!("--token={token}");
    let who = ["--insecure-skip-tls-verify=true", &token];
    let cluster = scenario.lab().cluster();
    cluster.kubectl(&[arguments, &to, &who].concat())
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
                    // A driver that the agent does not serve.
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
    // Other scenarios use inline volumes.
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

/// A pod with a volume that does not exist. The pod waits for ever and is deleted soon.
fn inline_pod(name: &str) -> Value {
    pod_with(
        name,
        &json!({"flexVolume": {"driver": DISK, "options": {"handle": "none"}}}),
    )
}

fn kept(scenario: &Scenario) {
    let apply = |pod: Value| scenario.lab().cluster().apply(&[pod]);
    // A policy takes effect some time after it was created.
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
