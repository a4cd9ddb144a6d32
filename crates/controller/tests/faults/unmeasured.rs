//! Growth that kubelet has to finish or to do alone, without Kubernetes' own expander.

use crate::world::{MEBI, SCRIPT, World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::json;
use std::fs;

/// A driver that makes volumes, whose file systems kubelet grows.
const SIZELESS: &str = r#"#!/bin/sh
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":true}}' ;;
provision) echo '{"status":"Success","options":{}}' ;;
delete) echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' && exit 1 ;;
esac
"#;

pub fn kubelet_expands() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        world.install_script("node", SIZELESS);
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.ask_for("data", "20Mi");
        world.eventually("kubelet to be asked", |world| {
            let status = world.the_claim("data")["status"].clone();
            status["conditions"][0]["type"] == "FileSystemResizePending"
                && status["allocatedResources"]["storage"] == "20Mi"
        })?;
        // Kubelet acts if the volume's capacity exceeds the claim's.
        let volume = world.server.store().all("PersistentVolume").remove(0);
        assert_eq!(volume["spec"]["capacity"]["storage"], "20Mi");
        let grown = json!({
            "capacity": {"storage": "20Mi"}, "conditions": null, "allocatedResourceStatuses": null,
        });
        let claim = Key::new("PersistentVolumeClaim", "default", "data");
        world.server.store().merge_status(&claim, &grown).unwrap();
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The new version of a driver grows only the storage. It is installed just after the agent's last heartbeat, and the
/// next one is a minute away.
pub fn upgraded() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.eventually("the heartbeat after that", |world| {
            let calls = fs::read_to_string(world.path("calls")).unwrap();
            let asked = |call: &&str| call.starts_with("capacity ");
            calls.lines().filter(asked).count() == 2
        })?;
        let script = SCRIPT
            .replace("/var/lib/lab/plain", &world.path("node/storage"))
            .replace(r#""requiresFSResize":false"#, r#""requiresFSResize":true"#);
        world.install_script("node", &script);
        world.ask_for("data", "20Mi");
        let told = |world: &World| {
            let status = world.the_claim("data")["status"].clone();
            (
                status["capacity"]["storage"].clone(),
                status["conditions"][0]["type"].clone(),
            )
        };
        world.eventually("the growth to be told", |world| {
            let (shown, waits) = told(world);
            shown == "20Mi" || waits == "FileSystemResizePending"
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [20 * MEBI]);
        assert_eq!(
            told(world),
            (json!("10Mi"), json!("FileSystemResizePending")),
            "kubelet has to grow the file system first"
        );
        Ok(())
    });
}

/// The driver without sizes, as one that grows nothing.
fn without_growth() -> String {
    SIZELESS.replace(r#""requiresFSResize":true"#, r#""requiresFSResize":false"#)
}

/// A driver tells no sizes and grows nothing. Its next version does.
fn replaced_by(new: &str) {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        world.install_script("node", &without_growth());
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.ask_for("data", "20Mi");
        world.eventually("its author to be told", |world| {
            world.told("nobody can grow this volume")
        })?;
        world.install_script("node", new);
        world.ask_for("data", "30Mi");
        world.eventually("it to grow", |world| {
            let status = world.the_claim("data")["status"].clone();
            let conditions = status["conditions"].to_string();
            status["capacity"]["storage"] == "30Mi"
                || conditions.contains("FileSystemResizePending")
        })
    });
}

pub fn driver_that_learns_to_measure() {
    let grows = r#"expandvolume) echo "{\"status\":\"Success\",\"volumeNewSize\":$4}" ;;
delete)"#;
    replaced_by(&without_growth().replace("delete)", grows));
}

pub fn driver_that_learns_to_grow_file_systems() {
    replaced_by(SIZELESS);
}
