//! Nodes that go away, and come back.

use crate::world::{MEBI, SCRIPT, SELECTED_NODE, World, tell};
use flexvol_apiserver::Key;
use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

/// Heartbeats every second, of which three may be missed.
const HEARTBEAT: &str = "--heartbeat-seconds=1";
const SILENCE: &str = "--silence-seconds=4";

/// A controller, and agents on two nodes.
fn start() -> World {
    let mut world = World::start();
    for node in ["one", "two"] {
        world.node(node);
    }
    world.start_controller(&["--rate=1000", SILENCE]);
    for node in ["one", "two"] {
        world.start_agent(node, &[HEARTBEAT]);
    }
    world
}

/// Waits until both agents have reported: a node that never had a heartbeat leads to other messages.
fn wait_both_known(world: &mut World) -> Result<(), String> {
    world.eventually("both to be known", |world| {
        let told = |node| !world.get("StorageNode", "", node)["status"]["drivers"].is_null();
        told("one") && told("two")
    })
}

/// Waits until the controller has logged that the agent is silent.
fn wait_silent(world: &mut World, node: &str) -> Result<(), String> {
    world.eventually("the controller to miss the agent", |world| {
        let about = format!("\"node\":\"{node}\"");
        let log = world.log();
        log.lines().any(|line| {
            line.contains("\"msg\":\"a node's agent is silent\"") && line.contains(&about)
        })
    })
}

/// Waits until the claim `data` is bound, kills the agent of its node, and returns the node.
fn kill_node_of_claim(world: &mut World) -> Result<String, String> {
    world.claim("data", "plain");
    world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
    let node = world.nodes_of_storage().remove(0);
    world.kill(&node);
    Ok(node)
}

pub fn not_chosen() {
    tell(start(), |world| {
        wait_both_known(world)?;
        world.kill("two");
        wait_silent(world, "two")?;
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.nodes_of_storage(), ["one"]);
        world.kill("one");
        wait_silent(world, "one")?;
        world.claim("more", "plain");
        world.eventually("its author to be told", |world| {
            world.told("no node has driver lab.example/plain; of nodes that do not count, the agent of node ")
        })?;
        world.start_agent("two", &[HEARTBEAT]);
        world.eventually("it to go on", |world| world.is_bound("more"))?;
        assert_eq!(world.nodes_of_storage(), ["one", "two"]);
        Ok(())
    });
}

/// The node hangs in a driver call and is cut off, and the claim is deleted.
pub fn outlived_by_no_claim() {
    tell(World::start(), |world| {
        world.node("one");
        let goes_on = world.path("goes-on");
        let waits = format!("provision)\nwhile [ ! -e {goes_on} ]; do sleep 0.1; done\n");
        let storage = world.path("one/storage");
        fs::create_dir_all(&storage).unwrap();
        let script = SCRIPT.replace("/var/lib/lab/plain", &storage);
        world.install_script("one", &script.replace("provision)\n", &waits));
        world.start_controller(&["--rate=1000", SILENCE]);
        world.start_agent("one", &[HEARTBEAT]);
        world.claim("data", "plain");
        world.eventually("its storage to be ordered", |world| {
            world.server.store().count("NodeVolume") == 1
        })?;
        world.kill("one");
        wait_silent(world, "one")?;
        world.delete_claim("data");
        world.eventually("the claim to go", |world| world.the_claim("data").is_null())?;
        let node_volume = world.server.store().all("NodeVolume").pop().unwrap();
        assert_eq!(node_volume["spec"]["state"], "Absent");
        fs::write(goes_on, "").unwrap();
        world.start_agent("one", &[HEARTBEAT]);
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

pub fn waited_for() {
    tell(start(), |world| {
        let node = kill_node_of_claim(world)?;
        wait_silent(world, &node)?;
        world.ask_for("data", "20Mi");
        let is_ready = format!("node {node} is ready, but its agent was last heard of at 20");
        world.eventually("its author to be told", |world| world.told(&is_ready))?;
        world.start_agent(&node, &[HEARTBEAT]);
        world.eventually("it to grow", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [20 * MEBI]);

        world.kill(&node);
        let key = Key::new("Node", "", &node);
        world.server.store().remove(&key).unwrap();
        world.delete_claim("data");
        let is_gone = format!("node {node} is not in the cluster any more, and its agent was last");
        world.eventually("an administrator to be told", |world| world.told(&is_gone))?;
        assert_eq!(world.server.store().count("PersistentVolume"), 1);
        assert_eq!(world.storage().len(), 1, "nobody lets go of it");
        world.node(&node);
        world.start_agent(&node, &[HEARTBEAT]);
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

pub fn given_up() {
    tell(start(), |world| {
        kill_node_of_claim(world)?;
        world.delete_claim("data");
        let mut words = String::new();
        world.eventually("an administrator to be told what to do", |world| {
            let events = world.server.store().all("Event").into_iter();
            let mut messages =
                events.filter_map(|event| Some(event["message"].as_str()?.to_owned()));
            let found = messages.find(|message| message.contains("kubectl patch nodevolume "));
            words = found.unwrap_or_default();
            !words.is_empty()
        })?;
        world.carry_out(&words);
        world.eventually("the objects to go", |world| {
            let store = world.server.store();
            store.count("PersistentVolume") + store.count("NodeVolume") == 0
        })?;
        assert_eq!(
            world.storage().len(),
            1,
            "what was said to be lost is not looked for"
        );
        Ok(())
    });
}

pub fn forgotten() {
    tell(start(), |world| {
        let used = kill_node_of_claim(world)?;
        let free = if used == "one" { "two" } else { "one" };
        world.kill(free);
        let is_known = |world: &World, node| !world.get("StorageNode", "", node).is_null();
        world.eventually("the controller to look for a node that is there", |world| {
            let requests = world.server.requests().into_iter();
            let looks = requests.filter(|request| *request == format!("GET Node {free}"));
            looks.count() > 2
        })?;
        assert!(is_known(world, free), "its agent is away, and not the node");
        for node in [&used, free] {
            let key = Key::new("Node", "", node);
            world.server.store().remove(&key).unwrap();
        }
        world.eventually("the node to be forgotten", |world| !is_known(world, free))?;
        assert!(is_known(world, &used), "it has a volume");
        world.node(free);
        world.start_agent(free, &[HEARTBEAT]);
        world.eventually("it to be known again", |world| is_known(world, free))?;

        let name = world.the_claim("data")["spec"]["volumeName"].clone();
        let node_volume = Key::new("NodeVolume", "", name.as_str().unwrap());
        world.delete_claim("data");
        world.eventually("its storage not to be wanted", |world| {
            let node_volume = world.server.store().get(&node_volume).unwrap_or_default();
            node_volume["spec"]["state"] == "Absent"
        })?;
        let gone = json!({"state": "Absent"});
        world
            .server
            .store()
            .merge_status(&node_volume, &gone)
            .unwrap();
        world.eventually("the other to be forgotten", |world| !is_known(world, &used))?;
        assert!(is_known(world, free), "it is there");
        Ok(())
    });
}

/// The scheduler's annotation is untrusted: any author of a claim may write it.
pub fn chosen() {
    tell(start(), |world| {
        wait_both_known(world)?;
        let later = |more: &Value| {
            let mut class = json!({"volumeBindingMode": "WaitForFirstConsumer"});
            class["allowedTopologies"] = more.clone();
            class
        };
        let one = json!([{"matchLabelExpressions": [
            {"key": "kubernetes.io/hostname", "values": ["one"]},
        ]}]);
        world.class("later", &later(&Value::Null));
        world.class("workers", &later(&one));
        let key = Key::new("Node", "", "two");
        let taint = json!({"key": "own", "effect": "NoSchedule"});
        let cordon = json!({"spec": {"unschedulable": true, "taints": [taint]}});
        world.server.store().merge(&key, &cordon).unwrap();
        world.claim("data", "workers");
        world.choose_node("data", "two");
        world.eventually("another node to be asked for", |world| {
            let is_asked =
                world.the_claim("data")["metadata"]["annotations"][SELECTED_NODE].is_null();
            let is_told =
                world.told("node two has not the labels that the class's allowedTopologies");
            if is_asked && !is_told {
                // The controller had not seen the agent yet, and the scheduler selects the node again.
                world.choose_node("data", "two");
            }
            is_asked && is_told
        })?;
        assert!(world.storage().is_empty());
        world.claim("daemon", "later");
        world.choose_node("daemon", "two");
        world.eventually("it to be bound", |world| world.is_bound("daemon"))?;
        assert_eq!(world.nodes_of_storage(), ["two"]);
        Ok(())
    });
}

pub fn rescheduled() {
    tell(start(), |world| {
        world.class(
            "later",
            &json!({"volumeBindingMode": "WaitForFirstConsumer"}),
        );
        world.claim("data", "later");
        world.choose_node("data", "gone");
        world.wait_rescheduling("data")?;
        world.eventually("its author to be told", |world| {
            world.told("node gone is not in the cluster any more, and its agent was never heard of")
        })?;
        world.choose_node("data", "one");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.nodes_of_storage(), ["one"]);
        Ok(())
    });
}

pub fn long_dead() {
    tell(start(), |world| {
        wait_both_known(world)?;
        world.kill("two");
        wait_silent(world, "two")?;
        world.kill("controller");
        // Silence by two hosts' clocks takes longer to prove than by one.
        let begun = Instant::now();
        world.eventually("some time to pass", |_| {
            begun.elapsed() > Duration::from_secs(12)
        })?;
        world.start_controller(&["--rate=1000", SILENCE]);
        for claim in ["a", "b", "c", "d"] {
            world.claim(claim, "plain");
        }
        world.eventually("all claims to be bound", |world| {
            ["a", "b", "c", "d"]
                .iter()
                .all(|claim| world.is_bound(claim))
        })?;
        assert_eq!(world.nodes_of_storage(), ["one"; 4]);
        Ok(())
    });
}

/// Storage is ordered of a node whose agent has just ended unnoticed.
fn ordered_of_the_dead() -> World {
    let mut world = World::start();
    world.node("one");
    world.start_controller(&["--rate=1000", SILENCE]);
    world.start_agent("one", &[HEARTBEAT]);
    world
}

fn remove_machine(world: &mut World) -> Result<(), String> {
    world.eventually("the node to be known", |world| {
        !world.get("StorageNode", "", "one")["status"]["drivers"].is_null()
    })?;
    world.kill("one");
    world.claim("data", "plain");
    world.eventually("storage to be ordered", |world| {
        world.server.store().count("NodeVolume") == 1
    })?;
    let key = Key::new("Node", "", "one");
    world.server.store().remove(&key).unwrap();
    Ok(())
}

pub fn removed() {
    tell(ordered_of_the_dead(), |world| {
        remove_machine(world)?;
        wait_silent(world, "one")?;
        world.node("two");
        world.start_agent("two", &[HEARTBEAT]);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.nodes_of_storage(), ["two"]);
        Ok(())
    });
    tell(ordered_of_the_dead(), |world| {
        remove_machine(world)?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// Other nodes are available when the silence is noticed.
pub fn removed_beside_others() {
    tell(ordered_of_the_dead(), |world| {
        remove_machine(world)?;
        for node in ["two", "three", "four"] {
            world.node(node);
            world.start_agent(node, &[HEARTBEAT]);
        }
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let asked = world.server.requests().into_iter();
        let node_volumes = asked.filter(|request| request.starts_with("POST NodeVolume"));
        assert_eq!(node_volumes.count(), 2, "of two nodes it was ordered");
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
