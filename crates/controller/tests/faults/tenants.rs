//! Writes of one tenant do not affect others.

use crate::{
    flood::{asked, connector, serve},
    world::{World, tell},
};
use flexvol_apiserver::Key;
use serde_json::{Map, Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// Creates a tenant's claim, with superfluous metadata.
fn make_claim(world: &World, namespace: &str, name: &str, meta: &Value, class: &str, size: &str) {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}},
        },
    });
    for (key, value) in meta.as_object().unwrap() {
        claim["metadata"][key] = value.clone();
    }
    world.make("PersistentVolumeClaim", claim);
}

/// As large as etcd accepts.
fn labels() -> Value {
    let labels = (0..5000).map(|number| {
        let name = format!(
            "{}.example.com/{}",
            "n".repeat(110),
            format_args!("{number:050}")
        );
        (name, Value::from("v".repeat(60)))
    });
    Value::Object(labels.collect::<Map<_, _>>())
}

/// Peak memory of a program, in MiB.
fn most_memory(world: &World, program: &str) -> u64 {
    world.memory(program, "VmHWM:") >> 10
}

pub fn large_claims() {
    tell(World::start(), |world| {
        let large = json!({"labels": labels()});
        for number in 0..40 {
            // Half of them have our class. Those are read one by one too.
            let class = if number % 2 == 0 { "none" } else { "plain" };
            make_claim(world, "tenant", &format!("c{number}"), &large, class, "5Ti");
        }
        let set = json!({
            "metadata": {"name": "db", "namespace": "tenant", "labels": labels()},
            "spec": {"replicas": 0, "serviceName": "db", "selector": {}, "template": {}},
        });
        for number in 0..10 {
            let mut set = set.clone();
            set["metadata"]["name"] = format!("db{number}").into();
            world.make("StatefulSet", set);
        }
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("a claim beside them to be bound", |world| {
            world.is_bound("data")
        })?;
        let touched = json!({"metadata": {"annotations": {"touched": "yes"}}});
        for number in 0..10 {
            let key = Key::new("PersistentVolumeClaim", "tenant", &format!("c{number}"));
            world.server.store().merge(&key, &touched).unwrap();
        }
        let begun = Instant::now();
        world.eventually("them to be seen", |_| {
            begun.elapsed() > Duration::from_secs(3)
        })?;
        let most = most_memory(world, "controller");
        println!("flexvol-controller: {most} MiB beside 40 claims and 10 sets of 1.2 MB");
        assert!(most <= 72, "the controller needs {most} MiB");
        Ok(())
    });
}

pub fn touched_claims() {
    tell(World::start(), |world| {
        world.node("node");
        world.start_controller(&[]);
        world.start_agent("node", &[]);
        world.eventually("room to be offered", |world| {
            let nodes = world.server.store().all("StorageNode");
            nodes
                .iter()
                .any(|node| node["status"]["capacities"]["plain"].is_u64())
        })?;
        let key =
            |number: usize| Key::new("PersistentVolumeClaim", "tenant", &format!("c{number}"));
        for number in 0..300 {
            make_claim(
                world,
                "tenant",
                &format!("c{number}"),
                &json!({}),
                "plain",
                "5Ti",
            );
        }
        let before = world.server.requests().len();
        world.claim("data", "plain");
        let mut round = 0;
        world.eventually("a claim beside 300 that are edited all the time", |world| {
            round += 1;
            for number in (round % 10..300).step_by(10) {
                let edit = json!({"metadata": {"annotations": {"round": round.to_string()}}});
                let _ = world.server.store().merge(&key(number), &edit);
            }
            thread::sleep(Duration::from_millis(100));
            world.is_bound("data")
        })?;
        // Counts requests, not seconds, because the machine may be busy. At 20 a second this is half a minute.
        let asked = world.server.requests().len() - before;
        println!(
            "flexvol-controller: bound after {asked} requests beside 300 claims that are edited"
        );
        assert!(asked < 700, "it took {asked} requests");
        Ok(())
    });
}

/// Quota counts the claim for the class of its annotation.
pub fn annotated_class() {
    tell(World::start(), |world| {
        world.node("node");
        for name in ["slow", "fast"] {
            world.class(name, &json!({"parameters": {"pool": name}}));
        }
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("data", "fast");
        let annotation = json!({"volume.beta.kubernetes.io/storage-class": "slow"});
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)?;
        let meta = json!({"annotations": annotation});
        make_claim(world, "default", "data", &meta, "fast", "10Mi");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let volume = world.server.store().all("PersistentVolume").pop().unwrap();
        assert_eq!(volume["spec"]["storageClassName"], "slow");
        let node_volume = world.server.store().all("NodeVolume").pop().unwrap();
        assert_eq!(node_volume["spec"]["parameters"]["pool"], "slow");
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// One tenant edits sizes without end. The API server asks about each edit, from its one address.
pub fn edits() {
    const AT_ONCE: usize = 60;
    const EDITS: usize = 8;
    tell(World::start(), |world| {
        let ports = serve(world)?;
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let claim = |size: &str| {
            let mut claim = world.the_claim("data");
            claim["spec"]["resources"]["requests"]["storage"] = size.into();
            claim
        };
        // A dry run costs the tenant nothing, and is judged like any other.
        let question = json!({"request": {
            "uid": "u-1", "namespace": "default", "dryRun": true,
            "object": claim("20Mi"), "oldObject": claim("10Mi"),
        }});
        let question = Arc::new(question.to_string());
        let set = |size: &str| {
            json!({
                "metadata": {"name": "db", "namespace": "other"},
                "spec": {
                    "serviceName": "db", "selector": {}, "template": {"spec": {"containers": []}},
                    "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                        "storageClassName": "plain", "resources": {"requests": {"storage": size}},
                    }}],
                },
            })
        };
        let others = json!({"request": {
            "uid": "u-2", "namespace": "other", "object": set("20Mi"), "oldObject": set("10Mi"),
        }});
        let others = others.to_string();
        let (connector, runtime) = (connector(world), Runtime::new().unwrap());
        let judged = || {
            let answer = asked(&connector, 1, ports.webhooks, "/templates", &others);
            let answer = runtime.block_on(answer);
            answer.is_ok_and(|said| said.contains("JSONPatch"))
        };
        let answered = Arc::new(AtomicUsize::new(0));
        for _ in 0..AT_ONCE {
            let (connector, to) = (connector.clone(), ports.webhooks);
            let (question, answered) = (Arc::clone(&question), Arc::clone(&answered));
            runtime.spawn(async move {
                loop {
                    let answer = asked(&connector, 1, to, "/claims", &question).await;
                    let is_judged = answer.is_ok_and(|said| said.contains("allowed"));
                    answered.fetch_add(usize::from(is_judged), Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        world.eventually("the flood", |_| begun.elapsed() > Duration::from_secs(5))?;
        let (begun, before) = (Instant::now(), answered.load(Ordering::Relaxed));
        let count = (0..EDITS).filter(|_| judged()).count();
        let took = begun.elapsed();
        let answered = answered.load(Ordering::Relaxed);
        println!(
            "{count} of {EDITS} were judged in {took:?}, beside {} of {answered}",
            answered - before
        );
        assert_eq!(count, EDITS, "each is judged, whatever others edit");
        assert!(answered > 20, "{answered} edits are no flood");
        Ok(())
    });
}
