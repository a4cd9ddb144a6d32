//! Nodes whose objects are deleted while their agents live.

use crate::world::{SCRIPT, World, tell};
use flexvol_apiserver::Key;
use serde_json::json;
use std::fs;

/// Node `one`, with rare heartbeats, slowly makes the volume of claim `first`. Node `two` has less capacity.
fn making_on_one() -> World {
    let mut world = World::start();
    world.class("late", &json!({"parameters": {"fault": "late"}}));
    world.node("one");
    world.start_controller(&["--rate=1000"]);
    world.start_agent("one", &[]);
    world.claim("first", "late");
    world
}

fn add_node_two(world: &mut World) -> Result<(), String> {
    world.eventually("the storage to be made", |world| {
        !world.storage().is_empty()
    })?;
    world.node("two");
    let storage = world.path("two/storage");
    fs::create_dir_all(&storage).unwrap();
    let script = SCRIPT.replace("/var/lib/lab/plain", &storage);
    world.install_script("two", &script.replace("1099511627776", "1099511627"));
    world.start_agent("two", &["--heartbeat-seconds=1"]);
    world.eventually("the other to be known", |world| {
        !world.get("StorageNode", "", "two")["status"]["drivers"].is_null()
    })
}

/// The deletion of a node, or of its StorageNode, does not end its agent.
pub fn node() {
    tell(making_on_one(), |world| {
        add_node_two(world)?;
        let key = Key::new("Node", "", "one");
        world.server.store().remove(&key).unwrap();
        // The reconciliation of this claim finds the node missing.
        world.claim("second", "plain");
        world.eventually("both to be bound", |world| {
            world.is_bound("first") && world.is_bound("second")
        })?;
        assert_eq!(world.nodes_of_storage(), ["two", "two"]);
        for claim in ["first", "second"] {
            world.delete_claim(claim);
        }
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The StorageNode is deleted too, as in a manual cleanup after a machine.
pub fn node_and_words() {
    tell(making_on_one(), |world| {
        add_node_two(world)?;
        for kind in ["Node", "StorageNode"] {
            let key = Key::new(kind, "", "one");
            world.server.store().remove(&key).unwrap();
        }
        world.eventually("the claim to be bound", |world| world.is_bound("first"))?;
        assert_eq!(world.nodes_of_storage(), ["two"]);
        world.delete_claim("first");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
