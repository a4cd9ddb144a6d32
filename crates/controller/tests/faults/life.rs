//! One claim's life: created, grown, deleted.

use crate::world::{MEBI, World};
use flexvol_apiserver::Plan;
use std::{fs, thread, time::Duration};

/// Runs it, with a fault if one is planned. Returns whether the fault has happened.
pub fn live(plan: Option<Plan>) -> Result<bool, String> {
    let mut world = World::start();
    if let Some(plan) = plan {
        world.server.fail(plan);
    }
    begin(&mut world)?;
    let happened = !world.server.is_to_fail();
    if !happened {
        logs_are_for_people(&world)?;
    }
    Ok(happened)
}

/// Runs it while a program ends at one of its writes. Returns whether it did.
pub fn live_killed(program: &'static str, end: String) -> Result<bool, String> {
    let mut world = World::start();
    world.will_end(program, end);
    begin(&mut world)?;
    // A program that ends after its last write may do so a moment later.
    for _ in 0..20 {
        world.restart_killed()?;
        if world.has_ended() {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(world.has_ended())
}

fn begin(world: &mut World) -> Result<(), String> {
    world.start_on_a_node();
    whole(world).map_err(|why| format!("{why}\n{}", world.log()))
}

fn whole(world: &mut World) -> Result<(), String> {
    world.claim("data", "plain");
    world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
    has_storage(world, 10 * MEBI)?;
    world.ask_for("data", "20Mi");
    world.eventually("the claim to have grown", |world| {
        world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
    })?;
    has_storage(world, 20 * MEBI)?;
    let status = world.the_claim("data")["status"].clone();
    if !status["allocatedResourceStatuses"].is_null() || !status["conditions"].is_null() {
        return Err(format!("a claim that has grown says {status}"));
    }
    world.eventually("the claim to be let go of", |world| {
        let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
        !finalizers.to_string().contains("flexvol.dev")
    })?;
    let calls = fs::read_to_string(world.path("calls")).unwrap();
    if calls.lines().any(|call| call.starts_with("delete ")) {
        return Err(format!(
            "storage of a claim that is there was deleted:\n{calls}"
        ));
    }
    world.delete_claim("data");
    world.eventually("nothing to be left", World::nothing_is_left)?;
    settles(world)
}

/// Checks that every line of the programs' logs has the documented fields, and no text that only Rust's `Debug` writes.
fn logs_are_for_people(world: &World) -> Result<(), String> {
    let mut steps = 0;
    for file in world.log_files() {
        let text = fs::read_to_string(world.path(&file)).map_err(|error| error.to_string())?;
        for line in text.lines() {
            let entry: serde_json::Value =
                serde_json::from_str(line).map_err(|error| format!("{file}: {line}: {error}"))?;
            let is_whole = ["ts", "level", "msg"]
                .iter()
                .all(|key| entry[key].is_string());
            let members = entry.as_object().into_iter().flatten();
            let debug = members
                .filter_map(|(_, value)| value.as_str())
                .find(|text| {
                    ["Some(", "None", "Bytes(", "{ "]
                        .iter()
                        .any(|debug| text.contains(debug))
                });
            if !is_whole || debug.is_some() {
                return Err(format!(
                    "{file} has an entry that is not for people: {line}"
                ));
            }
            steps += usize::from(entry["step"].is_string());
        }
    }
    match steps {
        0 => Err("the logs tell of no step".to_owned()),
        _ => Ok(()),
    }
}

/// Waits until there are only heartbeats.
fn settles(world: &mut World) -> Result<(), String> {
    let asked = |world: &World| {
        let all = world.server.requests().into_iter();
        let all = all.filter(|request| {
            !request.contains("StorageNode") && !request.contains("StorageClass")
        });
        all.collect::<Vec<_>>()
    };
    let mut before = asked(world);
    world.eventually("the programs to rest", |world| {
        thread::sleep(Duration::from_millis(200));
        let now = asked(world);
        let rests = now == before;
        before = now;
        rests
    })
}

fn has_storage(world: &World, size: u64) -> Result<(), String> {
    let all = world.storage();
    if all.len() == 1 && all.values().all(|found| *found == size) {
        return Ok(());
    }
    Err(format!("storage of {all:?}, and not of {size}"))
}
