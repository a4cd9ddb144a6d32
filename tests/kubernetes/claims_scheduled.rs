//! Capacity of nodes, as the scheduler sees it.

use crate::{
    claims::{claim, class, delete_claim, wait_bound, wait_nothing_left},
    controllers::{self, Running},
    lab::{Lab, POOL},
    objects::pod,
    scenario::Scenario,
};
use flexvol_lab::kubernetes::PLUGINS;
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs};

/// The first release whose scheduler knows capacities in `storage.k8s.io/v1`.
pub const SINCE: &str = "1.24.0";

tests! {
    "claims: a pod goes to the node with room for its volume, and waits where there is none", &[Need::Root]
        => scheduled;
}

/// A driver that is installed twice. Both share the pool of the others, and each reserves a part of it.
const ROOMY: &str = "lab.example/roomy";
const PROVISIONER: &str = "roomy.lab.example";

/// Another node, without a kubelet: pods are bound to it and never start. Its hostname label is not its name.
const OTHER: &str = "other";
const OTHER_HOST: &str = "host-of-other";
const OTHER_PLUGINS: &str = "/var/lib/lab/other-plugins";

const MEBI: u64 = 1 << 20;

fn scheduled(points: &Points) {
    controllers::with(|scenario, running| {
        story(scenario, running, points);
        for plugins in [PLUGINS, OTHER_PLUGINS] {
            let roomy = ["uninstall", "--name", ROOMY, "--plugin-dir", plugins];
            scenario.lab().run("flexvol", &roomy);
        }
        for what in ["node/other", "csidriver/roomy.lab.example"] {
            scenario.lab().kubectl(&["delete", what]);
        }
    });
}

fn story(scenario: &Scenario, running: &Running, points: &Points) {
    let lab = scenario.lab();
    fs::create_dir_all(lab.cluster().file(OTHER_PLUGINS)).unwrap();
    make_room(lab, PLUGINS, 800);
    make_room(lab, OTHER_PLUGINS, 200);
    scenario.apply(&[
        class("roomy", PROVISIONER, true, &json!({"pool": "default"})),
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": PROVISIONER},
            "spec": {"attachRequired": false, "storageCapacity": true},
        }),
    ]);
    begin_node(scenario);
    let driver = format!("{ROOMY}={PROVISIONER}");
    running.restart_with_driver_and_short_heartbeats(scenario, &driver);
    running.start_other_agent(scenario, OTHER, &driver, OTHER_PLUGINS);
    let eventually = |what: &str, question: &dyn Fn() -> bool| {
        scenario.eventually(what, || {
            beat(lab);
            question()
        });
    };
    let room_is = |node: &str, is: &dyn Fn(u64) -> bool| {
        eventually(
            &format!("the scheduler to know the room on {node}"),
            &|| rooms(lab).get(node).is_some_and(|room| is(*room)),
        );
    };
    room_is("node", &|room| room > 700 * MEBI);
    room_is(OTHER_HOST, &|room| room < 300 * MEBI);

    // The other node is empty, so the scheduler could prefer it, and must not have chosen it even at first.
    for name in ["one", "two"] {
        scenario.apply(&[claim(name, "roomy", 320), pod(name, name)]);
        eventually(&format!("pod {name} to run"), &|| {
            scenario.get("default", "pod", name)["status"]["phase"] == "Running"
        });
        assert_eq!(node_of(scenario, name), "node");
        let events = scenario.events("default", name);
        assert!(!events.contains("another node is asked for"), "{events}");
        points.add(1);
    }

    room_is("node", &|room| room < 300 * MEBI);
    scenario.apply(&[claim("three", "roomy", 320), pod("three", "three")]);
    eventually("the scheduler to say that there is no room", &|| {
        let events = scenario.events("default", "three");
        events.contains("did not have enough free storage")
    });
    let waits = scenario.claim("default", "three");
    let chosen = &waits["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    assert_eq!(*chosen, Value::Null, "nobody was asked to make it");
    assert_eq!(orders(lab), 2);
    points.add(1);

    make_room(lab, OTHER_PLUGINS, 700);
    eventually("the volume to be made on the other node", &|| {
        scenario.claim("default", "three")["status"]["phase"] == "Bound"
    });
    let volume = wait_bound(scenario, "three");
    let made = scenario.get("default", "persistentvolume", &volume);
    assert_eq!(made["metadata"]["annotations"]["flexvol.dev/node"], OTHER);
    eventually("the pod to be sent there", &|| {
        node_of(scenario, "three") == OTHER
    });
    points.add(1);

    running.kill_other_agent(scenario);
    eventually("nothing to be offered of a silent node", &|| {
        rooms(lab).into_keys().eq(["node".to_owned()])
    });
    points.add(1);

    running.start_other_agent(scenario, OTHER, &driver, OTHER_PLUGINS);
    lab.kubectl(&["delete", "pod", "three", "--force", "--grace-period=0"]);
    for name in ["one", "two"] {
        scenario.delete_pod(&pod(name, name));
    }
    beat(lab);
    for name in ["one", "two", "three"] {
        delete_claim(scenario, name);
    }
    wait_nothing_left(scenario);
    lab.kubectl(&["delete", "storageclass", "roomy"]);
    eventually("nothing to be offered of a class that has gone", &|| {
        rooms(lab).is_empty()
    });
    points.add(1);
}

/// Installs the driver with a reserve that leaves this capacity.
fn make_room(lab: &Lab, plugins: &str, mebibytes: u64) {
    let config = "/var/lib/lab/roomy.toml";
    let leave = |reserve: u64| {
        let text = format!(
            "backend = \"loop\"\n[pools.default]\npath = \"{POOL}\"\nreserve = \"{reserve}\"\n"
        );
        fs::write(lab.cluster().file(config), text).unwrap();
        let install = ["install", "--name", ROOMY, "--plugin-dir", plugins];
        lab.run("flexvol", &[&install[..], &["--config", config]].concat());
    };
    let roomy = format!("{plugins}/{}/roomy", ROOMY.replace('/', "~"));
    let left = || {
        let said = lab.run(&roomy, &["capacity", r#"{"pool":"default"}"#]);
        let said: Value = serde_json::from_str(&said).unwrap();
        said["capacity"].as_u64().unwrap()
    };
    leave(0);
    let nearly = left() - mebibytes * MEBI;
    leave(nearly);
    // With a smaller capacity for images, less is set aside for their block maps, so this measures again.
    leave(nearly + left() - mebibytes * MEBI);
}

/// Creates a node that is ready.
fn begin_node(scenario: &Scenario) {
    let lab = scenario.lab();
    scenario.apply(&[json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": OTHER, "labels": {"kubernetes.io/hostname": OTHER_HOST}},
    })]);
    let room = json!({"cpu": "4", "memory": "4Gi", "pods": "50", "ephemeral-storage": "9Gi"});
    let status = json!({"status": {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Lab", "message": "it is"}],
    }});
    let patch = status.to_string();
    let patch = ["--subresource=status", "--patch", &patch];
    lab.kubectl(&[&["patch", "node", OTHER][..], &patch].concat());
    beat(lab);
}

/// Renews the other node's heartbeat in place of its kubelet.
fn beat(lab: &Lab) {
    let now = lab.run("date", &["--utc", "+%Y-%m-%dT%H:%M:%S.%6NZ"]);
    lab.apply_text(
        &json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": OTHER, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": OTHER, "leaseDurationSeconds": 40, "renewTime": now.trim()},
        })
        .to_string(),
    );
}

/// The published capacity of each node.
fn rooms(lab: &Lab) -> BTreeMap<String, u64> {
    let list = ["get", "csistoragecapacities", "--namespace=flexvol"];
    let list = lab.kubectl(&[&list[..], &["--output=json"]].concat());
    let list: Value = serde_json::from_str(&list).unwrap();
    let each = list["items"].as_array().unwrap().iter().map(|told| {
        assert_eq!(told["storageClassName"], "roomy");
        let node = &told["nodeTopology"]["matchLabels"]["kubernetes.io/hostname"];
        let room: flexvol_sdk::Bytes = told["capacity"].as_str().unwrap().parse().unwrap();
        (node.as_str().unwrap().to_owned(), room.0)
    });
    each.collect()
}

fn node_of(scenario: &Scenario, pod: &str) -> Value {
    scenario.get("default", "pod", pod)["spec"]["nodeName"].clone()
}

fn orders(lab: &Lab) -> usize {
    let found = lab.kubectl(&["get", "nodevolumes", "--output=name"]);
    found.lines().count()
}
