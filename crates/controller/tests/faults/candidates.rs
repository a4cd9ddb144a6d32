//! A node's own report, with the permissions of its agent or kubelet, keeps no claim from other nodes.

use crate::world::{SCRIPT, World, tell};
use flexvol_apiserver::Key;
use serde_json::json;
use std::fs;

/// Starts an agent that reports twice the capacity of others.
fn start_roomiest(world: &mut World, node: &str) {
    start_roomiest_with(world, node, SCRIPT);
}

fn start_roomiest_with(world: &mut World, node: &str, script: &str) {
    let storage = world.path(&format!("{node}/storage"));
    fs::create_dir_all(&storage).unwrap();
    let script = script.replace("/var/lib/lab/plain", &storage);
    let overstates = script.replace("1099511627776", "2199023255552");
    assert_ne!(script, overstates);
    world.install_script(node, &overstates);
    world.start_agent(node, &[]);
}

/// Checks that claims get another node than the one with the most capacity.
fn claims_are_bound(world: &mut World, to: &str) -> Result<(), String> {
    world.eventually("both to be known", |world| {
        let all = world.server.store().all("StorageNode").into_iter();
        let told = all.filter(|node| !node["status"]["capacities"]["plain"].is_null());
        told.count() == 2
    })?;
    let names = ["one", "two", "three"];
    for name in names {
        world.claim(name, "plain");
    }
    world.eventually("the claims to be bound", |world| {
        names.iter().all(|name| world.is_bound(name))
    })?;
    assert_eq!(world.nodes_of_storage(), [to; 3]);
    Ok(())
}

/// A kubelet may write any number of labels into its own node.
pub fn large() {
    tell(World::start(), |world| {
        for node in ["node", "large"] {
            world.node(node);
        }
        let taint = |number| {
            let key = format!("{}/{number:050}", "n".repeat(120));
            json!({"key": key, "effect": "PreferNoSchedule"})
        };
        let key = Key::new("Node", "", "large");
        let patch = json!({"spec": {"taints": Vec::from_iter((0..1300).map(taint))}});
        world.server.store().merge(&key, &patch).unwrap();
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        start_roomiest(world, "large");
        claims_are_bound(world, "node")
    });
}

/// A kubelet may give its node another node's hostname.
pub fn of_a_taken_name() {
    tell(World::start(), |world| {
        for node in ["node", "roomiest"] {
            world.node(node);
        }
        take_name(world);
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        start_roomiest(world, "roomiest");
        claims_are_bound(world, "node")
    });
}

fn take_name(world: &World) {
    let labels = json!({"kubernetes.io/hostname": "roomiest"});
    let thief = json!({"metadata": {"name": "thief", "labels": labels}});
    world.make("Node", thief);
}

/// The hostname becomes ambiguous after the storage was ordered, and before it is made.
pub fn of_a_name_that_is_taken_later() {
    tell(World::start(), |world| {
        for node in ["node", "roomiest"] {
            world.node(node);
        }
        world.start_controller(&["--rate=1000"]);
        let goes_on = world.path("goes-on");
        let waits = format!("provision)\nwhile [ ! -e {goes_on} ]; do sleep 0.1; done\n");
        start_roomiest_with(world, "roomiest", &SCRIPT.replace("provision)\n", &waits));
        world.claim("data", "plain");
        world.eventually("its storage to be ordered", |world| {
            world.server.store().count("NodeVolume") == 1
        })?;
        take_name(world);
        world.start_agent("node", &[]);
        world.eventually("another node to be known", |world| {
            let known = world.get("StorageNode", "", "node");
            !known["status"]["capacities"]["plain"].is_null()
        })?;
        fs::write(goes_on, "").unwrap();
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.nodes_of_storage(), ["node"]);
        Ok(())
    });
}

/// The scheduler selected such a node, and has to select another one.
pub fn of_a_taken_name_that_was_chosen() {
    tell(World::start(), |world| {
        for node in ["node", "roomiest"] {
            world.node(node);
        }
        take_name(world);
        let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        world.class("late", &late);
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        start_roomiest(world, "roomiest");
        world.claim("data", "late");
        world.choose_node("data", "roomiest");
        world.wait_rescheduling("data")?;
        assert_eq!(world.server.store().count("NodeVolume"), 0);
        world.choose_node("data", "node");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.nodes_of_storage(), ["node"]);
        Ok(())
    });
}
