//! A driver makes volumes, and answers what no persistent volume can have.

use crate::{
    unable::{claims, known, names},
    world::{SCRIPT, World, tell},
};
use serde_json::json;

/// The driver of the tests, with the most room, and an option of a reserved name.
fn faulty(world: &World) -> String {
    SCRIPT
        .replace("/var/lib/lab/plain", &world.path("faulty/storage"))
        .replace("1099511627776", "2199023255552")
        .replace(r#"\"flavour\""#, r#"\"kubernetes.io/x\""#)
}

/// A driver of one node, such as an older one. Another node can make the volume.
pub fn options_of_one_node() {
    tell(World::start(), |world| {
        for node in ["faulty", "small"] {
            world.node(node);
        }
        world.start_controller(&["--rate=1000"]);
        world.start_agent("small", &["--heartbeat-seconds=1"]);
        world.install_script("faulty", &faulty(world));
        world.start_agent("faulty", &["--heartbeat-seconds=1"]);
        known(world, 2)?;
        claims(world, "plain", &names(2))?;
        assert!(world.told("option \\\"kubernetes.io/x\\\", whose name Kubernetes keeps"));
        world.eventually("what the faulty node made to be deleted", |world| {
            world.nodes_of_storage() == ["small", "small"]
        })?;
        world.class(
            "later",
            &json!({"volumeBindingMode": "WaitForFirstConsumer"}),
        );
        world.claim("late", "later");
        world.choose_node("late", "faulty");
        world.wait_rescheduling("late")?;
        world.choose_node("late", "small");
        world.eventually("it to be bound", |world| world.is_bound("late"))?;
        world.eventually("nothing to be left of the rest", |world| {
            world.nodes_of_storage() == ["small"; 3]
        })?;
        for name in ["c0", "c1", "late"] {
            world.delete_claim(name);
        }
        world.eventually("all to be deleted", World::nothing_is_left)
    });
}
