//! Objects of others, and objects that were released, are left alone.

use crate::world::{World, tell};
use flexvol_apiserver::Key;
use serde_json::json;
use std::{
    fs,
    time::{Duration, Instant},
};

fn calls(world: &World, callout: &str) -> usize {
    let calls = fs::read_to_string(world.path("calls")).unwrap_or_default();
    calls
        .lines()
        .filter(|call| call.starts_with(callout))
        .count()
}

pub fn another_driver() {
    tell(World::start(), |world| {
        world.node("node");
        world.class("late", &json!({"parameters": {"fault": "late"}}));
        world.start_controller(&["--rate=1000"]);
        world.start_another_controller("lab.example/another");
        world.start_agent("node", &[]);
        world.eventually("both to lead", |world| {
            let leases = world.server.requests().into_iter();
            leases
                .filter(|asked| asked.starts_with("WATCH NodeVolume"))
                .count()
                >= 3
        })?;
        world.claim("data", "late");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        assert_eq!(
            (calls(world, "provision "), calls(world, "delete ")),
            (1, 0)
        );
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

pub fn former_driver() {
    tell(World::start(), |world| {
        world.start_with_a_late_driver();
        world.eventually("storage to be made", |world| !world.storage().is_empty())?;
        world.kill("controller");
        world.start_another_controller("lab.example/another");
        world.eventually("its author to be told", |world| {
            world.told("storage was ordered for this claim of a driver that this controller does not serve")
        })?;
        assert_eq!(calls(world, "delete "), 0);
        world.kill("another");
        world.start_controller(&["--rate=1000"]);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}

pub fn let_go() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound and let go of", |world| {
            let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
            world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
        })?;
        let name = world.the_claim("data")["spec"]["volumeName"].clone();
        let key = Key::new("PersistentVolume", "", name.as_str().unwrap());
        let found = world.server.store().get(&key).unwrap();
        let mut finalizers = found["metadata"]["finalizers"].as_array().unwrap().clone();
        finalizers.push("example.com/other".into());
        let held = json!({"metadata": {"finalizers": finalizers}});
        world.server.store().merge(&key, &held).unwrap();
        world.delete_claim("data");
        world.eventually("the volume to be let go of", |world| {
            let volume = world.server.store().get(&key).unwrap_or_default();
            let finalizers = volume["metadata"]["finalizers"].to_string();
            !finalizers.contains("flexvol.dev") && world.server.store().count("NodeVolume") == 0
        })?;
        let touched = json!({"metadata": {"labels": {"touched": "yes"}}});
        world.server.store().merge(&key, &touched).unwrap();
        let begun = Instant::now();
        world.eventually("some time to pass", |_| {
            begun.elapsed() > Duration::from_secs(1)
        })?;
        world.kill("node");
        let free = json!({"metadata": {"finalizers": null}});
        world.server.store().merge(&key, &free).unwrap();
        world.eventually("nothing to be left", World::nothing_is_left)?;
        let requests = world.server.requests();
        let node_volumes = requests
            .iter()
            .filter(|asked| asked.starts_with("POST NodeVolume"));
        assert_eq!((node_volumes.count(), calls(world, "delete ")), (1, 1));
        Ok(())
    });
}
