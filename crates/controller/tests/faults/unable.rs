//! Nodes that cannot have a volume and do not report that, or where no pods run.

use crate::{
    programs::DRIVER,
    world::{World, tell},
};
use flexvol_apiserver::Key;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// A driver without its pool.
const POOLLESS: &str = r#"#!/bin/sh
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":false}}' ;;
delete) echo '{"status":"Success"}' ;;
*) echo '{"status":"Failure","message":"the pool is not there","errorClass":"retryable"}' && exit 1 ;;
esac
"#;

/// A driver that reports more capacity than others, and makes nothing.
const BOASTS: &str = r#"#!/bin/sh
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":false}}' ;;
capacity) echo '{"status":"Success","capacity":9223372036854775807}' ;;
delete) echo '{"status":"Success"}' ;;
*) echo '{"status":"Failure","message":"the pool is read-only","errorClass":"retryable"}' && exit 1 ;;
esac
"#;

/// Installs a driver that runs `first` before it makes a volume.
pub fn install(world: &World, node: &str, first: &str) {
    let storage = world.path(&format!("{node}/storage"));
    std::fs::create_dir_all(&storage).unwrap();
    let script = include_str!("../../../../tests/kubernetes/plain.sh")
        .replace("/var/lib/lab/plain", &storage)
        .replace("provision)\n", &format!("provision)\n{first}\n"));
    world.install_script(node, &script);
}

/// Whether an event of the claim contains these words.
pub fn told_of(world: &World, claim: &Value, words: &str) -> bool {
    let events = world.server.store().all("Event").into_iter();
    let mut of_claim =
        events.filter(|event| event["involvedObject"]["uid"] == claim["metadata"]["uid"]);
    of_claim.any(|event| event["message"].to_string().contains(words))
}

/// Waits until all agents have reported.
pub fn known(world: &mut World, nodes: usize) -> Result<(), String> {
    world.eventually("all nodes to be known", |world| {
        let all = world.server.store().all("StorageNode").into_iter();
        let told = all.filter(|node| !node["status"]["drivers"].is_null());
        told.count() == nodes
    })
}

pub fn claims(world: &mut World, class: &str, names: &[String]) -> Result<(), String> {
    for name in names {
        world.claim(name, class);
    }
    world.eventually("all claims to be bound", |world| {
        names.iter().all(|name| world.is_bound(name))
    })
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("c{number}")).collect()
}

pub fn unknown() {
    tell(World::start(), |world| {
        for node in ["a", "b", "c"] {
            world.node(node);
        }
        world.install_script("b", POOLLESS);
        world.start_controller(&["--rate=1000"]);
        for node in ["a", "b", "c"] {
            world.start_agent(node, &[]);
        }
        known(world, 3)?;
        claims(world, "plain", &names(4))?;
        let requests = world.server.requests();
        let node_volumes = requests
            .iter()
            .filter(|asked| asked.starts_with("POST NodeVolume"));
        assert_eq!(node_volumes.count(), 4, "it is not even asked");
        Ok(())
    });
}

pub fn failing() {
    tell(World::start(), |world| {
        for node in ["a", "b"] {
            world.node(node);
        }
        world.install_script("b", BOASTS);
        world.start_controller(&["--rate=1000"]);
        for node in ["a", "b"] {
            world.start_agent(node, &[]);
        }
        known(world, 2)?;
        claims(world, "plain", &names(1))?;
        assert_eq!(world.nodes_of_storage(), ["a"]);
        assert!(world.told("the pool is read-only"));
        world.class(
            "later",
            &json!({"volumeBindingMode": "WaitForFirstConsumer"}),
        );
        world.claim("late", "later");
        world.choose_node("late", "b");
        world.wait_rescheduling("late")?;
        world.choose_node("late", "a");
        world.eventually("it to be bound", |world| world.is_bound("late"))?;
        assert_eq!(world.nodes_of_storage(), ["a", "a"]);
        Ok(())
    });
}

/// A driver that makes nothing and deletes nothing. Whether there is storage is unknown, so a person has to say that.
pub fn undeletable() {
    tell(World::start(), |world| {
        for node in ["a", "b"] {
            world.node(node);
        }
        world.install_script("b", &BOASTS.replace("delete)", "none)"));
        world.start_controller(&["--rate=1000"]);
        for node in ["a", "b"] {
            world.start_agent(node, &[]);
        }
        known(world, 2)?;
        world.claim("data", "plain");
        let mut words = String::new();
        world.eventually("its author to be told", |world| {
            let events = world.server.store().all("Event");
            let mut messages = events.iter().filter_map(|event| event["message"].as_str());
            let found = messages.find(|words| words.contains("kubectl patch nodevolume "));
            words = found.unwrap_or_default().to_owned();
            !words.is_empty()
        })?;
        assert!(
            words.starts_with("node b: the pool is read-only; "),
            "{words}"
        );
        assert!(world.storage().is_empty() && !world.is_bound("data"));
        world.carry_out(&words);
        world.eventually("it to be bound elsewhere", |world| world.is_bound("data"))?;
        assert_eq!(world.nodes_of_storage(), ["a"]);
        Ok(())
    });
}

pub fn podless() {
    let keeps_out = |spec: Value, rest: &[&str]| -> Vec<String> {
        let mut found = Vec::new();
        tell(World::start(), |world| {
            for node in rest {
                world.node(node);
            }
            let labels = json!({"kubernetes.io/hostname": "own"});
            world.make(
                "Node",
                json!({"metadata": {"name": "own", "labels": labels}, "spec": spec}),
            );
            world.start_controller(&["--rate=1000"]);
            for node in rest.iter().chain(&["own"]) {
                world.start_agent(node, &[]);
            }
            known(world, rest.len() + 1)?;
            claims(world, "plain", &names(6))?;
            found = world.nodes_of_storage();
            Ok(())
        });
        found
    };
    let tainted = json!({"taints": [{"key": "own", "effect": "NoSchedule"}]});
    let cordoned = json!({"unschedulable": true});
    assert_eq!(keeps_out(tainted.clone(), &["other"]), ["other"; 6]);
    assert_eq!(keeps_out(cordoned, &["other"]), ["other"; 6]);
    assert_eq!(
        keeps_out(tainted, &[]),
        ["own"; 6],
        "its pods may tolerate that"
    );
}

pub fn cordoned() {
    tell(World::start(), |world| {
        let labels = json!({"kubernetes.io/hostname": "own"});
        let spec = json!({"unschedulable": true});
        world.make(
            "Node",
            json!({"metadata": {"name": "own", "labels": labels}, "spec": spec}),
        );
        world.start_controller(&["--rate=1000"]);
        world.start_agent("own", &[]);
        known(world, 1)?;
        world.claim("data", "plain");
        world.eventually("its author to be told", |world| {
            world.told("node own is cordoned")
        })?;
        assert!(world.storage().is_empty());
        Ok(())
    });
}

pub fn equal() {
    tell(World::start(), |world| {
        world.start_controller(&["--rate=1000"]);
        for node in ["a", "b", "c"] {
            world.node(node);
            world.start_agent(node, &[]);
        }
        known(world, 3)?;
        claims(world, "plain", &names(9))?;
        let mut each = BTreeMap::<_, usize>::new();
        for node in world.nodes_of_storage() {
            *each.entry(node).or_default() += 1;
        }
        assert_eq!(each.len(), 3, "{each:?}");
        assert!(each.values().all(|count| *count <= 5), "{each:?}");
        Ok(())
    });
}

/// The node with the most capacity makes nothing, and does not report that.
pub fn hanging() {
    tell(World::start(), |world| {
        for node in ["big", "small"] {
            world.node(node);
        }
        install(world, "big", " exec sleep 1000");
        let script = world.path("big/plugins/lab.example~plain/plain");
        let overstates = std::fs::read_to_string(&script).unwrap();
        world.install_script("big", &overstates.replace("1099511627776", "2199023255552"));
        world.start_controller(&["--rate=1000"]);
        // Stands for a call of ten minutes.
        world.start_agent("big", &["--deadline=3"]);
        world.start_agent("small", &[]);
        known(world, 2)?;
        world.claim("first", "plain");
        world.eventually("the node with the most room to be asked", |world| {
            let node_volumes = world.server.store().all("NodeVolume");
            node_volumes.iter().any(|node_volume| {
                node_volume["spec"]["node"] == "big"
                    && node_volume["status"]["error"]["class"] == "uncertain"
            })
        })?;
        claims(world, "plain", &names(8))?;
        assert_eq!(world.nodes_of_storage(), ["small"; 8]);
        let node_volume = world.server.store().all("NodeVolume").into_iter();
        let mut of_big = node_volume.filter(|node_volume| node_volume["spec"]["node"] == "big");
        assert_eq!(of_big.next().unwrap()["spec"]["claim"]["name"], "first");
        assert!(of_big.next().is_none());
        Ok(())
    });
}

/// An agent reports more capacity than others, and answers each NodeVolume as if it was about to be done.
pub fn overstating() {
    tell(World::start(), |world| {
        for node in ["liar", "small"] {
            world.node(node);
        }
        world.start_controller(&["--rate=1000", "--silence-seconds=3"]);
        world.start_agent("small", &["--heartbeat-seconds=1"]);
        world.make("StorageNode", json!({"metadata": {"name": "liar"}}));
        lie(world);
        known(world, 2)?;
        let begun = Instant::now();
        world.eventually("it to be believed", |world| {
            lie(world);
            begun.elapsed() > Duration::from_secs(1)
        })?;
        let names = names(4);
        for name in &names {
            world.claim(name, "plain");
        }
        world.eventually("all claims to be bound", |world| {
            lie(world);
            names.iter().all(|name| world.is_bound(name))
        })?;
        assert_eq!(world.nodes_of_storage(), ["small"; 4]);
        assert!(world.told("node liar has not made the volume in 12 s, whatever it says"));
        world.claim("late", "plain");
        let begun = Instant::now();
        world.eventually("a later one to be bound", |world| {
            lie(world);
            world.is_bound("late")
        })?;
        assert!(
            begun.elapsed() < Duration::from_secs(12),
            "it was asked first"
        );
        assert_eq!(world.nodes_of_storage(), ["small"; 5]);
        Ok(())
    });
}

/// Writes the lies of such an agent, each second.
fn lie(world: &World) {
    let now = Timestamp::now();
    let seen = world.get("StorageNode", "", "liar")["status"]["lastHeartbeatTime"].clone();
    let seen = seen
        .as_str()
        .and_then(|seen| seen.parse::<Timestamp>().ok());
    let is_recent = seen.is_some_and(|seen| now.duration_since(seen).as_secs() < 1);
    let mut store = world.server.store();
    if !is_recent {
        let status = json!({
            "drivers": {DRIVER: {}}, "capacities": {"plain": i64::MAX}, "lastHeartbeatTime": now.to_string(),
            // Without this value, the controller would wait for the default timeout of drivers.
            "deadlineSeconds": 3,
        });
        let key = Key::new("StorageNode", "", "liar");
        store.merge_status(&key, &status).unwrap();
    }
    for node_volume in store.all("NodeVolume") {
        if node_volume["spec"]["node"] != "liar" {
            continue;
        }
        let generation = &node_volume["metadata"]["generation"];
        let status = if node_volume["spec"]["state"] == "Absent" {
            json!({"state": "Absent", "error": null, "observedGeneration": generation})
        } else {
            let problem = json!({"class": "retryable", "message": "it is about to be made"});
            json!({"failures": 1, "error": problem, "observedGeneration": generation})
        };
        if node_volume["status"]["observedGeneration"] != *generation {
            let name = node_volume["metadata"]["name"].as_str().unwrap();
            store
                .merge_status(&Key::new("NodeVolume", "", name), &status)
                .unwrap();
        }
    }
}
