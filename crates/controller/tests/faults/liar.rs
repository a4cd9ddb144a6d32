//! An agent that says it has room, again and again, and makes nothing.

use crate::{
    programs::DRIVER,
    unable::known,
    world::{World, tell},
};
use flexvol_apiserver::Key;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

const CLAIMS: usize = 3;

/// It answers each request so, and then reports more room, or the room of which it had said nothing meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Exhausted,
    Failed,
    /// It says that it has made the volume, with an option that Kubernetes allows no persistent volume to have.
    Rejected,
}

pub fn keeps_no_claim(answer: Answer) {
    tell(World::start(), |world| {
        for node in ["liar", "small"] {
            world.node(node);
        }
        world.start_controller(&[]);
        world.start_agent("small", &["--heartbeat-seconds=5"]);
        world.make("StorageNode", json!({"metadata": {"name": "liar"}}));
        let mut room = 1_i64 << 50;
        report(world, room);
        known(world, 2)?;
        for number in 0..CLAIMS {
            world.claim(&format!("c{number}"), "plain");
        }
        let begun = Instant::now();
        let mut beat = begun;
        let mut lied = 0;
        while bound(world) < CLAIMS && begun.elapsed() < Duration::from_secs(120) {
            if beat.elapsed() > Duration::from_secs(5) {
                beat = Instant::now();
                report(world, room);
            }
            // The store is locked for the time of one statement.
            let all = world.server.store().all("NodeVolume");
            for node_volume in all {
                let generation = &node_volume["metadata"]["generation"];
                let is_done = node_volume["status"]["observedGeneration"] == *generation;
                if node_volume["spec"]["node"] != "liar" || is_done {
                    continue;
                }
                let status = if node_volume["spec"]["state"] == "Absent" {
                    if answer == Answer::Failed {
                        let nothing = json!({"capacities": {"plain": null}});
                        merge_status(world, "StorageNode", "liar", &nothing);
                        thread::sleep(Duration::from_millis(50));
                    }
                    room += 1 << 40;
                    report(world, room);
                    thread::sleep(Duration::from_millis(300));
                    json!({"state": "Absent", "error": null, "observedGeneration": generation})
                } else {
                    lied += 1;
                    let failed = |class: &str| {
                        let error = json!({"class": class, "message": "no"});
                        json!({"failures": 5, "error": error, "observedGeneration": generation})
                    };
                    match answer {
                        Answer::Exhausted => failed("exhausted"),
                        Answer::Failed => failed("retryable"),
                        Answer::Rejected => json!({
                            "state": "Present", "size": 10 << 20, "observedGeneration": generation,
                            "source": {"options": {"pool": "", "Example.K8s.io/x": "y"}},
                        }),
                    }
                };
                let name = node_volume["metadata"]["name"].as_str().unwrap();
                merge_status(world, "NodeVolume", name, &status);
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert!(lied >= CLAIMS, "it was not asked: {lied}");
        assert_eq!(bound(world), CLAIMS, "bound elsewhere, after {lied} lies");
        let requests = world.server.requests().into_iter();
        let made = requests.filter(|asked| asked == "POST PersistentVolume ");
        assert_eq!(made.count(), CLAIMS, "none is tried that cannot be");
        Ok(())
    });
}

fn bound(world: &World) -> usize {
    (0..CLAIMS)
        .filter(|number| world.is_bound(&format!("c{number}")))
        .count()
}

fn report(world: &World, room: i64) {
    let status = json!({
        "drivers": {DRIVER: {}}, "capacities": {"plain": room},
        "lastHeartbeatTime": Timestamp::now().to_string(), "deadlineSeconds": 3,
    });
    merge_status(world, "StorageNode", "liar", &status);
}

/// An object that is gone by now needs no status.
fn merge_status(world: &World, kind: &str, name: &str, status: &serde_json::Value) {
    drop(
        world
            .server
            .store()
            .merge_status(&Key::new(kind, "", name), status),
    );
}
