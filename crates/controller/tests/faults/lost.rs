//! Drivers that have made storage, and whose answers do not reach the NodeVolume.

use crate::{
    programs::DRIVER,
    world::{World, tell},
};
use flexvol_apiserver::Refused;
use serde_json::json;
use std::{
    fs,
    time::{Duration, Instant},
};

/// A claim whose storage exists, in a place that only its parameters name, and whose driver has not answered yet.
fn start() -> World {
    let mut world = World::start();
    world.node("node");
    let parameters = json!({"pool": "fast", "fault": "late"});
    world.class("fast", &json!({"parameters": parameters}));
    world.start_controller(&["--rate=1000"]);
    world.start_agent("node", &[]);
    world
}

fn wait_for_storage(world: &mut World) -> Result<(), String> {
    world.claim("data", "fast");
    world.eventually("the storage to be made", |world| {
        world.storage().values().any(|size| *size > 0)
    })
}

fn is_revoked(world: &World) -> bool {
    let node_volumes = world.server.store().all("NodeVolume").into_iter();
    node_volumes.last().unwrap_or_default()["spec"]["state"] == "Absent"
}

pub fn node_volume_changed() {
    tell(start(), |world| {
        wait_for_storage(world)?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)?;
        let calls = fs::read_to_string(world.path("calls")).unwrap();
        let deletes = calls.lines().filter(|call| call.starts_with("delete "));
        let deletes = Vec::from_iter(deletes);
        assert!(
            !deletes.is_empty() && deletes.iter().all(|call| call.contains("flavour")),
            "storage is deleted by what the driver said of it: {deletes:?}"
        );
        Ok(())
    });
}

pub fn agent_killed() {
    tell(start(), |world| {
        wait_for_storage(world)?;
        world.kill("node");
        world.delete_claim("data");
        world.eventually("it to be revoked", is_revoked)?;
        assert_eq!(world.storage().len(), 1);
        world.start_agent("node", &[]);
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// A machine is replaced under the node's name after its agent has answered, and before the volume is created.
pub fn replaced() {
    tell(World::start(), |world| {
        world.start_with_a_late_driver();
        world.eventually("the storage to be made", |world| {
            !world.storage().is_empty()
        })?;
        world.kill("controller");
        world.eventually("that to be told", |world| {
            let node_volume = world.server.store().all("NodeVolume").pop().unwrap();
            node_volume["status"]["state"] == "Present"
        })?;
        world.kill("node");
        let storage = world.path("node/storage");
        fs::remove_dir_all(&storage).unwrap();
        fs::create_dir_all(&storage).unwrap();
        world.start_agent("node", &[]);
        world.eventually("the storage to be made again", |world| {
            !world.storage().is_empty()
        })?;
        world.start_controller(&["--rate=1000"]);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.storage().len(), 1);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// A recreated NodeVolume is deleted when claim, volume and storage are gone.
pub fn recalled_late() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let node_volume = json!({
            "metadata": {
                "name": "pvc-1", "labels": {"flexvol.dev/node": "node"},
                "finalizers": ["flexvol.dev/node-volume"],
            },
            "spec": {
                "driver": DRIVER, "node": "node", "state": "Present", "size": 10 << 20,
                "publishing": true, "published": true, "source": {"options": {}},
                "claim": {"namespace": "default", "name": "data", "uid": "1"},
            },
        });
        world.make("NodeVolume", node_volume);
        world.eventually("people to be told", |world| world.told("may hold data"))?;
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// Like [`replaced`], while the API server rejects the creation of the volume.
pub fn replaced_while_publishing() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let write = "POST PersistentVolume ";
        let refused = Refused {
            code: 422,
            reason: "Invalid",
            message: "not now".to_owned(),
        };
        world.server.refuse(write, Some(refused));
        world.claim("data", "plain");
        world.eventually("that to be told", |world| world.told("not now"))?;
        world.kill("node");
        let storage = world.path("node/storage");
        fs::remove_dir_all(&storage).unwrap();
        fs::create_dir_all(&storage).unwrap();
        world.start_agent("node", &[]);
        let begun = Instant::now();
        world.eventually("the storage to be made again", |world| {
            !world.storage().is_empty() || begun.elapsed() > Duration::from_secs(30)
        })?;
        world.server.refuse(write, None);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.storage().len(), 1);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
