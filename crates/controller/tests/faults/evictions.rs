//! Sets whose volumes grow only while no pod uses them: whose turn it is, and what others wait for.

use crate::world::{World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const THEN: &str = "2026-01-01T00:00:00Z";

/// A set whose claims of the template `t0` shall grow, with more annotations. Its status says that nothing rolls.
fn set(world: &World, namespace: &str, name: &str, replicas: usize, offline: bool) -> Value {
    let mut annotations = json!({"grow.flexvol.dev/t0": "20Mi"});
    if offline {
        annotations["grow.flexvol.dev/offline"] = "restart".into();
    }
    let set = json!({
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "replicas": replicas, "serviceName": name, "selector": {"matchLabels": {"app": name}},
            "template": {}, "volumeClaimTemplates": [{"metadata": {"name": "t0"}, "spec": {}}],
        },
    });
    world.make("StatefulSet", set);
    let made = world.get("StatefulSet", namespace, name);
    let status = json!({
        "replicas": replicas, "updatedReplicas": replicas, "currentRevision": "r", "updateRevision": "r",
        "observedGeneration": made["metadata"]["generation"],
    });
    let key = Key::new("StatefulSet", namespace, name);
    world.server.store().merge_status(&key, &status).unwrap();
    made["metadata"]["uid"].clone()
}

fn bound_claim(world: &World, namespace: &str, name: &str, asks: &str, conditions: &Value) {
    let claim = json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "other", "volumeName": format!("v-{name}"),
            "resources": {"requests": {"storage": asks}},
        },
    });
    world.make("PersistentVolumeClaim", claim);
    let key = Key::new("PersistentVolumeClaim", namespace, name);
    let status =
        json!({"phase": "Bound", "capacity": {"storage": "10Mi"}, "conditions": conditions});
    world.server.store().merge_status(&key, &status).unwrap();
}

/// A claim whose storage cannot grow.
fn stuck_claim(world: &World, namespace: &str, name: &str) {
    let failed = json!([{"type": "ControllerResizeError", "status": "True", "message": "full"}]);
    bound_claim(world, namespace, name, "1Gi", &failed);
}

/// A claim whose storage has grown, and whose file system has waited for long.
fn pending_claim(world: &World, namespace: &str, name: &str) {
    let pending =
        json!([{"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": THEN}]);
    bound_claim(world, namespace, name, "20Mi", &pending);
}

/// A ready pod of the set `db` whose own claim waits for its file system, and that has other claims too.
fn pod(world: &World, namespace: &str, uid: &Value, number: usize, others: &[String]) {
    let name = format!("db-{number}");
    let own = format!("t0-{name}");
    pending_claim(world, namespace, &own);
    let claims = others.iter().chain([&own]).enumerate();
    let volumes: Vec<_> = claims
        .map(|(n, claim)| json!({"name": format!("v{n}"), "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": uid, "controller": true,
    });
    let labels = json!({"app": "db", "controller-revision-hash": "r"});
    world.make(
        "Pod",
        json!({
            "metadata": {
                "name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner],
                "creationTimestamp": "2025-01-01T00:00:00Z",
            },
            "spec": {"nodeName": "node", "volumes": volumes},
        }),
    );
    let key = Key::new("Pod", namespace, &name);
    let ready = json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": THEN}],
    });
    world.server.store().merge_status(&key, &ready).unwrap();
}

/// Twenty pods, each of which names a claim that cannot grow as often as a pod may, in a set that is edited again and
/// again.
pub fn set_of_stuck_pods() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        stuck_claim(world, "tenant", "stuck");
        let uid = set(world, "tenant", "db", 20, true);
        for number in 0..20 {
            pod(
                world,
                "tenant",
                &uid,
                number,
                &vec!["stuck".to_owned(); 150],
            );
        }
        world.start_controller(&["--rate=100"]);
        let asked = |world: &World, what: &str| {
            let requests = world.server.requests().into_iter();
            requests.filter(|request| request.contains(what)).count()
        };
        world.eventually("its pods to be read", |world| asked(world, " Pod") > 0)?;
        let before = asked(world, "");
        for number in 0..40 {
            bound_claim(
                world,
                "default",
                &format!("t0-small-{number}"),
                "10Mi",
                &json!([]),
            );
        }
        let started = Instant::now();
        set(world, "default", "small", 40, false);
        let edited = Key::new("StatefulSet", "tenant", "db");
        let mut edits = 0;
        world.eventually("another set's claims to be asked", |world| {
            edits += 1;
            let labels = json!({"metadata": {"labels": {"edit": edits.to_string()}}});
            world.server.store().merge(&edited, &labels).unwrap();
            let first = &world.the_claim("t0-small-0")["spec"]["resources"]["requests"];
            first["storage"] == "20Mi"
        })?;
        let (took, requests) = (started.elapsed(), asked(world, "") - before);
        assert!(
            took < Duration::from_secs(10),
            "it took {took:?} and {requests} requests"
        );
        world.eventually("all of its pods to be told of", |world| {
            world.told("pod db-0 is not stopped so that its volumes grow")
        })?;
        let lists = asked(world, "GET Pod ");
        let reads = asked(world, "GET PersistentVolumeClaim stuck");
        assert!(
            reads <= lists,
            "{reads} reads of one claim in {lists} turns"
        );
        println!("{took:?}, {requests} requests, pods listed {lists} times");
        Ok(())
    });
}

/// Twenty pods have a claim beside their template's that cannot grow. The first pod has none.
pub fn first_of_many() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        let uid = set(world, "default", "db", 46, true);
        pod(world, "default", &uid, 0, &[]);
        for number in 1..46 {
            let log = format!("log-db-{number}");
            stuck_claim(world, "default", &log);
            pod(world, "default", &uid, number, &[log]);
        }
        world.start_controller(&["--rate=1000"]);
        let begun = Instant::now();
        world.eventually("the first pod to be stopped", |world| {
            world.told(STOPPED) || begun.elapsed() > Duration::from_secs(20)
        })?;
        if begun.elapsed() > Duration::from_secs(20) {
            return Err("it was not stopped in 20 s".to_owned());
        }
        let requests = world.server.requests().into_iter();
        let lists = requests.filter(|request| request == "GET Pod ").count();
        assert!(lists <= 8, "pods were listed {lists} times in one look");
        Ok(())
    });
}

/// All claims of a pod are read, and all once more, before it is stopped.
pub fn pod_of_many_claims() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        let uid = set(world, "default", "db", 1, true);
        let others: Vec<_> = (0..150).map(|n| format!("log-{n:03}")).collect();
        for claim in &others {
            pending_claim(world, "default", claim);
        }
        pod(world, "default", &uid, 0, &others);
        world.start_controller(&["--rate=1000"]);
        world.eventually("the pod to be stopped", |world| {
            // The double knows no evictions.
            world.told("pod db-0 is not stopped so that log-000, log-001, ")
        })?;
        let requests = world.server.requests();
        let turns = requests.split(|request| request == "GET StatefulSet db");
        let reads = turns.map(|turn| {
            let claims = turn
                .iter()
                .filter(|request| request.starts_with("GET PersistentVolumeClaim "));
            claims.count()
        });
        let most = reads.max().unwrap_or_default();
        assert!(most <= 40, "{most} claims were read in one turn");
        for claim in ["log-000", "log-149", "t0-db-0"] {
            let read = format!("GET PersistentVolumeClaim {claim}");
            let times = requests.iter().filter(|request| **request == read).count();
            assert!(times >= 2, "{claim} was read {times} times");
        }
        Ok(())
    });
}

// The double knows no evictions.
const STOPPED: &str = "pod db-0 is not stopped so that t0-db-0 can grow: 404";

fn set_pod_status(world: &World, name: &str, status: &Value) {
    let key = Key::new("Pod", "default", name);
    world.server.store().merge_status(&key, status).unwrap();
}

/// A pod that makes backups has the volume too, as the last of its volumes. It has this many others.
pub fn volume_of_two_pods(others: usize, words: &str) {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        let uid = set(world, "default", "db", 1, true);
        pod(world, "default", &uid, 0, &[]);
        let others = (0..others).map(|n| json!({"name": format!("e{n}"), "emptyDir": {}}));
        let mut volumes = Vec::from_iter(others);
        volumes.push(json!({"name": "v", "persistentVolumeClaim": {"claimName": "t0-db-0"}}));
        world.make(
            "Pod",
            json!({
                "metadata": {"name": "backup", "namespace": "default"},
                "spec": {"nodeName": "node", "volumes": volumes},
            }),
        );
        set_pod_status(world, "backup", &json!({"phase": "Running"}));
        world.start_controller(&["--rate=1000"]);
        world.eventually("people to be told", |world| world.told(words))?;
        assert!(!world.told(STOPPED));
        set_pod_status(world, "backup", &json!({"phase": "Succeeded"}));
        world.eventually("the pod to be stopped", |world| world.told(STOPPED))
    });
}

/// A set asks for more than Kubernetes counts, which it stores as the most that it counts.
pub fn more_than_kubernetes_counts() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        bound_claim(world, "default", "t0-db-0", "10Mi", &json!([]));
        set(world, "default", "db", 1, false);
        let key = Key::new("StatefulSet", "default", "db");
        let huge = json!({"metadata": {"annotations": {"grow.flexvol.dev/t0": "9Ei"}}});
        world.server.store().merge(&key, &huge).unwrap();
        world.start_controller(&["--rate=1000"]);
        world.eventually("people to be told", |world| {
            let claim = world.the_claim("t0-db-0");
            if claim["spec"]["resources"]["requests"]["storage"] == "9Ei" {
                world.ask_for("t0-db-0", "9223372036854775807");
            }
            world.told("claim t0-db-0 cannot ask for 9Ei")
        })
    });
}

/// The init container has filled the volume.
pub fn init_container_that_fails() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        let uid = set(world, "default", "db", 1, true);
        pod(world, "default", &uid, 0, &[]);
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let status = json!({
            "phase": "Pending",
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": THEN}],
            "initContainerStatuses": [{"name": "migrate", "restartCount": 9, "state": waiting}],
        });
        set_pod_status(world, "db-0", &status);
        world.start_controller(&["--rate=1000"]);
        world.eventually("the pod to be stopped", |world| world.told(STOPPED))
    });
}

/// So many sets, with an API server that answers ten requests in a second, that each has a turn in more than half a minute.
/// Their pods have this many other claims that grow.
pub fn many_sets(sets: usize, others: usize) {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        let others: Vec<_> = (0..others).map(|n| format!("log-{n:03}")).collect();
        for number in 0..sets {
            let namespace = format!("tenant{number}");
            let uid = set(world, &namespace, "db", 1, true);
            for claim in &others {
                pending_claim(world, &namespace, claim);
            }
            pod(world, &namespace, &uid, 0, &others);
        }
        world.start_controller(&["--rate=10"]);
        let first = others.first().map_or("t0-db-0", String::as_str);
        let stopped = format!("pod db-0 is not stopped so that {first}");
        world.eventually("a pod to be stopped", |world| world.told(&stopped))
    });
}
