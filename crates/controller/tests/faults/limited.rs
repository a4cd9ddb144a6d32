//! What a class allows, without a webhook: the largest size, and claims of some namespaces.

use crate::world::{MEBI, World, tell};
use flexvol_apiserver::{Key, Kubernetes};
use serde_json::{Value, json};

fn limited(largest: &str) -> Value {
    json!({"metadata": {"name": "limited", "annotations": {"flexvol.dev/largest": largest}}})
}

fn node_volume(world: &World) -> Value {
    let mut node_volumes = world.server.store().all("NodeVolume");
    node_volumes.pop().unwrap_or_default()
}

/// Kubernetes' own expander has written the requested size into the volume, and the NodeVolume is removed by force.
/// It is recreated when the class allows that size.
pub fn by_the_controller() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.class("limited", &limited("5Mi"));
        world.claim("data", "limited");
        world.eventually("its author to be told", |world| {
            world.told("allows at most 5Mi, and 10Mi is asked for")
        })?;
        assert!(node_volume(world).is_null());
        let class = Key::new("StorageClass", "", "limited");
        let allow = |world: &World, largest: &str| {
            let allowed = limited(largest);
            world.server.store().merge(&class, &allowed).unwrap();
        };
        allow(world, "20Mi");
        world.eventually("the claim to be bound and let go of", |world| {
            let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
            world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
        })?;

        world.ask_for("data", "100Mi");
        let words = "allows at most 20Mi, and 100Mi is asked for";
        world.eventually("its author to be told", |world| {
            let conditions = &world.the_claim("data")["status"]["conditions"];
            world.told(words) && conditions.to_string().contains(words)
        })?;
        assert_eq!(node_volume(world)["spec"]["size"], 10 * MEBI);
        let volume = &world.server.store().all("PersistentVolume")[0];
        assert_eq!(volume["spec"]["capacity"]["storage"], "100Mi");

        let before = node_volume(world);
        let key = Key::new(
            "NodeVolume",
            "",
            before["metadata"]["name"].as_str().unwrap(),
        );
        world.remove_by_force(&key);
        // A smaller size may make a driver cut off data, and a larger one is forbidden.
        world.eventually("its author to be told", |world| {
            world.told("say 100Mi where the class allows at most 20Mi")
        })?;
        assert!(node_volume(world).is_null());
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);

        allow(world, "100Mi");
        world.eventually("the claim to have grown", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "100Mi"
        })?;
        world.delete_claim("data");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// A class with a largest size does not allow growth any more, and the NodeVolume of a claim that asks for it is lost.
pub fn forbidden_before_a_loss() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        let mut class = limited("100Mi");
        class["allowVolumeExpansion"] = true.into();
        world.class("limited", &class);
        world.start_on_a_node();
        world.claim("data", "limited");
        world.eventually("the claim to be bound and let go of", |world| {
            let finalizers = &world.the_claim("data")["metadata"]["finalizers"];
            world.is_bound("data") && !finalizers.to_string().contains("flexvol.dev")
        })?;
        let key = Key::new("StorageClass", "", "limited");
        let forbids = json!({"allowVolumeExpansion": false});
        world.server.store().merge(&key, &forbids).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(1));
        world.ask_for("data", "50Mi");
        world.eventually("its author to be told", |world| {
            world.told("does not allow growth any more")
        })?;
        let lost = node_volume(world)["metadata"]["name"].clone();
        let lost = Key::new("NodeVolume", "", lost.as_str().unwrap());
        world.remove_by_force(&lost);
        world.eventually("the NodeVolume to be made anew and answered", |world| {
            node_volume(world)["status"]["state"] == "Present"
        })?;
        assert_eq!(node_volume(world)["spec"]["size"], 10 * MEBI);
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);
        Ok(())
    });
}

/// The API server answers everything but the watch of classes.
pub fn unwatched() {
    tell(World::beside(Kubernetes { expands: false }), |world| {
        world.class("limited", &limited("100Mi"));
        let held = world.server.hold("WATCH StorageClass ");
        world.start_on_a_node();
        world.claim("data", "limited");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let class = Key::new("StorageClass", "", "limited");
        world
            .server
            .store()
            .merge(&class, &limited("15Mi"))
            .unwrap();
        world.ask_for("data", "20Mi");
        world.eventually("its author to be told", |world| {
            world.told("allows at most 15Mi, and 20Mi is asked for")
        })?;
        assert_eq!(Vec::from_iter(world.storage().into_values()), [10 * MEBI]);
        // It is made anew with other parameters.
        let plain = Key::new("StorageClass", "", "plain");
        world.server.store().remove(&plain).unwrap();
        world.class("plain", &json!({"parameters": {"pool": "other"}}));
        world.claim("late", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("late"))?;
        let node_volumes = world.server.store().all("NodeVolume").into_iter();
        let mut late = node_volumes.filter(|other| other["spec"]["claim"]["name"] == "late");
        assert_eq!(
            late.next().unwrap()["spec"]["parameters"],
            json!({"pool": "other"})
        );
        drop(held);
        Ok(())
    });
}

/// A tenant's claim has waited for a class that is there for others, as that of `helm test`.
pub fn to_a_namespace() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        for namespace in ["default", "release"] {
            let claim = json!({
                "metadata": {"name": "waits", "namespace": namespace},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "check",
                    "resources": {"requests": {"storage": "10Mi"}},
                },
            });
            world.make("PersistentVolumeClaim", claim);
        }
        world.claims += 2;
        let annotations = json!({"flexvol.dev/namespaces": "kube-system, release"});
        let own = json!({"metadata": {"name": "check", "annotations": annotations}});
        world.class("check", &own);
        // The binder tries again now and then.
        let touched = json!({"metadata": {"annotations": {"touched": "yes"}}});
        for namespace in ["default", "release"] {
            let claim = Key::new("PersistentVolumeClaim", namespace, "waits");
            world.server.store().merge(&claim, &touched).unwrap();
        }
        let phase = |world: &World, namespace: &str| {
            world.get("PersistentVolumeClaim", namespace, "waits")["status"]["phase"].clone()
        };
        world.eventually("the release's claim to be bound", |world| {
            phase(world, "release") == "Bound"
        })?;
        let words = "is for claims of other namespaces";
        world.eventually("the tenant's claim to be judged", |world| {
            world.told(words) || phase(world, "default") == "Bound"
        })?;
        assert_ne!(phase(world, "default"), "Bound", "a class for others alone");
        assert_eq!(world.storage().len(), 1);
        assert_eq!(world.server.store().count("NodeVolume"), 1);
        Ok(())
    });
}
