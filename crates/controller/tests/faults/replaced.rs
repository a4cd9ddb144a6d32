//! Claims that somebody replaced, with what Kubernetes has written into them.

use crate::world::{World, tell};
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
