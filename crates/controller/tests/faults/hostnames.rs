//! Hostnames of nodes, to which volumes are bound.

use crate::world::{World, tell};
use flexvol_apiserver::Key;
use serde_json::json;

/// A node may write its own label.
pub fn taken() {
    tell(World::start(), |world| {
        world.node("node");
        let labels = json!({"kubernetes.io/hostname": "node"});
        let thief = json!({"metadata": {"name": "thief", "labels": labels}});
        world.make("Node", thief);
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        world.eventually("its author to be told", |world| {
            world.told("node thief has its label kubernetes.io/hostname=node too")
        })?;
        assert_eq!(world.server.store().count("PersistentVolume"), 0);
        let own = json!({"metadata": {"labels": {"kubernetes.io/hostname": "thief"}}});
        let thief = Key::new("Node", "", "thief");
        world.server.store().merge(&thief, &own).unwrap();
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        bound_to(world, "node");
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// Another node has this node's name as its hostname.
pub fn another() {
    tell(World::start(), |world| {
        for (name, label) in [("node", "host"), ("other", "node")] {
            let labels = json!({"kubernetes.io/hostname": label});
            let node = json!({"metadata": {"name": name, "labels": labels}});
            world.make("Node", node);
        }
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        bound_to(world, "host");
        Ok(())
    });
}

fn bound_to(world: &World, host: &str) {
    let volume = world.server.store().all("PersistentVolume").pop().unwrap();
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["values"], json!([host]));
}
