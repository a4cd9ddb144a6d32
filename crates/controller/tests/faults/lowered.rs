//! Requests that are lowered before they are met: quota counts the actual size, and no more.

use crate::world::{MEBI, SCRIPT, World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

/// Starts with a bound claim, on a node whose driver runs `first` before it grows a volume.
fn start(world: &mut World, first: &str) -> Result<(), String> {
    world.start_on_a_node();
    let script = SCRIPT
        .replace("/var/lib/lab/plain", &world.path("node/storage"))
        .replace("expandvolume)\n", &format!("expandvolume)\n{first}\n"));
    world.install_script("node", &script);
    world.claim("data", "plain");
    world.eventually("the claim to be bound", |world| world.is_bound("data"))
}

fn ordered(world: &World) -> u64 {
    let node_volumes = world.server.store().all("NodeVolume");
    node_volumes[0]["spec"]["size"].as_u64().unwrap()
}

fn counts(world: &World, size: &str) -> bool {
    let status = &world.the_claim("data")["status"];
    let volume = &world.server.store().all("PersistentVolume")[0];
    status["capacity"]["storage"] == size
        && status["allocatedResources"]["storage"] == size
        && status["allocatedResourceStatuses"].is_null()
        && volume["spec"]["capacity"]["storage"] == size
}

/// What quota counts besides the request.
fn allocated(world: &World) -> Value {
    world.the_claim("data")["status"]["allocatedResources"]["storage"].clone()
}

pub fn while_it_expands(kubernetes: Kubernetes) {
    tell(World::beside(kubernetes), |world| {
        let (begun, goes_on) = (world.path("begun"), world.path("goes-on"));
        start(
            world,
            &format!("touch {begun}; until [ -e {goes_on} ]; do sleep 0.1; done"),
        )?;
        world.ask_for("data", "100Mi");
        world.eventually("the driver to work", |_| fs::exists(&begun).unwrap())?;
        assert_eq!(allocated(world), "100Mi", "it counts before it is ordered");
        world.ask_for("data", "20Mi");
        world.eventually("less to be ordered", |world| ordered(world) == 20 * MEBI)?;
        let lowered = Instant::now();
        world.eventually("a second to pass", |_| {
            lowered.elapsed() > Duration::from_secs(1)
        })?;
        assert_eq!(allocated(world), "100Mi", "the driver is still at work");
        fs::write(&goes_on, "").unwrap();
        world.eventually("what is had to be counted", |world| counts(world, "100Mi"))?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [100 * MEBI]);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// Kubernetes' own expander, or else the controller, has written the larger size, which the storage never had.
pub fn without_room(kubernetes: Kubernetes) {
    tell(World::beside(kubernetes), |world| {
        let full = r#"[ "$4" -le 20971520 ] || { echo '{"status":"Failure","message":"there is no room","errorClass":"exhausted"}'; exit 1; }"#;
        start(world, full)?;
        world.ask_for("data", "100Mi");
        world.eventually("its author to be told", |world| {
            world.told("there is no room")
        })?;
        assert_eq!(allocated(world), "100Mi");
        world.ask_for("data", "20Mi");
        world.eventually("the claim to have less", |world| counts(world, "20Mi"))?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [20 * MEBI]);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The node is away while more is ordered, and while that is taken back.
pub fn unanswered() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        start(world, "")?;
        world.kill("node");
        world.ask_for("data", "100Mi");
        world.eventually("more to be ordered", |world| ordered(world) == 100 * MEBI)?;
        world.ask_for("data", "20Mi");
        world.eventually("less to be ordered", |world| ordered(world) == 20 * MEBI)?;
        assert_eq!(allocated(world), "100Mi");
        world.start_agent("node", &[]);
        world.eventually("the claim to have less", |world| counts(world, "20Mi"))?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// An API server that drops allocated sizes lets nobody lower a request. That is found once.
pub fn dropped() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.server.store().drop_allocated_resources();
        world.start_on_a_node();
        let mut writes = Vec::new();
        for name in ["one", "two"] {
            world.claim(name, "plain");
            world.eventually("the claim to be bound", |world| world.is_bound(name))?;
            world.ask_for(name, "20Mi");
            world.eventually("the claim to have grown", |world| {
                world.the_claim(name)["status"]["capacity"]["storage"] == "20Mi"
            })?;
            let write = format!("PATCH PersistentVolumeClaim/status {name}");
            let all = world.server.requests().into_iter();
            writes.push(all.filter(|request| *request == write).count());
            world.delete_claim(name);
            world.eventually("nothing to be left", World::nothing_is_left)?;
        }
        assert_eq!(writes, [2, 1]);
        Ok(())
    });
}

/// A node may answer anything in its own NodeVolumes, and quota counts the claims' capacities on all nodes.
pub fn overstated() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let name = world.server.store().all("NodeVolume")[0]["metadata"]["name"].clone();
        let node_volume = Key::new("NodeVolume", "", name.as_str().unwrap());
        let says = |world: &World, size: i64| {
            let status = json!({"size": size});
            world
                .server
                .store()
                .merge_status(&node_volume, &status)
                .unwrap();
        };
        says(world, i64::MAX);
        world.ask_for("data", "20Mi");
        world.eventually("its author to be told", |world| {
            world.told("says that the storage has")
        })?;
        // The storage is measured again, and grows.
        world.eventually("the claim to have grown", |world| counts(world, "20Mi"))?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [20 * MEBI]);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
