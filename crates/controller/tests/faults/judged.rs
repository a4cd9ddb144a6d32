//! What the webhook for claims says of a claim that asks for more than its node has.

use crate::{
    flood,
    world::{World, tell},
};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Returns the verdict on a request for two tebibytes.
fn verdict(world: &World, ports: &flood::Ports) -> Value {
    let old = world.the_claim("data");
    let mut new = old.clone();
    new["spec"]["resources"]["requests"]["storage"] = "2Ti".into();
    let request = json!({"uid": "u", "namespace": "default", "object": new, "oldObject": old});
    let question = json!({"request": request}).to_string();
    let connector = flood::connector(world);
    let answer = flood::asked(&connector, 1, ports.webhooks, "/claims", &question);
    let answer = Runtime::new().unwrap().block_on(answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str::<Value>(body).unwrap()["response"].clone()
}

/// The NodeVolume of the claim's volume was lost and made anew.
pub fn after_a_loss() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.class("pooled", &json!({"parameters": {"fault": "none"}}));
        let ports = flood::serve(world)?;
        world.claim("data", "pooled");
        world.eventually("the claim to be bound, and the capacity told", |world| {
            let node = world.get("StorageNode", "", "node");
            world.is_bound("data") && !node["status"]["capacities"]["pooled"].is_null()
        })?;
        let name = world.the_claim("data")["spec"]["volumeName"].clone();
        let name = name.as_str().unwrap();
        for lost in [false, true] {
            if lost {
                world.remove_by_force(&Key::new("NodeVolume", "", name));
                world.eventually("the NodeVolume to be made anew and answered", |world| {
                    world.get("NodeVolume", "", name)["status"]["state"] == "Present"
                })?;
            }
            let verdict = verdict(world, &ports);
            assert_eq!(verdict["allowed"], false, "lost: {lost}: {verdict}");
        }
        Ok(())
    });
}
