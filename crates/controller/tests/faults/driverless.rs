//! Storage is ordered of a node whose driver has been uninstalled meanwhile, or whose agent has ended.

use crate::world::{World, tell};
use serde_json::Value;
use std::fs;

/// Heartbeats every second, of which three may be missed.
const HEARTBEAT: &str = "--heartbeat-seconds=1";
const SILENCE: &str = "--silence-seconds=4";

const MISSING: &str = "node one: driver lab.example/plain is not installed";

/// Starts one node with its agent, and waits until the controller knows its driver.
fn start_known(world: &mut World, heartbeat: &[&str]) -> Result<(), String> {
    world.node("one");
    world.start_controller(&["--rate=1000", SILENCE]);
    world.start_agent("one", heartbeat);
    world.eventually("the node to be known", |world| {
        !world.get("StorageNode", "", "one")["status"]["drivers"].is_null()
    })
}

/// Uninstalls the driver of a node.
fn uninstall(world: &World, node: &str) {
    let place = world.path(&format!("{node}/plugins/lab.example~plain"));
    fs::remove_dir_all(place).unwrap();
}

/// The NodeVolume of the only claim.
fn order(world: &World) -> Value {
    let all = world.server.store().all("NodeVolume");
    all.into_iter().next().unwrap_or_default()
}

/// There is no other node, and the claim gets its volume as soon as the driver is back.
pub fn taken_from_the_only_node() {
    tell(World::start(), |world| {
        start_known(world, &[HEARTBEAT])?;
        world.kill("one");
        uninstall(world, "one");
        // A restarted agent knows no former requests.
        fs::create_dir_all(world.path("one/plugins")).unwrap();
        world.claim("data", "plain");
        world.eventually("storage to be ordered", |world| !order(world).is_null())?;
        world.start_agent("one", &[]);
        world.eventually("its author to be told", |world| world.told(MISSING))?;
        world.kill("one");
        world.install("one");
        world.start_agent("one", &[HEARTBEAT]);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}

/// The outcome of a call is uncertain, so no other node is asked before the driver answers.
pub fn taken_while_it_works() {
    tell(World::start(), |world| {
        world.class(
            "late",
            &serde_json::json!({"parameters": {"fault": "late"}}),
        );
        start_known(world, &[HEARTBEAT])?;
        world.claim("data", "late");
        world.eventually("its storage to be made", |world| {
            !world.storage().is_empty()
        })?;
        world.kill("one");
        uninstall(world, "one");
        fs::create_dir_all(world.path("one/plugins")).unwrap();
        world.node("two");
        world.start_agent("two", &[HEARTBEAT]);
        world.start_agent("one", &[HEARTBEAT]);
        world.eventually("its author to be told", |world| world.told(MISSING))?;
        world.eventually("it to be called again and again", |world| {
            order(world)["status"]["failures"].as_u64() >= Some(6)
        })?;
        let asked = order(world);
        assert_eq!(asked["spec"]["node"], "one", "storage may be there");
        assert_eq!(world.nodes_of_storage(), ["one"]);
        world.install("one");
        let back = std::time::Instant::now();
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        // The agent retries at once when the driver is back, whatever its backoff.
        assert!(back.elapsed().as_secs() < 20, "{:?}", back.elapsed());
        assert_eq!(world.storage().len(), 1);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The agent has ended, and the node is ready: the event names the agent, and all goes on once it is back.
pub fn silent_alone() {
    tell(World::start(), |world| {
        start_known(world, &[HEARTBEAT])?;
        world.kill("one");
        world.claim("data", "plain");
        world.eventually("its author to be told", |world| {
            world.told("its agent was last heard of at 20")
        })?;
        world.start_agent("one", &[HEARTBEAT]);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(world.storage().len(), 1);
        Ok(())
    });
}
