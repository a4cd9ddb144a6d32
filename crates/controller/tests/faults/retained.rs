//! Storage that stays because somebody said so in time.

use crate::world::{MEBI, World, tell};
use flexvol_apiserver::Key;
use serde_json::json;
use std::fs;

/// The volume was released, and its storage is to be deleted. An administrator has it retained and deletes the
/// volume, so the controller lets go of the NodeVolume first, and then of the volume. The agent has read the
/// NodeVolume before all that, and reads the volume after it.
pub fn read_late() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound and let go of", |world| {
            let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
            world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
        })?;
        world.kill("controller");
        let name = world.the_claim("data")["spec"]["volumeName"].clone();
        let name = name.as_str().unwrap();
        let [volume, node_volume] =
            ["PersistentVolume", "NodeVolume"].map(|kind| Key::new(kind, "", name));
        world.delete_claim("data");
        world.eventually("the claim to be gone", |world| {
            world.the_claim("data").is_null()
        })?;

        let read = |world: &World, kind: &str| {
            let request = format!("GET {kind} {name}");
            let all = world.server.requests().into_iter();
            all.filter(|other| *other == request).count()
        };
        let (node_volumes, volumes) = (read(world, "NodeVolume"), read(world, "PersistentVolume"));
        let hold = world.server.hold(&format!("GET PersistentVolume {name}"));
        let absent = json!({"spec": {"state": "Absent"}});
        world.server.store().merge(&node_volume, &absent).unwrap();
        world.eventually("the agent to read the NodeVolume twice", |world| {
            read(world, "NodeVolume") >= node_volumes + 2
                && read(world, "PersistentVolume") > volumes
        })?;
        for gone in [&node_volume, &volume] {
            let free = json!({"metadata": {"finalizers": null}});
            world.server.store().merge(gone, &free).unwrap();
            world.server.store().remove(gone).unwrap();
        }
        drop(hold);
        world.eventually("the agent to be done with the NodeVolume", |world| {
            let said = fs::read_to_string(world.path("node.log")).unwrap();
            said.contains("cannot reconcile") || world.storage().is_empty()
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);
        Ok(())
    });
}
