//! Storage that stays because it was retained in time.

use crate::world::{MEBI, SCRIPT, World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The volume was released, and its storage is to be deleted. An administrator sets Retain and deletes the volume, so
/// the controller removes the finalizers of the NodeVolume, and then of the volume. The agent has read the NodeVolume
/// before that, and reads the volume after it.
pub fn read_late() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.claim("data", "plain");
        world.eventually("the claim to be bound and let go of", |world| {
            let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
            world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
        })?;
        world.kill("controller");
        let name = world.the_claim("data")["spec"]["volumeName"].clone();
        let name = name.as_str().unwrap();
        let [volume, node_volume] =
            ["PersistentVolume", "NodeVolume"].map(|kind| Key::new(kind, "", name));
        world.delete_claim("data");
        world.eventually("the claim to be gone", |world| {
            world.the_claim("data").is_null()
        })?;

        let read = |world: &World, kind: &str| {
            let request = format!("GET {kind} {name}");
            let all = world.server.requests().into_iter();
            all.filter(|other| *other == request).count()
        };
        let (node_volumes, volumes) = (read(world, "NodeVolume"), read(world, "PersistentVolume"));
        let hold = world.server.hold(&format!("GET PersistentVolume {name}"));
        let absent = json!({"spec": {"state": "Absent"}});
        world.server.store().merge(&node_volume, &absent).unwrap();
        world.eventually("the agent to read the NodeVolume twice", |world| {
            read(world, "NodeVolume") >= node_volumes + 2
                && read(world, "PersistentVolume") > volumes
        })?;
        for gone in [&node_volume, &volume] {
            world.remove_by_force(gone);
        }
        drop(hold);
        world.eventually("the agent to be done with the NodeVolume", |world| {
            let said = fs::read_to_string(world.path("node.log")).unwrap();
            said.contains("cannot reconcile") || world.storage().is_empty()
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);
        Ok(())
    });
}

/// The volume outlived its claim, and is handed on as documented: its `claimRef` names another claim, at first without
/// a UID, and is never missing. Its storage stays meanwhile, and then grows and is deleted with that claim.
pub fn handed_on() {
    tell(World::start(), |world| {
        world.class("outlives", &json!({"reclaimPolicy": "Retain"}));
        world.start_on_a_node();
        world.claim("first", "outlives");
        world.eventually("the claim to be bound", |world| world.is_bound("first"))?;
        let name = world.the_claim("first")["spec"]["volumeName"].clone();
        let volume = Key::new("PersistentVolume", "", name.as_str().unwrap());
        let phase =
            |world: &World| world.server.store().get(&volume).unwrap()["status"]["phase"].clone();
        world.delete_claim("first");
        world.eventually("the volume to be released", |world| {
            phase(world) == "Released"
        })?;

        let next = json!({"namespace": "default", "name": "second", "uid": null});
        let patch = json!({"spec": {"claimRef": next, "persistentVolumeReclaimPolicy": "Delete"}});
        world.server.store().merge(&volume, &patch).unwrap();
        thread::sleep(Duration::from_secs(1));
        let available = json!({"phase": "Available"});
        world
            .server
            .store()
            .merge_status(&volume, &available)
            .unwrap();
        thread::sleep(Duration::from_secs(1));
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);

        make_second_claim(world, &name);
        // Kubernetes binds both objects.
        let uid = world.the_claim("second")["metadata"]["uid"].clone();
        let bound = json!({"spec": {"claimRef": {"uid": uid}}});
        world.server.store().merge(&volume, &bound).unwrap();
        bind_second_claim(world, &volume);
        world.ask_for("second", "20Mi");
        world.eventually("the claim to grow", |world| {
            world.the_claim("second")["status"]["capacity"]["storage"] == "20Mi"
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [20 * MEBI]);
        world.delete_claim("second");
        world.eventually("the claim to be gone", |world| {
            world.the_claim("second").is_null()
        })?;
        let released = json!({"phase": "Released"});
        world
            .server
            .store()
            .merge_status(&volume, &released)
            .unwrap();
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The claim that got a kept volume is applied again by a manifest with another request and our finalizer.
pub fn handed_on_to_a_held_claim() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.class("outlives", &json!({"reclaimPolicy": "Retain"}));
        world.start_on_a_node();
        world.claim("first", "outlives");
        world.eventually("the claim to be bound", |world| world.is_bound("first"))?;
        let name = world.the_claim("first")["spec"]["volumeName"].clone();
        let volume = Key::new("PersistentVolume", "", name.as_str().unwrap());
        world.delete_claim("first");
        world.eventually("the volume to be released", |world| {
            world.server.store().get(&volume).unwrap()["status"]["phase"] == "Released"
        })?;
        make_second_claim(world, &name);
        let uid = world.the_claim("second")["metadata"]["uid"].clone();
        let bound =
            json!({"spec": {"claimRef": {"namespace": "default", "name": "second", "uid": uid}}});
        world.server.store().merge(&volume, &bound).unwrap();
        bind_second_claim(world, &volume);
        thread::sleep(Duration::from_secs(2));
        for (size, begun) in [
            ("20Mi", Instant::now()),
            ("30Mi", Instant::now()),
            ("40Mi", Instant::now()),
        ] {
            let edit = json!({
                "metadata": {"finalizers": ["flexvol.dev/provisioning"]},
                "spec": {"resources": {"requests": {"storage": size}}},
            });
            world.edit("second", &edit);
            world.eventually("the claim to grow", |world| {
                world.the_claim("second")["status"]["capacity"]["storage"] == size
                    || begun.elapsed() > Duration::from_secs(30)
            })?;
            assert!(begun.elapsed() < Duration::from_secs(30), "{size}");
        }
        Ok(())
    });
}

/// The driver has grown the storage when its agent is killed, before it could tell. Meanwhile the claim is deleted.
pub fn claim_goes_while_it_grows() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.class("outlives", &json!({"reclaimPolicy": "Retain"}));
        world.start_on_a_node();
        let begun = grow_and_hang(world);
        world.claim("data", "outlives");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.ask_for("data", "100Mi");
        world.eventually("the driver to have grown it", |_| {
            fs::exists(&begun).unwrap()
        })?;
        world.kill("node");
        fs::remove_file(&begun).unwrap();
        world.delete_claim("data");
        let deleted = Instant::now();
        world.eventually("some time to pass", |_| {
            deleted.elapsed() > Duration::from_secs(3)
        })?;
        let order = |world: &World| {
            let node_volume = world.server.store().all("NodeVolume").remove(0);
            node_volume["spec"]["size"].as_u64().unwrap()
        };
        assert_eq!(order(world), 100 * MEBI, "its node may have grown it");
        world.start_agent("node", &[]);
        world.eventually("the node to have measured it", |world| {
            let node_volume = world.server.store().all("NodeVolume").remove(0);
            node_volume["status"]["size"] == 100 * MEBI
        })?;
        assert_eq!(order(world), 100 * MEBI, "it has that");
        Ok(())
    });
}

/// Installs a driver that grows a volume to 100 MiB and then goes on only when it is called again. Returns the file that
/// it makes meanwhile.
fn grow_and_hang(world: &World) -> String {
    let begun = world.path("begun");
    let grows = format!(
        r#"[ "$4" -lt 104857600 ] || [ -e {begun}-once ] || {{ echo "$4" >"$(volume "$2")/size"; touch {begun} {begun}-once; while [ -e {begun} ]; do sleep 0.1; done; }}"#
    );
    let script = SCRIPT
        .replace("/var/lib/lab/plain", &world.path("node/storage"))
        .replace("expandvolume)\n", &format!("expandvolume)\n{grows}\n"));
    world.install_script("node", &script);
    begun
}

/// Makes a claim for a kept volume.
fn make_second_claim(world: &World, volume: &Value) {
    world.make(
        "PersistentVolumeClaim",
        json!({
            "metadata": {"name": "second", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "outlives",
                "volumeName": volume, "resources": {"requests": {"storage": "10Mi"}},
            },
        }),
    );
}

/// Binds it, as Kubernetes does once the volume names it.
fn bind_second_claim(world: &World, volume: &Key) {
    let bound = json!({"phase": "Bound"});
    world.server.store().merge_status(volume, &bound).unwrap();
    let claim = Key::new("PersistentVolumeClaim", "default", "second");
    let has = json!({"phase": "Bound", "capacity": {"storage": "10Mi"}});
    world.server.store().merge_status(&claim, &has).unwrap();
}
