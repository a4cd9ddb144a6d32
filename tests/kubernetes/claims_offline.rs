//! A stateful set whose volumes do not grow while a pod uses them.

use crate::{
    claims::class,
    claims_of_sets::{annotate, delete_set, ready, set},
    controllers::{self, PLAIN, Running},
    lab::POOL,
    scenario::Scenario,
};
use flexvol_lab::kubernetes::PLUGINS;
use flexvol_testing::{Need, Points, tests};
use nix::sys::signal::Signal;
use serde_json::{Deserializer, Value, json};
use std::{collections::BTreeMap, fs, thread, time::Duration};

tests! {
    "claims: a set whose volumes grow only unused has its pods stopped one at a time, as its budget allows, and loses no data", &[Need::Root]
        => grows;
}

/// A driver whose volumes do not grow while a pod uses them. It shares the pool of the other drivers.
const CAREFUL: &str = "lab.example/careful";

/// Process in the node that records all events of the set's pods.
const WATCH: &str = "watch-of-pods";

/// The pods of the set, in the order in which they are evicted.
const PODS: [&str; 2] = ["db-1", "db-0"];

fn grows(points: &Points) {
    controllers::with(|scenario, running| {
        install(scenario, running);
        story(scenario, running, points);
        delete_set(scenario);
        let lab = scenario.lab();
        lab.kubectl(&["delete", "poddisruptionbudget", "db-budget"]);
        lab.kubectl(&["delete", "rolebinding", "flexvol-stop-pods"]);
        let careful = ["--name", CAREFUL, "--plugin-dir", PLUGINS];
        lab.run("flexvol", &[&["uninstall"], &careful[..]].concat());
    });
}

fn install(scenario: &Scenario, running: &Running) {
    let lab = scenario.lab();
    let config = "/var/lib/lab/careful.toml";
    let text = format!(
        "backend = \"loop\"\ngrowth = \"offline\"\n[pools.default]\npath = \"{POOL}\"\nreserve = \"64Mi\"\n"
    );
    fs::write(lab.cluster().file(config), text).unwrap();
    let careful = ["--name", CAREFUL, "--plugin-dir", PLUGINS];
    let config = ["--config", config];
    lab.run("flexvol", &[&["install"], &careful[..], &config].concat());
    running.restart_with_driver(scenario, CAREFUL);
}

/// The set, whose containers first record the size of the file system that they found.
fn careful_set() -> Value {
    let mut set = set();
    set["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = "careful".into();
    set["spec"]["template"]["spec"]["containers"][0]["command"] = json!([
        "sh",
        "-c",
        "stat -f -c '%b %S' /data >/data/size && exec sleep infinity"
    ]);
    set
}

/// A PodDisruptionBudget that requires this many pods of the set to be available.
fn budget(name: &str, least: u32) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "db"}}},
    })
}

/// As the manual says.
fn allow_to_stop_pods(scenario: &Scenario) {
    scenario.apply(&[json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "flexvol-stop-pods", "namespace": "default"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flexvol-stop-pods",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "flexvol-controller", "namespace": "flexvol"}],
    })]);
}

fn story(scenario: &Scenario, running: &Running, points: &Points) {
    scenario.apply(&[
        class("careful", CAREFUL, false, &json!({"pool": "default"})),
        class("plain", PLAIN, false, &json!({})),
        budget("db-budget", 2),
        budget("db-second", 0),
        careful_set(),
    ]);
    ready(scenario, 2);
    let pods = PODS.map(|name| json!({"metadata": {"name": name}}));
    let uids = || PODS.map(|name| scenario.get("default", "pod", name)["metadata"]["uid"].clone());
    let write = "head -c 5000000 /dev/urandom >/data/file && sync && sha256sum /data/file";
    let sums = pods.each_ref().map(|pod| scenario.exec(pod, write));
    let sizes = pods.each_ref().map(|pod| scenario.size_in(pod));
    let first = uids();
    watch(scenario);

    annotate(scenario, "data", "352Mi");
    annotate(scenario, "log", "1Gi");
    annotate(scenario, "offline", "sometimes");
    scenario.wait_event("default", "db", "write \"restart\"");
    for claim in ["data-db-0", "data-db-1"] {
        scenario.wait_pending(claim);
    }
    annotate(scenario, "offline", "restart");
    scenario.wait_event(
        "default",
        "db",
        "the controller may not list pods in namespace default",
    );
    assert_eq!(uids(), first, "nobody has allowed that a pod is stopped");
    allow_to_stop_pods(scenario);
    // Kubernetes evicts no pod with two budgets, whatever these allow.
    scenario.wait_event("default", "db", "more than one PodDisruptionBudget");
    let lab = scenario.lab();
    lab.kubectl(&["delete", "poddisruptionbudget", "db-second"]);
    // The eviction is tried again, and the budget still forbids it.
    scenario.wait_event("default", "db", "violate the pod's disruption budget");
    thread::sleep(Duration::from_secs(8));
    assert_eq!(uids(), first, "the budget forbids that a pod is stopped");
    for claim in ["data-db-0", "data-db-1"] {
        let status = scenario.claim("default", claim)["status"].clone();
        assert_eq!(status["capacity"]["storage"], "320Mi", "{status:#}");
    }
    points.add(1);

    scenario.apply(&[budget("db-budget", 1)]);
    // Controller and agent are restarted while the first pod is away, and remember nothing of that.
    let ended = || stopped(scenario) == PODS[..1];
    scenario.eventually("the last pod to be stopped", ended);
    running.restart_with_driver(scenario, CAREFUL);
    for ordinal in [1, 0] {
        scenario.wait_grown_to(&format!("data-db-{ordinal}"), "352Mi");
        scenario.wait_grown_to(&format!("log-db-{ordinal}"), "1Gi");
        points.add(1);
    }
    ready(scenario, 2);
    let second = uids();
    // No pod is evicted a second time.
    thread::sleep(Duration::from_secs(15));
    assert_eq!(uids(), second, "no pod is stopped that has nothing to grow");
    for (at, pod) in pods.iter().enumerate() {
        assert_ne!(first[at], second[at], "{pod} was stopped");
        assert_eq!(scenario.size_in(pod), sizes[at] + 32);
        let found = scenario.exec(pod, "cat /data/size");
        let now = scenario.exec(pod, "stat -f -c '%b %S' /data");
        assert_eq!(found, now, "it had grown before the container started");
        assert_eq!(scenario.exec(pod, "sha256sum /data/file"), sums[at]);
        points.add(1);
    }
    assert_eq!(stopped(scenario), PODS, "one after the other, each once");
    let node = scenario.lab().cluster().node();
    node.stop(WATCH, Signal::SIGKILL).unwrap();
}

/// Starts to record all events of the set's pods.
fn watch(scenario: &Scenario) {
    let node = scenario.lab().cluster().node();
    let arguments = [
        "--kubeconfig=/var/lib/lab/kubeconfig",
        "get",
        "pods",
        "--selector=app=db",
        "--watch",
        "--output-watch-events",
        "--output=json",
    ];
    node.start(WATCH, "kubectl", &arguments.map(str::to_owned))
        .unwrap();
    scenario.eventually("both pods to be seen", || away(scenario).len() == 2);
}

fn log(scenario: &Scenario) -> String {
    let file = scenario
        .lab()
        .cluster()
        .file(&format!("/var/log/{WATCH}.log"));
    fs::read_to_string(file).unwrap_or_default()
}

/// The recorded events of pods in order: a pod's name, and whether it was unavailable.
fn away(scenario: &Scenario) -> Vec<(String, bool)> {
    let text = log(scenario);
    let events = Deserializer::from_str(&text).into_iter::<Value>();
    // The last event may be incomplete.
    let events = events.map_while(Result::ok).map(|event| {
        let pod = &event["object"];
        let conditions = pod["status"]["conditions"].as_array();
        let ready = conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        let leaves = event["type"] == "DELETED" || pod["metadata"]["deletionTimestamp"].is_string();
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        (name, leaves || !ready)
    });
    events.collect()
}

/// The pods that became unavailable so far, in order. Checks that at most one was so at a time.
fn stopped(scenario: &Scenario) -> Vec<String> {
    let mut now = BTreeMap::new();
    let mut left = Vec::new();
    for (name, is_away) in away(scenario) {
        let was_away = now.insert(name.clone(), is_away);
        if is_away && was_away == Some(false) {
            left.push(name);
        }
        let number = now.values().filter(|away| **away).count();
        assert!(
            number <= 1,
            "two pods were away at once:\n{}",
            log(scenario)
        );
    }
    left
}
