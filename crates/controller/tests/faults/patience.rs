//! Impossible requests are not retried in a tight loop, and one tenant's many requests delay no other.

use crate::world::{World, tell};
use flexvol_apiserver::Key;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Number of requests of this kind, by the double's name for them.
fn asked(world: &World, what: &str) -> usize {
    let requests = world.server.requests().into_iter();
    requests.filter(|request| request == what).count()
}

/// The drivers report capacity, and have none.
pub fn nodes_that_are_full() {
    tell(World::start(), |world| {
        world.start_controller(&["--rate=1000"]);
        for node in ["one", "two"] {
            world.node(node);
            world.start_agent(node, &[]);
        }
        let capacity = |world: &World| world.server.store().count("StorageNode");
        world.eventually("both nodes to be offered", |world| capacity(world) == 2)?;
        world.class("full", &json!({"parameters": {"fault": "full"}}));
        world.claim("data", "full");
        world.eventually("its author to be told", |world| {
            world.told("no node has room for")
        })?;
        let begun = Instant::now();
        world.eventually("some time to pass", |_| {
            begun.elapsed() > Duration::from_secs(5)
        })?;
        let requests = world.server.requests().into_iter();
        let node_volumes = requests.filter(|request| request.starts_with("POST NodeVolume"));
        assert_eq!(node_volumes.count(), 2, "each node is asked once");
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

pub fn failures_that_repeat() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.class("broken", &json!({"parameters": {"fault": "babbles"}}));
        world.claim("data", "broken");
        world.eventually("its author to be told", |world| {
            world.told("answered no JSON")
        })?;
        let looks = |world: &World| asked(world, "GET PersistentVolumeClaim data");
        let answers = |world: &World| {
            let node_volume = world.server.store().all("NodeVolume").pop();
            node_volume.unwrap_or_default()["status"]["failures"]
                .as_u64()
                .unwrap_or(0)
        };
        let before = looks(world);
        world.eventually("the node to fail again and again", |world| {
            answers(world) >= 4
        })?;
        // The event may precede the removal of the finalizer.
        let after = looks(world);
        assert!(
            after <= before + 1,
            "{before} looks at a claim became {after}"
        );
        world.edit("data", &json!({"metadata": {"labels": {"touched": "yes"}}}));
        world.eventually("a claim that is touched to be looked at", |world| {
            looks(world) > after
        })?;
        let class = Key::new("StorageClass", "", "broken");
        let touched = looks(world);
        let note = json!({"metadata": {"annotations": {"flexvol.dev/largest": "1Gi"}}});
        world.server.store().merge(&class, &note).unwrap();
        world.eventually("claims of a class that changes to be looked at", |world| {
            looks(world) > touched
        })?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// Edits a set of the namespace `default` for four seconds. Returns how often it was looked at meanwhile.
fn edited(world: &mut World, name: &str, patch: impl Fn(usize) -> Value) -> Result<usize, String> {
    let look = format!("GET StatefulSet {name}");
    let (begun, before) = (Instant::now(), asked(world, &look));
    let key = Key::new("StatefulSet", "default", name);
    let mut edits = 0;
    world.eventually("it to be edited for a while", |world| {
        edits += 1;
        let patch = json!({"metadata": patch(edits)});
        world.server.store().merge(&key, &patch).unwrap();
        begun.elapsed() > Duration::from_secs(4)
    })?;
    let looks = asked(world, &look) - before;
    println!("{edits} edits, {looks} looks");
    Ok(looks)
}

/// A set with this number of claim templates, and annotations for their sizes.
fn set(name: &str, templates: usize, replicas: u32) -> Value {
    let names = (0..templates).map(|number| format!("t{number}"));
    let annotations: serde_json::Map<_, _> = names
        .clone()
        .map(|template| (format!("grow.flexvol.dev/{template}"), json!("20Mi")))
        .collect();
    let templates: Vec<_> = names
        .map(|template| json!({"metadata": {"name": template}, "spec": {}}))
        .collect();
    json!({
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "replicas": replicas, "serviceName": name, "selector": {}, "template": {},
            "volumeClaimTemplates": templates,
        },
    })
}

pub fn huge_sets() {
    tell(World::start(), |world| {
        // 10,000 claims that do not exist: a hundred seconds at this rate.
        world.make("StatefulSet", set("huge", 100, 100));
        world.start_controller(&["--rate=100"]);
        world.eventually("the huge set to be looked at", |world| {
            world.server.requests().len() > 60
        })?;
        world.claim("t0-db-0", "other");
        let claim = Key::new("PersistentVolumeClaim", "default", "t0-db-0");
        let bound = json!({"phase": "Bound", "capacity": {"storage": "10Mi"}});
        world.server.store().merge_status(&claim, &bound).unwrap();
        let started = Instant::now();
        world.make("StatefulSet", set("db", 1, 1));
        world.eventually("the small set's claim to be asked", |world| {
            world.the_claim("t0-db-0")["spec"]["resources"]["requests"]["storage"] == "20Mi"
        })?;
        let took = started.elapsed();
        assert!(took < Duration::from_secs(10), "it took {took:?}");
        let before = world.server.requests().len();
        world.eventually("the huge set to be looked at further", |world| {
            world.server.requests().len() > before + 100
        })
    });
}

pub fn touched_sets() {
    tell(World::start(), |world| {
        world.start_controller(&["--rate=1000"]);
        world.make("StatefulSet", set("db", 1, 1));
        world.eventually("the set to be looked at", |world| {
            asked(world, "GET StatefulSet db") > 0
        })?;
        let labels = |edit: usize| json!({"labels": {"edit": edit.to_string()}});
        let looks = edited(world, "db", labels)?;
        assert!(looks <= 2, "it was looked at {looks} times");
        let grown = json!({"metadata": {"annotations": {"grow.flexvol.dev/t0": "no size"}}});
        let key = Key::new("StatefulSet", "default", "db");
        world.server.store().merge(&key, &grown).unwrap();
        world.eventually("the last one to be seen", |world| world.told("no size"))
    });
}

/// One look at it takes 500 turns.
pub fn touched_huge_sets() {
    tell(World::start(), |world| {
        world.start_controller(&["--rate=1000"]);
        world.make("StatefulSet", set("huge", 100, 100));
        world.eventually("the set to be looked at", |world| {
            asked(world, "GET StatefulSet huge") > 1
        })?;
        let labels = |edit: usize| json!({"labels": {"edit": edit.to_string()}});
        let sizes = |edit: usize| {
            let size = format!("{}Mi", 20 + edit);
            json!({"annotations": {"grow.flexvol.dev/t0": size}})
        };
        let looks = edited(world, "huge", labels)?;
        assert!(looks <= 4, "{looks} turns while its labels were edited");
        let looks = edited(world, "huge", sizes)?;
        assert!(looks <= 4, "{looks} turns while its sizes were edited");
        let before = world.server.requests().len();
        world.eventually("it to be looked at further", |world| {
            world.server.requests().len() > before + 200
        })
    });
}
