//! Writes of claims' authors while storage is made, with the permissions of any user who may create claims.

use crate::world::{World, tell};
use serde_json::json;

/// A claim whose storage exists and whose driver has not answered yet. Its author writes its future volume's name.
fn say_name(world: &mut World) -> Result<(), String> {
    world.start_with_a_late_driver();
    world.eventually("storage to be made", |world| {
        world.storage().values().any(|size| *size > 0)
    })?;
    let uid = world.the_claim("data")["metadata"]["uid"].clone();
    let name = format!("pvc-{}", uid.as_str().unwrap());
    world.edit("data", &json!({"spec": {"volumeName": name}}));
    Ok(())
}

pub fn name() {
    tell(World::start(), |world| {
        say_name(world)?;
        world.eventually("the claim to be bound all the same", |world| {
            world.is_bound("data")
        })?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

pub fn binding_and_end() {
    for by_force in [false, true] {
        tell(World::start(), |world| {
            say_name(world)?;
            let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
            world.edit("data", &json!({"metadata": {"annotations": bound}}));
            world.eventually("Kubernetes to miss the volume", |world| {
                world.the_claim("data")["status"]["phase"] == "Lost"
            })?;
            world.delete_claim("data");
            if by_force {
                world.edit("data", &json!({"metadata": {"finalizers": null}}));
            }
            world.eventually("nothing to be left", World::nothing_is_left)
        });
    }
}

pub fn provisioner() {
    tell(World::start(), |world| {
        world.start_with_a_late_driver();
        world.eventually("storage to be ordered", |world| {
            world.server.store().count("NodeVolume") == 1
        })?;
        // Without an agent, no answer causes an event.
        world.kill("node");
        // In one write: otherwise Kubernetes sets the annotation again.
        let nobody = json!({
            "volume.kubernetes.io/storage-provisioner": null,
            "volume.beta.kubernetes.io/storage-provisioner": null,
        });
        let uid = world.the_claim("data")["metadata"]["uid"].clone();
        let name = format!("pvc-{}", uid.as_str().unwrap());
        world.edit(
            "data",
            &json!({
                "metadata": {"annotations": nobody, "finalizers": null},
                "spec": {"volumeName": name},
            }),
        );
        world.delete_claim("data");
        world.eventually("its storage not to be wanted", |world| {
            let node_volume = world.server.store().all("NodeVolume").remove(0);
            node_volume["spec"]["state"] == "Absent"
        })?;
        world.start_agent("node", &[]);
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
