//! Writes that somebody's admission webhook fails or delays, and events that the API server does not take.

use crate::{
    refused::refused,
    world::{SCRIPT, World, tell},
};
use flexvol_apiserver::{Key, Kubernetes, Refused};
use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

/// What the API server answers while a webhook that must not be passed over has no pod.
fn down() -> Option<Refused> {
    let message = "Internal error occurred: failed calling webhook \"policy.example.com\": no endpoints available for service \"policy\"";
    refused(500, "InternalError", message)
}

fn bind(world: &mut World) -> Result<(), String> {
    world.start_on_a_node();
    world.claim("data", "plain");
    world.eventually("the claim to be bound", |world| world.is_bound("data"))
}

fn expect_told(world: &mut World) -> Result<(), String> {
    world.eventually("its author to be told", |world| {
        world.told("failed calling webhook")
    })
}

pub fn down_while_it_is_made() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let write = "PATCH PersistentVolumeClaim data";
        world.server.refuse(write, down());
        world.claim("data", "plain");
        expect_told(world)?;
        world.server.refuse(write, None);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}

pub fn down_while_it_grows() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        bind(world)?;
        let claim = world.the_claim("data");
        let name = claim["spec"]["volumeName"].as_str().unwrap();
        let write = format!("PATCH NodeVolume {name}");
        world.server.refuse(&write, down());
        world.ask_for("data", "20Mi");
        expect_told(world)?;
        world.server.refuse(&write, None);
        world.eventually("the claim to grow", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
        })
    });
}

pub fn slow() {
    tell(World::start(), |world| {
        // Longer than a read may take, and shorter than the API server waits for a webhook.
        let slow = Duration::from_secs(6);
        world.server.delay("PATCH PersistentVolumeClaim data", slow);
        bind(world)
    });
}

pub fn refused_events() {
    tell(World::start(), |world| {
        let name = "POST Event ";
        let message = "the server is currently unable to handle the request";
        let refusal = refused(503, "ServiceUnavailable", message);
        world.server.refuse(name, refusal);
        world.start_on_a_node();
        let claim = json!({
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "plain",
                "resources": {"requests": {"storage": "10Mi"}},
                "selector": {"matchLabels": {"a": "b"}},
            },
        });
        world.make("PersistentVolumeClaim", claim);
        thread::sleep(Duration::from_secs(3));
        world.server.refuse(name, None);
        let begun = Instant::now();
        let edit = json!({"metadata": {"labels": {"edited": "yes"}}});
        world.edit("data", &edit);
        world.eventually("the event", |world| {
            world.told("the claim has a selector") || begun.elapsed() > Duration::from_secs(100)
        })?;
        assert!(world.told("the claim has a selector"), "it is held back");
        Ok(())
    });
}

/// The set's claim was asked for what it cannot have before the annotation was lowered.
pub fn lowered_annotation() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.start_on_a_node();
        let full = r#"[ "$4" -le 20971520 ] || { echo '{"status":"Failure","message":"there is no room","errorClass":"exhausted"}'; exit 1; }"#;
        let script = SCRIPT
            .replace("/var/lib/lab/plain", &world.path("node/storage"))
            .replace("expandvolume)\n", &format!("expandvolume)\n{full}\n"));
        world.install_script("node", &script);
        world.claim("data-db-0", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data-db-0"))?;
        let set = json!({
            "metadata": {"name": "db", "namespace": "default", "annotations": {"grow.flexvol.dev/data": "100Mi"}},
            "spec": {
                "replicas": 1, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": {},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
            },
        });
        world.make("StatefulSet", set);
        world.eventually("its owner to be told", |world| {
            world.told("there is no room")
        })?;
        let key = Key::new("StatefulSet", "default", "db");
        let lower = json!({"metadata": {"annotations": {"grow.flexvol.dev/data": "20Mi"}}});
        world.server.store().merge(&key, &lower).unwrap();
        world.eventually("its owner to be told what to lower", |world| {
            world.told(
                "claim data-db-0 asks for 100Mi, and has 10Mi; for 20Mi, lower its own request",
            )
        })?;
        world.ask_for("data-db-0", "20Mi");
        world.eventually("the claim to have 20Mi", |world| {
            world.the_claim("data-db-0")["status"]["capacity"]["storage"] == "20Mi"
        })
    });
}
