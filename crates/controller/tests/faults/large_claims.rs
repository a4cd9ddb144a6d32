//! Oversized claims keep their storage, and get nothing that belonged to another claim.

use crate::world::{World, tell};
use serde_json::{Value, json};
use std::thread::yield_now;

/// Finalizers that the API server accepts (`ValidateFinalizerName` in apimachinery/pkg/api/validation): it bounds their
/// lengths, not their number.
fn finalizers() -> Value {
    let domain = ["d", "e", "f"].map(|letter| letter.repeat(60)).join(".");
    let names = (0..300).map(|number| Value::from(format!("{domain}.example.com/n{number:062}")));
    names.collect()
}

/// Another claim is created with the name of a deleted one, and is too large.
pub fn successor() {
    replaced_by(&json!({"finalizers": finalizers()}));
}

/// Another claim with such metadata is created with the name of a deleted one.
pub fn replaced_by(metadata: &Value) {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let uid = world.the_claim("data")["metadata"]["uid"].clone();
        world.delete_claim("data");
        let another = json!({
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": {"requests": {"storage": "1"}},
            },
        });
        while !world.the_claim("data").is_null() {
            yield_now();
        }
        world.make("PersistentVolumeClaim", another);
        world.edit("data", &json!({"metadata": metadata}));
        assert_ne!(world.the_claim("data")["metadata"]["uid"], uid);
        world.eventually("nothing to be left of the former one", |world| {
            let store = world.server.store();
            let left = store.count("PersistentVolume") + store.count("NodeVolume");
            drop(store);
            left == 0 && world.storage().is_empty()
        })?;
        assert!(!world.the_claim("data").is_null());
        Ok(())
    });
}

/// A user's own claim becomes too large, which is reported and loses no data.
pub fn own() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let before = world.the_claim("data")["metadata"]["finalizers"].clone();
        world.edit("data", &json!({"metadata": {"finalizers": finalizers()}}));
        world.ask_for("data", "20Mi");
        world.eventually("its author to be told", |world| {
            world.told("the claim is too large to be understood")
        })?;
        let volumes = world.server.store().all("PersistentVolume");
        assert_eq!(volumes.len(), 1);
        let kept = world.the_claim("data")["metadata"]["finalizers"].clone();
        assert_eq!(kept, finalizers(), "nobody takes what was not read");
        world.edit("data", &json!({"metadata": {"finalizers": before}}));
        world.eventually("it to grow", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
        })?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
