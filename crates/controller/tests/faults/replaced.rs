//! Claims that were recreated with Kubernetes' own annotations, and recreated classes.

use crate::world::{World, tell};
use flexvol_apiserver::Key;
use serde_json::json;

pub fn grows() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound and let go of", |world| {
            let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
            world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
        })?;
        let replaced = json!({
            "metadata": {"annotations": null},
            "spec": {"resources": {"requests": {"storage": "20Mi"}}},
        });
        world.edit("data", &replaced);
        world.eventually("the claim to have grown", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
        })
    });
}

/// The volume was never seen, so the claim gets one by its recreated class.
pub fn class() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.class(
            "pool",
            &json!({"parameters": {"pool": "old", "fault": "late"}}),
        );
        world.claim("data", "pool");
        world.eventually("storage to be made", |world| !world.storage().is_empty())?;
        let class = Key::new("StorageClass", "", "pool");
        world.server.store().remove(&class).unwrap();
        world.class("pool", &json!({"parameters": {"pool": "new"}}));
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let volume = &world.server.store().all("PersistentVolume")[0];
        assert_eq!(volume["spec"]["flexVolume"]["options"]["pool"], "new");
        let storage = Vec::from_iter(world.storage().into_keys());
        assert_eq!(storage.len(), 1, "{storage:?}");
        assert!(storage[0].starts_with("node/new."), "{storage:?}");
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
