//! Namespaces that try to use each other's volumes, and secrets that must stay secret.

use crate::{
    accidents::Stopped,
    calls::Call,
    lab::{BLOCK, DISK, OPEN, version},
    objects::{pod, pod_with, within},
    scenario::Scenario,
};
use flexvol_lab::kubernetes::{Component, PLUGINS};
use flexvol_testing::{Need, Points, tests};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

tests! {
    "an inline volume needs a handle of its namespace, or a pool that is open to all", &[Need::Root]
        => inline_volumes;
    "an attached volume that is used by two names at once is let go by both", &[Need::Root]
        => two_names;
    "a secret reaches the driver and nobody else", &[Need::Root] => secrets;
    "a namespace gets no other's volume, by a copy of its object or inline", &[Need::Root] => theft;
}

const FOREIGN: &str = "the volume belongs to a claim in another namespace";

/// A pod with an inline volume of the driver with these options, without a claim.
fn inline(name: &str, driver: &str, options: &Value) -> Value {
    pod_with(
        name,
        &json!({"flexVolume": {"driver": driver, "options": options}}),
    )
}

/// Makes a pod that must not start, and returns the events that its author can read. They must have the reason,
/// and nothing about the node or the volume.
#[track_caller]
fn refused(scenario: &Scenario, pod: &Value, reason: &str, secrets: &[&str]) -> String {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    scenario.apply(std::slice::from_ref(pod));
    scenario.wait_event(namespace, name, reason);
    let events = scenario.events(namespace, name);
    for secret in [&["/var/", "/run/", "/dev/"], secrets].concat() {
        assert!(!events.contains(secret), "{secret} in {events}");
    }
    let phase = scenario.get(namespace, "pod", name)["status"]["phase"].clone();
    assert_eq!(phase, "Pending");
    events
}

/// Deletes pods that wait for a volume they never get. Up to 1.25 kubelet begins to end such a pod only when its
/// wait of two minutes times out. A restarted kubelet does not wait.
#[track_caller]
fn delete_refused(scenario: &Scenario, pods: &[Value]) {
    let delete = |more: &str| {
        for pod in pods {
            let namespace = pod["metadata"]["namespace"].as_str().unwrap();
            let name = pod["metadata"]["name"].as_str().unwrap();
            let pod = ["delete", "pod", name, "--namespace", namespace];
            let lab = scenario.lab();
            lab.kubectl(&[&pod[..], &["--ignore-not-found", more]].concat());
        }
    };
    if version().minor() < 26 {
        let kubelet = Stopped::by(scenario, Component::Kubelet, Signal::SIGTERM);
        delete("--wait=false");
        kubelet.start();
    }
    delete("--timeout=150s");
}

fn inline_volumes(_: &Points) {
    let scenario = Scenario::begin();
    scenario.namespace("tenant-a");
    scenario.namespace("tenant-b");
    scenario.volume_in("tenant-a", DISK, "owned", 320);
    let options = scenario.options("owned");
    let handle = options["handle"].as_str().unwrap();
    let own = within("tenant-a", inline("inline-own", DISK, &options));
    scenario.run_pod(&own);
    scenario.exec(&own, "echo mine >/data/file");
    let foreign = within("tenant-b", inline("inline-foreign", DISK, &options));
    refused(&scenario, &foreign, FOREIGN, &[handle]);
    let nameless = within("tenant-a", inline("inline-nameless", DISK, &json!({})));
    refused(&scenario, &nameless, "options have no handle", &[handle]);
    let guess = json!({"handle": "00112233445566778899aabbccddeeff"});
    let guessed = within("tenant-a", inline("inline-guessed", DISK, &guess));
    refused(&scenario, &guessed, "there is no such volume", &[handle]);
    let open = within("tenant-b", inline("inline-open", OPEN, &options));
    scenario.run_pod(&open);
    assert_eq!(scenario.exec(&open, "cat /data/file"), "mine\n");
    delete_refused(&scenario, &[foreign, nameless, guessed]);
    scenario.end();
}

/// Two persistent volumes of one handle look like two attached volumes to kubelet.
fn two_names(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(BLOCK, "named", 320);
    let by_claim = pod("by-claim", "named");
    scenario.run_pod(&by_claim);
    let by_hand = inline("by-hand", BLOCK, &scenario.options("named"));
    scenario.run_pod(&by_hand);
    scenario.exec(&by_claim, "echo claim >/data/claim");
    assert_eq!(scenario.exec(&by_hand, "cat /data/claim"), "claim\n");
    // The name that was attached first is detached first, and comes back.
    scenario.delete_pod(&by_claim);
    scenario.exec(&by_hand, "echo hand >/data/hand");
    scenario.run_pod(&by_claim);
    assert_eq!(scenario.exec(&by_claim, "cat /data/*"), "claim\nhand\n");
    scenario.end();
}

const PASSWORD: &str = "correct-horse-battery-staple";

fn secrets(_: &Points) {
    let scenario = Scenario::begin();
    scenario.namespace("tenant-a");
    scenario.namespace("tenant-b");
    scenario.volume_in("tenant-a", DISK, "locked", 320);
    let options = scenario.options("locked");
    let mut pods = Vec::new();
    for (namespace, name) in [("tenant-a", "opens"), ("tenant-b", "breaks-in")] {
        scenario.apply(&[json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "key", "namespace": namespace},
            // kubelet passes a driver only secrets of its own type.
            "type": DISK,
            "stringData": {"password": PASSWORD},
        })]);
        let mut pod = within(namespace, inline(name, DISK, &options));
        pod["spec"]["volumes"][0]["flexVolume"]["secretRef"] = json!({"name": "key"});
        pods.push(pod);
    }
    let encoded = scenario.get("tenant-a", "secret", "key")["data"]["password"].clone();
    let hidden = [PASSWORD, encoded.as_str().unwrap()];
    scenario.run_pod(&pods[0]);
    // kubelet logs all arguments of a failed call, unless its exit code is 0.
    refused(&scenario, &pods[1], FOREIGN, &hidden);
    for (name, succeeds) in [("opens", true), ("breaks-in", false)] {
        let mounts = scenario.calls(&["mount"], &format!("pod.name\":\"{name}\""));
        assert!(!mounts.is_empty());
        for mount in mounts {
            assert!(mount.mentions("kubernetes.io/secret/password"), "{mount:?}");
            assert_eq!(mount.succeeded(), succeeds, "{mount:?}");
        }
    }
    let lab = scenario.lab();
    let log = lab.cluster().log(Component::Kubelet);
    assert!(log.contains(FOREIGN), "the log tells of the refusal");
    let events = lab.kubectl(&["get", "events", "--all-namespaces", "--output=json"]);
    for secret in hidden {
        assert!(!log.contains(secret), "{secret} in kubelet's log");
        assert!(!events.contains(secret), "{secret} in an event");
        let search = format!(
            "grep -rlF -e {secret} {PLUGINS} /var/lib/lab/drivers /var/lib/lab/calls.jsonl \
             /var/lib/flexvol /run/flexvol /var/log || test $? = 1"
        );
        assert_eq!(lab.run("sh", &["-c", &search]), "");
    }
    delete_refused(&scenario, &pods[1..]);
    scenario.end();
}

fn theft(_: &Points) {
    for driver in [BLOCK, DISK] {
        let scenario = Scenario::begin();
        scenario.namespace("tenant-a");
        scenario.namespace("tenant-b");
        scenario.volume_in("tenant-a", driver, "owned", 320);
        let victim = within("tenant-a", pod("victim", "owned"));
        scenario.run_pod(&victim);
        scenario.exec(&victim, "echo mine >/data/file");
        copy(&scenario, "owned", "tenant-b", "copied");
        let kind = driver.rsplit('/').next().unwrap();
        let by_copy = pod(&format!("thief-by-copy-{kind}"), "copied");
        let options = scenario.options("owned");
        let by_hand = inline(&format!("thief-inline-{kind}"), driver, &options);
        let handle = options["handle"].as_str().unwrap();
        let thieves = [by_copy, by_hand].map(|thief| within("tenant-b", thief));
        for thief in &thieves {
            refused(&scenario, thief, FOREIGN, &[handle]);
            let directory = scenario.directory_of(thief);
            assert_eq!(scenario.mounts_below(&directory), []);
        }
        scenario.exec(&victim, "echo still >>/data/file");
        for thief in &thieves {
            let name = thief["metadata"]["name"].as_str().unwrap();
            let mounts = scenario.calls(&["mount"], &format!("pod.name\":\"{name}\""));
            assert!(!mounts.is_empty());
            assert!(!mounts.iter().any(Call::succeeded), "{mounts:#?}");
        }
        if driver == DISK {
            delete_refused(&scenario, &thieves);
        } else {
            // Up to 1.25 a restarted kubelet forgets the global directory of an attached volume that was
            // never mounted for a pod, and does not remove it.
            thieves.iter().for_each(|thief| scenario.delete_pod(thief));
        }
        assert_eq!(scenario.exec(&victim, "cat /data/file"), "mine\nstill\n");
        scenario.end();
    }
}

/// Makes a second persistent volume with the same handle, bound to a claim in another namespace.
fn copy(scenario: &Scenario, original: &str, namespace: &str, name: &str) {
    let mut volume = scenario.get("default", "persistentvolume", original);
    volume["metadata"] = json!({"name": name});
    volume["status"] = Value::Null;
    volume["spec"]["claimRef"] = json!({"namespace": namespace, "name": name});
    let spec = &volume["spec"];
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": spec["accessModes"],
            "resources": {"requests": spec["capacity"]},
            "storageClassName": spec["storageClassName"],
            "volumeName": name,
        },
    });
    scenario.apply(&[volume, claim]);
    let bound = || scenario.claim(namespace, name)["status"]["phase"] == "Bound";
    scenario.eventually("the claim to be bound to the copy", bound);
}
