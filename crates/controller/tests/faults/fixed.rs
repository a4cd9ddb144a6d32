//! Volumes that cannot grow at all.

use crate::world::{MEBI, World, tell};
use serde_json::json;

pub fn told() {
    tell(World::start(), |world| {
        world.node("node");
        world.class("fixed", &json!({"parameters": {"fault": "fixed"}}));
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("data", "fixed");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.ask_for("data", "20Mi");
        let words = "driver lab.example/plain cannot grow its volumes: it has no expandvolume";
        world.eventually("its author to be told", |world| {
            let conditions = &world.the_claim("data")["status"]["conditions"];
            world.told(words) && conditions.to_string().contains(words)
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
