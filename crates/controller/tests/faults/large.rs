//! Oversized objects cost the controller no memory, and affect only their owners.

use crate::world::{SCRIPT, World, tell};
use flexvol_apiserver::Key;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Maximum memory of the controller in MiB. It needs half of it, or more, without these objects.
const MOST: u64 = 72;

/// Checks that the controller handles these objects, serves a claim beside them, and stays within its memory.
fn cost_nothing(what: &str, make: impl FnOnce(&World)) {
    tell(World::start(), |world| {
        make(world);
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("a claim beside them to be bound", |world| {
            world.is_bound("data")
        })?;
        seen(world, what)
    });
}

fn seen(world: &mut World, what: &str) -> Result<(), String> {
    let begun = Instant::now();
    world.eventually("them to be seen", |_| {
        begun.elapsed() > Duration::from_secs(3)
    })?;
    let most = world.memory("controller", "VmHWM:") >> 10;
    println!("flexvol-controller: {most} MiB beside {what}");
    assert!(most <= MOST, "the controller needs {most} MiB");
    Ok(())
}

/// A tenant's set without pods.
fn set(name: &str, annotations: &Value, more: &Value) -> Value {
    let mut set = json!({
        "metadata": {"name": name, "namespace": "tenant", "annotations": annotations},
        "spec": {"replicas": 0, "serviceName": "db", "selector": {}, "template": {}},
    });
    for (key, value) in more.as_object().unwrap() {
        set["spec"][key] = value.clone();
    }
    set
}

fn grows() -> Value {
    json!({"grow.flexvol.dev/data": "1Gi"})
}

pub fn one_set() {
    cost_nothing("a set of 30000 volumes", |world| {
        let volumes: Vec<_> = (0..30_000)
            .map(|number| json!({"name": format!("v{number}"), "emptyDir": {}}))
            .collect();
        let template = json!({"template": {"spec": {"containers": [], "volumes": volumes}}});
        world.make("StatefulSet", set("db", &grows(), &template));
    });
}

pub fn annotated_sets() {
    cost_nothing("200 sets of 256 annotations", |world| {
        let all = (0..256).map(|number| {
            let name = format!("grow.flexvol.dev/t{number}");
            (name, Value::from("v".repeat(1004)))
        });
        let all = Value::Object(all.collect::<Map<_, _>>());
        for number in 0..200 {
            world.make("StatefulSet", set(&format!("db{number}"), &all, &json!({})));
        }
    });
}

pub fn answers() {
    cost_nothing("60 NodeVolumes with answers of 1 MiB", |world| {
        for number in 0..60 {
            let name = format!("pvc-{number}");
            world.make(
                "NodeVolume",
                json!({
                    "metadata": {
                        "name": name, "labels": {"flexvol.dev/node": "bad"},
                        "finalizers": ["flexvol.dev/node-volume"],
                    },
                    "spec": {
                        "driver": "lab.example/plain", "node": "bad", "state": "Present", "size": 1,
                        "published": true,
                        "claim": {"namespace": "ns", "name": format!("c{number}"), "uid": number.to_string()},
                    },
                }),
            );
            let problem = json!({"class": "retryable", "message": "x".repeat(1 << 20)});
            let status = json!({
                "state": "Present", "size": 1, "observedGeneration": 1, "failures": 1, "error": problem,
            });
            let key = Key::new("NodeVolume", "", &name);
            world.server.store().merge_status(&key, &status).unwrap();
        }
    });
}

/// Pods are read if a set that selects them permits evictions.
pub fn pods() {
    tell(World::start(), |world| {
        world.node("node");
        world.start_controller(&["--rate=1000"]);
        // The storage grows, and the file system would need kubelet, which is missing here.
        let script = SCRIPT
            .replace("/var/lib/lab/plain", &world.path("node/storage"))
            .replace("\"requiresFSResize\":false", "\"requiresFSResize\":true");
        assert!(script.contains("\"requiresFSResize\":true"));
        world.install_script("node", &script);
        world.start_agent("node", &[]);
        world.claim("data-db-0", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data-db-0"))?;
        let volumes: Vec<_> = (0..256)
            .map(|number| json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": "c".repeat(250)}}))
            .collect();
        for number in 0..120 {
            world.make(
                "Pod",
                json!({
                    "metadata": {"name": format!("p{number}"), "namespace": "default", "labels": {"app": "db"}},
                    "spec": {"containers": [], "volumes": volumes},
                }),
            );
        }
        world.make(
            "StatefulSet",
            json!({
                "metadata": {
                    "name": "db", "namespace": "default",
                    "annotations": {"grow.flexvol.dev/data": "20Mi", "grow.flexvol.dev/offline": "restart"},
                },
                "spec": {
                    "replicas": 1, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                    "template": {}, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
                },
                "status": {"replicas": 1},
            }),
        );
        world.eventually("its pods to be read", |world| {
            let requests = world.server.requests();
            requests.iter().any(|line| line.contains(" Pod"))
        })?;
        seen(world, "120 pods of 256 claims")
    });
}

/// A truncated selector would select more.
pub fn too_large() {
    tell(World::start(), |world| {
        let values: Vec<_> = (0..9999).map(|number| format!("v{number}")).collect();
        let selector =
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        world.make(
            "StatefulSet",
            set("db", &grows(), &json!({"selector": selector})),
        );
        world.start_controller(&[]);
        world.eventually("its owner to be told", |world| {
            world.told("the set is too large to be understood")
        })
    });
}

fn soon(world: &mut World, what: &str, is: impl Fn(&World) -> bool) -> Result<(), String> {
    let begun = Instant::now();
    let late = || begun.elapsed() > Duration::from_secs(15);
    world.eventually(what, |world| late() || is(world))?;
    if late() {
        Err(format!("it took more than 15 s: {what}"))
    } else {
        Ok(())
    }
}

/// Kubernetes allows 512 parameters, and 256 KiB together, and Linux arguments of a program of 128 KiB each.
pub fn parameters() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        for (class, count) in [("wide", 400), ("widest", 512)] {
            let length = if class == "wide" { 40 } else { 200 };
            let all: Map<_, _> = (0..count)
                .map(|n| (format!("a{n:03}"), "x".repeat(length).into()))
                .collect();
            world.class(class, &json!({"parameters": all}));
            world.claim(class, class);
            soon(world, "its claim to be bound", |world| {
                world.is_bound(class)
            })?;
        }
        world.kill("controller");
        world.start_controller(&["--rate=1000"]);
        world.claim("other", "plain");
        soon(world, "another claim to be bound", |world| {
            world.is_bound("other")
        })?;
        let requests = json!({"spec": {"resources": {"requests": {"storage": "20Mi"}}}});
        world.edit("widest", &requests);
        soon(world, "the claim to grow", |world| {
            world.the_claim("widest")["status"]["capacity"]["storage"] == "20Mi"
        })?;
        let log = std::fs::read_to_string(world.path("controller.log")).unwrap();
        assert!(!log.contains("a watch broke off"), "{log}");
        for claim in ["wide", "widest", "other"] {
            world.delete_claim(claim);
        }
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// Another version of the schema, or a person, has left required fields away.
pub fn not_understood() {
    tell(World::start(), |world| {
        let metadata = json!({"name": "pvc-odd", "labels": {"flexvol.dev/node": "node"}});
        world.make(
            "NodeVolume",
            json!({"metadata": metadata, "spec": {"driver": "lab.example/plain"}}),
        );
        world.start_on_a_node();
        world.claim("data", "plain");
        soon(world, "a claim to be bound", |world| world.is_bound("data"))?;
        for program in ["controller.log", "node.log"] {
            let log = std::fs::read_to_string(world.path(program)).unwrap();
            assert!(log.contains("pvc-odd"), "{program}: {log}");
            assert!(!log.contains("a watch broke off"), "{program}: {log}");
        }
        Ok(())
    });
}
