//! What is refused before anything is made.

use crate::{
    controllers,
    lab::DISK,
    objects::{pod, pod_with, within},
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, Test};
use serde_json::{Value, json};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

/// Of policies of the API server, which are there since Kubernetes 1.30.
pub const POLICIES: &[Test] = &[Test {
    name: "admission: inline volumes are kept to the namespaces that allow them",
    needs: &[Need::Root],
    run: inline,
}];

/// Of tokens that name a node, which are there since Kubernetes 1.33.
pub const AGENTS: &[Test] = &[Test {
    name: "admission: an agent writes nothing about another node",
    needs: &[Need::Root],
    run: agents,
}];

fn agents(points: &Points) {
    controllers::with(|scenario, _| {
        let agent = controllers::token(scenario.lab(), "flexvol-agent", Some("node"));
        let as_agent = |arguments: &[&str]| {
            // Without the administrator's file, whose token would be used.
            let to = ["--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443"];
            let token = format!("--token={agent}");
            let who = ["--insecure-skip-tls-verify=true", &token];
            scenario
                .lab()
                .cluster()
                .kubectl(&[arguments, &to, &who].concat())
        };
        for node in ["node", "other"] {
            scenario.apply(&[json!({
                "apiVersion": "flexvol.dev/v1alpha1",
                "kind": "NodeVolume",
                "metadata": {"name": format!("pvc-of-{node}")},
                "spec": {
                    // Of a driver that the agent does not serve.
                    "driver": "lab.example/none", "node": node, "wanted": "Present", "size": 1,
                    "published": true,
                    "claim": {"namespace": "default", "name": "none", "uid": format!("of-{node}")},
                },
            })]);
        }
        let answer = |volume: &str| {
            let order = scenario.get("default", "nodevolume", volume);
            let mut order = order.clone();
            order["status"] = json!({"found": "Absent"});
            let file = "/var/lib/lab/answer.json";
            std::fs::write(scenario.lab().cluster().file(file), order.to_string()).unwrap();
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
        let other = json!({
            "apiVersion": "flexvol.dev/v1alpha1",
            "kind": "StorageNode",
            "metadata": {"name": "other"},
        });
        let file = "/var/lib/lab/other.json";
        std::fs::write(scenario.lab().cluster().file(file), other.to_string()).unwrap();
        refused(as_agent(&["create", &format!("--filename={file}")]));
        scenario
            .lab()
            .kubectl(&["delete", "nodevolume", "pvc-of-node", "pvc-of-other"]);
    });
}

fn inline(_: &Points) {
    let scenario = Scenario::begin();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cluster/admission.yaml");
    let policy = std::fs::read_to_string(file).unwrap();
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
