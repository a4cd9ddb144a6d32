//! Claims whose growth is taken back by `flexvol-controller recover` while nobody knows what their storage has.

use crate::world::{MEBI, SCRIPT, World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::{Value, json};
use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

/// Starts with a claim that grows to 100 MiB. The driver has grown the storage, and has not ended.
fn start(world: &mut World) -> Result<(), String> {
    world.start_on_a_node();
    let (begun, goes_on) = (world.path("begun"), world.path("goes-on"));
    let grows = format!(
        r#"[ "$4" -lt 104857600 ] || {{ echo "$4" >"$(volume "$2")/size"; touch {begun}; until [ -e {goes_on} ]; do sleep 0.1; done; }}"#
    );
    let script = SCRIPT
        .replace("/var/lib/lab/plain", &world.path("node/storage"))
        .replace("expandvolume)\n", &format!("expandvolume)\n{grows}\n"));
    world.install_script("node", &script);
    world.claim("data", "plain");
    world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
    world.ask_for("data", "100Mi");
    world.eventually("the driver to have grown it", |_| {
        fs::exists(&begun).unwrap()
    })
}

fn allocated(world: &World) -> Value {
    world.the_claim("data")["status"]["allocatedResources"]["storage"].clone()
}

fn recover(world: &World) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_flexvol-controller"))
        .args(["recover", "data", "--namespace=default", "--timeout=2"])
        .arg(format!("--kubeconfig={}", world.path("kubeconfig")))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

pub fn while_it_grows() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.make("Namespace", json!({"metadata": {"name": "default"}}));
        start(world)?;
        let (is_done, said) = recover(world);
        assert!(!is_done && said.contains("has not answered yet"), "{said}");
        let request = world.the_claim("data")["spec"]["resources"]["requests"].clone();
        assert_eq!(request["storage"], "100Mi");
        fs::write(world.path("goes-on"), "").unwrap();
        world.eventually("the claim to have grown", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "100Mi"
        })?;
        let (_, said) = recover(world);
        assert!(said.contains("there is nothing to take back"), "{said}");
        Ok(())
    });
}

/// The claim is deleted while its node is away, and its volume given to one of that name that asks for what the former
/// one had, as an earlier version of the command did.
pub fn while_its_node_is_away() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        start(world)?;
        world.kill("node");
        assert_eq!(allocated(world), "100Mi");
        let name = world.the_claim("data")["spec"]["volumeName"].clone();
        let volume = Key::new("PersistentVolume", "", name.as_str().unwrap());
        let keep = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        world.server.store().merge(&volume, &keep).unwrap();
        world.delete_claim("data");
        world.eventually("the volume to be released", |world| {
            world.server.store().get(&volume).unwrap()["status"]["phase"] == "Released"
        })?;
        make_anew(world, &volume, &name);
        world.eventually("what its storage may have to be counted", |world| {
            allocated(world) == "100Mi"
        })?;
        let made = Instant::now();
        world.eventually("a second to pass", |_| {
            made.elapsed() > Duration::from_secs(1)
        })?;
        assert_eq!(allocated(world), "100Mi", "its node has not measured it");

        fs::write(world.path("goes-on"), "").unwrap();
        world.start_agent("node", &[]);
        world.eventually("the claim to have what its storage has", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "100Mi"
        })?;
        assert_eq!(allocated(world), "100Mi");
        assert_eq!(Vec::from_iter(world.storage().into_values()), [100 * MEBI]);
        Ok(())
    });
}

/// Makes the claim anew and binds it to its volume.
fn make_anew(world: &World, volume: &Key, name: &Value) {
    world.make(
        "PersistentVolumeClaim",
        json!({
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "plain", "volumeName": name,
                "resources": {"requests": {"storage": "10Mi"}},
            },
        }),
    );
    let uid = world.the_claim("data")["metadata"]["uid"].clone();
    let offer = json!({"spec": {
        "capacity": {"storage": "10Mi"}, "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": "default", "name": "data", "uid": uid, "resourceVersion": null},
    }});
    let mut store = world.server.store();
    store.merge(volume, &offer).unwrap();
    let bound = json!({"phase": "Bound"});
    store.merge_status(volume, &bound).unwrap();
    let claim = Key::new("PersistentVolumeClaim", "default", "data");
    let has = json!({"phase": "Bound", "capacity": {"storage": "10Mi"}});
    store.merge_status(&claim, &has).unwrap();
}
