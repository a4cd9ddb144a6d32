//! A late leader has created a persistent volume on another node than its NodeVolume's.

use crate::{
    programs::DRIVER,
    world::{MEBI, World, tell},
};
use serde_json::json;
use std::fs;

/// Storage was ordered of node `two`, and then the earlier storage of node `one` is published.
pub fn made_late() {
    tell(World::start(), |world| {
        let is_known = |world: &World, node: &str| {
            !world.get("StorageNode", "", node)["status"]["drivers"].is_null()
        };
        world.node("two");
        world.start_controller(&["--rate=1000"]);
        world.start_agent("two", &[]);
        world.eventually("the node to be known", |world| is_known(world, "two"))?;
        world.kill("two");
        world.claim("data", "plain");
        world.eventually("storage to be ordered", |world| {
            world.server.store().count("NodeVolume") == 1
        })?;
        world.node("one");
        world.start_agent("one", &[]);
        world.eventually("the other to be known", |world| is_known(world, "one"))?;
        let uid = world.the_claim("data")["metadata"]["uid"].clone();
        let name = format!("pvc-{}", uid.as_str().unwrap());
        let storage = world.path(&format!("one/storage/{name}"));
        fs::create_dir_all(&storage).unwrap();
        fs::write(format!("{storage}/size"), "10485760").unwrap();
        world.make(
            "PersistentVolume",
            json!({
                "metadata": {
                    "name": name,
                    "annotations": {
                        "pv.kubernetes.io/provisioned-by": DRIVER, "flexvol.dev/node": "one",
                    },
                    "finalizers": ["flexvol.dev/storage"],
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": {"storage": "10Mi"},
                    "claimRef": {"namespace": "default", "name": "data", "uid": uid},
                    "flexVolume": {"driver": DRIVER},
                    "persistentVolumeReclaimPolicy": "Delete",
                    "storageClassName": "plain",
                },
            }),
        );
        let node_volume = |world: &World| world.get("NodeVolume", "", &name)["spec"].clone();
        world.eventually("what was ordered of the other not to be wanted", |world| {
            node_volume(world)["state"] == "Absent"
        })?;
        world.start_agent("two", &[]);
        world.eventually("it to be ordered of its own node", |world| {
            node_volume(world)["node"] == "one"
        })?;
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.ask_for("data", "20Mi");
        world.eventually("it to grow", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
        })?;
        assert_eq!(world.storage(), [(format!("one/{name}"), 20 * MEBI)].into());
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
