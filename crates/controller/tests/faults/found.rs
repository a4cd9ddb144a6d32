//! Finding the API server.

use crate::world::{World, tell};
use std::fs;

pub fn by_name() {
    tell(World::start(), |world| {
        world.name_server();
        world.node("node");
        world.start_controller(&[]);
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.kill("controller");
        world.kill("node");

        world.without_programs();
        world.start_controller(&[]);
        world.wait_ended("controller")?;
        world.start_agent("node", &[]);
        world.wait_ended("node")?;
        for program in ["controller", "node"] {
            let said = fs::read_to_string(world.path(&format!("{program}.log"))).unwrap();
            assert!(said.contains("say its address instead"), "{said}");
        }
        Ok(())
    });
}
