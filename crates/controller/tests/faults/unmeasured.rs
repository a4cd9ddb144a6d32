//! Growth of volumes whose driver reports no sizes, without Kubernetes' own expander.

use crate::world::{World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::json;

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
