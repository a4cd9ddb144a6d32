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
        let lowered = Instant::now();
        world.eventually("a second to pass", |_| {
            lowered.elapsed() > Duration::from_secs(1)
        })?;
        assert_eq!(ordered(world), 100 * MEBI, "the driver is still at work");
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

/// The driver has grown the storage, and fails then. Its node does not know that there is more than it was told.
pub fn failed_late() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        let late = r#"[ "$4" -le 20971520 ] || { echo "$4" >"$(volume "$2")/size"; echo '{"status":"Failure","message":"it failed late"}'; exit 1; }"#;
        start(world, late)?;
        world.may_ask_for_less = true;
        world.ask_for("data", "100Mi");
        world.eventually("its author to be told", |world| {
            world.told("it failed late")
        })?;
        world.ask_for("data", "20Mi");
        world.eventually("what is there to be counted", |world| {
            counts(world, "100Mi")
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [100 * MEBI]);
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
        let lowered = Instant::now();
        world.eventually("a second to pass", |_| {
            lowered.elapsed() > Duration::from_secs(1)
        })?;
        assert_eq!(
            ordered(world),
            100 * MEBI,
            "whether it has grown is unknown"
        );
        assert_eq!(allocated(world), "100Mi");
        world.start_agent("node", &[]);
        world.eventually("what is had to be counted", |world| counts(world, "100Mi"))?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The shell commands of a driver that grows a volume to `size` bytes, or more, and hangs then.
fn grow_and_hang(world: &World, size: u64) -> String {
    let (begun, goes_on) = (world.path("begun"), world.path("goes-on"));
    format!(
        r#"[ "$4" -lt {size} ] || {{ echo "$4" >"$(volume "$2")/size"; touch {begun}; until [ -e {goes_on} ]; do sleep 0.1; done; }}"#
    )
}

/// Asks for more, and kills the agent when its driver has grown the storage, before it could tell.
fn grow_untold(world: &mut World, size: &str) -> Result<(), String> {
    let (begun, goes_on) = (world.path("begun"), world.path("goes-on"));
    world.ask_for("data", size);
    world.eventually("the driver to have grown it", |_| {
        fs::exists(&begun).unwrap()
    })?;
    world.kill("node");
    assert_eq!(allocated(world), size);
    fs::write(&goes_on, "").unwrap();
    Ok(())
}

/// Loses the NodeVolume, and waits until it is made anew.
fn lose_node_volume(world: &mut World) -> Result<(), String> {
    let name = world.the_claim("data")["spec"]["volumeName"].clone();
    world.remove_by_force(&Key::new("NodeVolume", "", name.as_str().unwrap()));
    world.eventually("it to be made anew", |world| {
        world.server.store().count("NodeVolume") == 1
    })
}

/// The NodeVolume is lost after the request was lowered. What was ordered is still in the claim's status.
pub fn forgotten() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        let grows = grow_and_hang(world, 100 * MEBI);
        start(world, &grows)?;
        grow_untold(world, "5Gi")?;
        world.ask_for("data", "20Mi");
        lose_node_volume(world)?;
        world.start_agent("node", &[]);
        world.eventually("what is had to be counted", |world| counts(world, "5Gi"))?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [5 << 30]);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The NodeVolume is lost after the request was lowered, and its node cannot have what was ordered.
pub fn forgotten_without_room(kubernetes: Kubernetes) {
    tell(World::beside(kubernetes), |world| {
        let full = r#"[ "$4" -le 20971520 ] || { echo '{"status":"Failure","message":"there is no room","errorClass":"exhausted"}'; exit 1; }"#;
        start(world, full)?;
        world.kill("node");
        world.ask_for("data", "100Mi");
        world.eventually("more to be ordered", |world| ordered(world) == 100 * MEBI)?;
        world.ask_for("data", "20Mi");
        lose_node_volume(world)?;
        world.start_agent("node", &[]);
        world.eventually("the claim to have less", |world| counts(world, "20Mi"))?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [20 * MEBI]);
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

/// The driver says far too much of what it has made, and then fails to grow it.
pub fn overstated_and_failed() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.start_on_a_node();
        let much = 5_u64 << 40;
        let full = r#"echo '{"status":"Failure","message":"there is no room","errorClass":"exhausted"}'; exit 1"#;
        let script = SCRIPT
            .replace("/var/lib/lab/plain", &world.path("node/storage"))
            .replace(
                "\\\"capacity\\\":$size",
                &format!("\\\"capacity\\\":{much}"),
            )
            .replace("expandvolume)\n", &format!("expandvolume)\n{full}\n"));
        assert!(script.contains(&much.to_string()));
        world.install_script("node", &script);
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.ask_for("data", "100Mi");
        world.eventually("the author to be told", |world| {
            let status = &world.the_claim("data")["status"];
            status["conditions"]
                .to_string()
                .contains("there is no room")
        })?;
        let capacity = &world.the_claim("data")["status"]["capacity"]["storage"];
        assert_eq!(*capacity, "10Mi", "it has not grown");
        Ok(())
    });
}
