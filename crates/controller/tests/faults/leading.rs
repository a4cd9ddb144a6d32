//! The leader goes on for as long as it holds the lease, and no longer.

use crate::world::{World, tell};
use flexvol_apiserver::{Fault, Key};
use serde_json::{Value, json};

/// Lease duration in seconds: enough for one renewal without an answer and two with one, also on a busy machine.
const LASTS: u16 = 24;

fn lease(world: &World) -> Value {
    world.get("Lease", "flexvol", "flexvol-controller")["spec"].clone()
}

fn wait_renewed(world: &mut World) -> Result<(), String> {
    let before = lease(world)["renewTime"].clone();
    world.eventually("the lease to be renewed", |world| {
        lease(world)["renewTime"] != before
    })
}

pub fn unanswered() {
    tell(World::start(), |world| {
        world.start_leader(LASTS, &[]);
        wait_renewed(world)?;
        for fault in [Fault::LostAnswer, Fault::Late, Fault::Unavailable] {
            world.server.fail_lease(fault);
            world.eventually("a renewal to fail", |world| {
                !world.server.is_to_fail_lease()
            })?;
            for _ in 0..3 {
                wait_renewed(world)?;
            }
        }
        assert_eq!(lease(world)["leaseTransitions"], 1, "nobody else led");
        Ok(())
    });
}

pub fn taken() {
    tell(World::start(), |world| {
        world.start_leader(LASTS, &[]);
        wait_renewed(world)?;
        let key = Key::new("Lease", "flexvol", "flexvol-controller");
        let another = json!({"spec": {"holderIdentity": "another"}});
        world.server.store().merge(&key, &another).unwrap();
        world.wait_ended("controller")?;
        assert_eq!(lease(world)["holderIdentity"], "another");
        Ok(())
    });
}
