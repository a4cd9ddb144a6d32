//! Volumes that drivers call infeasible, rightly and wrongly.

use crate::{
    unable::{claims, install, known, names, told_of},
    world::{World, tell},
};
use flexvol_apiserver::Key;
use serde_json::json;

fn make_claim(world: &World, namespace: &str, name: &str, size: &str) {
    world.make(
        "PersistentVolumeClaim",
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "plain",
                "resources": {"requests": {"storage": size}},
            },
        }),
    );
}

/// A tenant requests less than the minimum size of every driver.
pub fn for_every_driver() {
    const CLAIMS: usize = 9;
    tell(World::start(), |world| {
        let least = r#" [ "$(value requestBytes "$2")" -ge 1048576 ] || { echo '{"status":"Failure","message":"a volume has at least 1Mi","errorClass":"infeasible"}' && exit 1; }"#;
        for node in ["a", "b", "c"] {
            world.node(node);
            install(world, node, least);
            world.start_agent(node, &[]);
        }
        world.start_controller(&["--rate=1000"]);
        known(world, 3)?;
        let claim = |number: usize| ("tenant", format!("c{number}"));
        for number in 0..CLAIMS {
            let (namespace, name) = claim(number);
            make_claim(world, namespace, &name, "1");
        }
        for number in 0..CLAIMS {
            world.eventually("the claim to be refused", |world| {
                let (namespace, name) = claim(number);
                let claim = world.get("PersistentVolumeClaim", namespace, &name);
                told_of(world, &claim, "2 nodes say (a volume has at least 1Mi)")
            })?;
        }
        let mut node_volumes = world.server.requests();
        node_volumes.retain(|asked| asked.starts_with("POST NodeVolume"));
        assert_eq!(
            node_volumes.len(),
            2 * CLAIMS,
            "no third node is asked: {node_volumes:?}"
        );
        claims(world, "plain", &names(1))?;
        let claim = world.the_claim("c0");
        assert!(!told_of(world, &claim, "node"), "it had a node at once");
        Ok(())
    });
}

/// Two nodes of four report the most room and call every volume infeasible, as with an older configuration.
pub fn for_some_nodes() {
    const CLAIMS: usize = 4;
    tell(World::start(), |world| {
        let never = r#" echo '{"status":"Failure","message":"option pool is unknown","errorClass":"infeasible"}' && exit 1"#;
        for node in ["a", "b", "c", "d"] {
            world.node(node);
            let refuses = ["a", "b"].contains(&node);
            install(world, node, if refuses { never } else { "" });
            if !refuses {
                let script = world.path(&format!("{node}/plugins/lab.example~plain/plain"));
                let able = std::fs::read_to_string(&script).unwrap();
                world.install_script(node, &able.replace("1099511627776", "549755813888"));
            }
            world.start_agent(node, &[]);
        }
        world.start_controller(&["--rate=1000"]);
        known(world, 4)?;
        world.claims += CLAIMS;
        let claim = |number: usize| (format!("tenant{number}"), "data");
        for number in 0..CLAIMS {
            let (namespace, name) = claim(number);
            make_claim(world, &namespace, name, "10Mi");
        }
        world.eventually("all claims to be bound", |world| {
            (0..CLAIMS).all(|number| {
                let (namespace, name) = claim(number);
                let claim = world.get("PersistentVolumeClaim", &namespace, name);
                claim["status"]["phase"] == "Bound"
            })
        })?;
        let asked = world.server.requests().into_iter();
        let asked = asked
            .filter(|asked| asked.starts_with("POST NodeVolume"))
            .count();
        assert!(asked <= 3 * CLAIMS, "{asked} volumes were ordered");
        Ok(())
    });
}

/// A NodeVolume that another node is to take over has somebody else's finalizer.
pub fn kept_by_others() {
    tell(World::start(), |world| {
        let never = r#" sleep 1; echo '{"status":"Failure","message":"no","errorClass":"infeasible"}' && exit 1"#;
        for node in ["a", "b"] {
            world.node(node);
        }
        install(world, "a", never);
        world.start_agent("a", &[]);
        world.start_controller(&["--rate=1000"]);
        known(world, 1)?;
        world.claim("data", "plain");
        let key = |world: &World| {
            let all = world.server.store().all("NodeVolume");
            let name = all.first()?["metadata"]["name"].as_str()?.to_owned();
            Some(Key::new("NodeVolume", "", &name))
        };
        world.eventually("node a to be asked", |world| key(world).is_some())?;
        let key = key(world).unwrap();
        let finalizers = json!(["flexvol.dev/node-volume", "example.com/x"]);
        let held = json!({"metadata": {"finalizers": finalizers}});
        world.server.store().merge(&key, &held).unwrap();
        install(world, "b", "");
        world.start_agent("b", &[]);
        let told = "finalizers of others keep it: example.com/x; take them from it";
        world.eventually("people to be told", |world| world.told(told))?;
        let requests = world.server.requests().into_iter();
        let made = requests.filter(|asked| asked.starts_with("POST NodeVolume"));
        assert_eq!(made.count(), 1, "none can be made before it has gone");
        let free = json!({"metadata": {"finalizers": []}});
        world.server.store().merge(&key, &free).unwrap();
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}
