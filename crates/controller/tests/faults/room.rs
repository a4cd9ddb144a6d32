//! Capacities that are published for the scheduler.

use crate::world::{World, tell};
use flexvol_apiserver::Key;
use serde_json::{Value, json};

/// The driver, with the provisioner name by which the scheduler considers its capacity.
const NAMED: &str = "lab.example/plain=plain.lab.example";

/// The Deployment is recreated: its published capacities have to go with it, because nothing would correct them.
pub fn owned() {
    tell(World::start(), |world| {
        let deployment = || json!({"metadata": {"name": "own", "namespace": "flexvol"}});
        let owners = |world: &World| {
            let told = world.server.store().all("CSIStorageCapacity").into_iter();
            Vec::from_iter(told.map(|told| told["metadata"]["ownerReferences"].clone()))
        };
        world.node("node");
        world.class("known", &json!({"provisioner": "plain.lab.example"}));
        world.make("Deployment", deployment());
        world.install("node");
        let plugins = format!("--plugin-dir={}", world.path("node/plugins"));
        let agent = ["--node=node", &plugins, "--heartbeat-seconds=1"];
        world.start_program_of("node", "agent", NAMED, &agent);
        let own = ["--identity=one", "--lease-seconds=120", "--deployment=own"];
        for _ in 0..2 {
            world.start_program_of("controller", "controller", NAMED, &own);
            let found = world.get("Deployment", "flexvol", "own");
            let owner: Value = json!([{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "own",
                "uid": found["metadata"]["uid"],
            }]);
            world.eventually("room to be told, as a part of it", |world| {
                owners(world) == [owner.clone()]
            })?;
            world.kill("controller");
            let key = Key::new("Deployment", "flexvol", "own");
            world.server.store().remove(&key).unwrap();
            world.make("Deployment", deployment());
        }
        Ok(())
    });
}
