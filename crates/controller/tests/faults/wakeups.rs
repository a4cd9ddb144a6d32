//! Changes by users or other programs that have to be handled soon.

use crate::{
    programs::DRIVER,
    world::{SCRIPT, World, tell},
};
use flexvol_apiserver::{Key, Kubernetes, Refused};
use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// Creates a bound claim, with a driver that runs `first` before it deletes. Returns the volume's name.
fn bound(world: &mut World, first: &str) -> Result<String, String> {
    world.start_on_a_node();
    let script = SCRIPT
        .replace("/var/lib/lab/plain", &world.path("node/storage"))
        .replace("delete)", &format!("delete)\n{first}\n"));
    world.install_script("node", &script);
    world.claim("data", "plain");
    world.eventually("the claim to be bound and let go of", |world| {
        let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
        world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
    })?;
    let claim = world.the_claim("data");
    Ok(claim["spec"]["volumeName"].as_str().unwrap().to_owned())
}

/// Waits for something that would take minutes without an event.
fn soon(world: &mut World, what: &str, mut is: impl FnMut(&World) -> bool) -> Result<(), String> {
    let begun = Instant::now();
    let mut late = false;
    world.eventually(what, |world| {
        late = begun.elapsed() > Duration::from_secs(40);
        late || is(world)
    })?;
    if late {
        return Err(format!("it took more than 40 s: {what}"));
    }
    Ok(())
}

const FAILS: &str =
    r#"[ "$4" = never ] || { echo '{"status":"Failure","message":"it is busy"}'; exit 1; }"#;

/// Waits until the deletion of the storage has failed this often.
fn failed(world: &mut World, name: &str, often: u64) -> Result<(), String> {
    world.eventually("the deletion to fail", |world| {
        let failures = &world.get("NodeVolume", "", name)["status"]["failures"];
        failures.as_u64() >= Some(often)
    })
}

fn volume(name: &str) -> Key {
    Key::new("PersistentVolume", "", name)
}

/// Hands the volume on to another claim, in both objects.
fn hand_on(world: &mut World, name: &str, to: &str, request: &str) {
    let claim = json!({
        "metadata": {"name": to, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "plain", "volumeName": name,
            "resources": {"requests": {"storage": request}},
        },
    });
    world.make("PersistentVolumeClaim", claim);
    let uid = world.the_claim(to)["metadata"]["uid"].clone();
    let reference =
        json!({"namespace": "default", "name": to, "uid": uid, "resourceVersion": Value::Null});
    let mut store = world.server.store();
    let patch = json!({"spec": {"claimRef": reference}});
    store.merge(&volume(name), &patch).unwrap();
    store
        .merge_status(&volume(name), &json!({"phase": "Bound"}))
        .unwrap();
    let status = json!({"phase": "Bound", "capacity": {"storage": "10Mi"}});
    let claim = Key::new("PersistentVolumeClaim", "default", to);
    store.merge_status(&claim, &status).unwrap();
}

/// Follows the advice of an event: "set state: Present in the spec of the NodeVolume of its name".
pub fn state_present() {
    tell(World::start(), |world| {
        let name = bound(world, FAILS)?;
        world.delete_claim("data");
        failed(world, &name, 1)?;
        hand_on(world, &name, "other", "20Mi");
        world.eventually("to be told", |world| world.told("set state: Present"))?;
        let key = Key::new("NodeVolume", "", &name);
        let present = json!({"spec": {"state": "Present"}});
        world.server.store().merge(&key, &present).unwrap();
        soon(world, "the claim to grow", |world| {
            world.the_claim("other")["status"]["capacity"]["storage"] == "20Mi"
        })
    });
}

/// The driver hangs in a deletion, so an administrator deletes the storage and sets its state to Absent.
pub fn said_absent() {
    tell(World::start(), |world| {
        let begun = world.path("begun");
        let name = bound(world, &format!("touch {begun}; sleep 400"))?;
        world.delete_claim("data");
        world.eventually("the driver to hang", |_| fs::exists(&begun).unwrap())?;
        fs::remove_dir_all(world.path(&format!("node/storage/{name}"))).unwrap();
        let key = Key::new("NodeVolume", "", &name);
        let absent = json!({"state": "Absent"});
        world.server.store().merge_status(&key, &absent).unwrap();
        soon(world, "the volume to go", |world| {
            world.get("PersistentVolume", "", &name).is_null()
        })
    });
}

/// The storage cannot be deleted. An administrator sets Retain and deletes the volume.
pub fn retained_then_deleted() {
    tell(World::start(), |world| {
        let name = bound(world, FAILS)?;
        world.delete_claim("data");
        failed(world, &name, 1)?;
        let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        world.server.store().merge(&volume(&name), &retain).unwrap();
        world.eventually("the agent to refuse", |world| {
            let error = &world.get("NodeVolume", "", &name)["status"]["error"];
            error.to_string().contains("Retain")
        })?;
        thread::sleep(Duration::from_secs(1));
        world.server.store().remove(&volume(&name)).unwrap();
        soon(world, "the volume to go", |world| {
            world.get("PersistentVolume", "", &name).is_null()
        })
    });
}

/// A retained volume has lost its NodeVolume, and is handed on to another claim.
pub fn handed_on_without_node_volume() {
    tell(World::start(), |world| {
        let name = bound(world, "")?;
        let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        world.server.store().merge(&volume(&name), &retain).unwrap();
        world.delete_claim("data");
        world.eventually("the volume to be released", |world| {
            world.get("PersistentVolume", "", &name)["status"]["phase"] == "Released"
        })?;
        let key = Key::new("NodeVolume", "", &name);
        world.remove_by_force(&key);
        let nobody = json!({"spec": {"claimRef": null}});
        world.server.store().merge(&volume(&name), &nobody).unwrap();
        let available = json!({"phase": "Available"});
        world
            .server
            .store()
            .merge_status(&volume(&name), &available)
            .unwrap();
        thread::sleep(Duration::from_secs(1));
        hand_on(world, &name, "other", "10Mi");
        soon(world, "the NodeVolume to be made anew", |world| {
            !world.get("NodeVolume", "", &name).is_null()
        })
    });
}

/// The NodeVolume is removed while no controller runs.
pub fn lost_while_nobody_led() {
    tell(World::start(), |world| {
        let name = bound(world, "")?;
        world.kill("controller");
        world.remove_by_force(&Key::new("NodeVolume", "", &name));
        world.start_controller(&[]);
        world.eventually("the NodeVolume to be made anew", |world| {
            !world.get("NodeVolume", "", &name).is_null()
        })
    });
}

/// Another provisioner has made a volume for the same driver, as external-storage's do.
pub fn of_another_provisioner() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.node("node");
        world.claim("old", "plain");
        let claim = world.the_claim("old");
        let uid = claim["metadata"]["uid"].as_str().unwrap();
        world.make(
            "PersistentVolume",
            json!({
                "metadata": {
                    "name": format!("pvc-{uid}"),
                    "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Mi"},
                    "claimRef": {"namespace": "default", "name": "old", "uid": uid},
                    "flexVolume": {"driver": DRIVER}, "storageClassName": "plain",
                    "persistentVolumeReclaimPolicy": "Delete",
                },
            }),
        );
        world.eventually("the claim to be bound", |world| world.is_bound("old"))?;
        world.start_controller(&["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("new", "plain");
        world.eventually("another claim to be bound", |world| world.is_bound("new"))?;
        assert!(!world.told("has no annotation"));
        let log = std::fs::read_to_string(world.path("controller.log")).unwrap();
        assert!(!log.contains("cannot reconcile"), "{log}");
        Ok(())
    });
}

/// Another admission webhook rejects the deletion of a volume.
pub fn refused_deletion() {
    tell(World::start(), |world| {
        let name = bound(world, "")?;
        let refused = Refused {
            code: 403,
            reason: "Forbidden",
            message: "admission webhook denied: no deletions".to_owned(),
        };
        let delete = format!("DELETE PersistentVolume {name}");
        world.server.refuse(&delete, Some(refused));
        world.delete_claim("data");
        soon(world, "somebody to be told", |world| {
            world.told("no deletions")
        })
    });
}

/// A foreign volume has the name of the claim's future volume: nothing is ordered, and the claim can be deleted.
pub fn name_is_taken() {
    tell(World::start(), |world| {
        world.node("node");
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        let uid = world.the_claim("data")["metadata"]["uid"].clone();
        let others = json!({
            "metadata": {
                "name": format!("pvc-{}", uid.as_str().unwrap()),
                "annotations": {"pv.kubernetes.io/provisioned-by": "other.example/x"},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Mi"},
                "flexVolume": {"driver": "other.example/x"}, "persistentVolumeReclaimPolicy": "Retain",
            },
        });
        world.make("PersistentVolume", others);
        world.start_controller(&["--rate=1000"]);
        soon(world, "its author to be told", |world| {
            world.told("is somebody else's")
        })?;
        assert_eq!(world.server.store().count("NodeVolume"), 0);
        world.delete_claim("data");
        soon(world, "the claim to go", |world| {
            world.the_claim("data").is_null()
        })
    });
}
