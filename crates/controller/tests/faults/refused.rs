//! The API server, or an admission webhook behind it, rejects requests for a while.

use crate::{
    programs::free_address,
    world::{World, tell},
};
use flexvol_apiserver::Refused;
use serde_json::json;
use std::{
    fs,
    time::{Duration, Instant},
};

pub fn refused(code: u16, reason: &'static str, message: &str) -> Option<Refused> {
    Some(Refused {
        code,
        reason,
        message: message.to_owned(),
    })
}

/// A leader with the default lease duration.
pub fn busy() {
    tell(World::start(), |world| {
        world.node("node");
        world.start_leader(30, &["--rate=1000"]);
        world.start_agent("node", &[]);
        world.claim("one", "plain");
        world.eventually("a claim to be bound", |world| world.is_bound("one"))?;
        let renew = "PUT Lease flexvol-controller";
        let busy = refused(
            429,
            "TooManyRequests",
            "too many requests, please try again later",
        );
        world.server.refuse(renew, busy);
        let begun = Instant::now();
        world.eventually("ten seconds to pass", |_| {
            begun.elapsed() > Duration::from_secs(11)
        })?;
        world.server.refuse(renew, None);
        world.claim("two", "plain");
        world.eventually("the leader to go on", |world| {
            begun.elapsed() > Duration::from_secs(30) && world.is_bound("two")
        })
    });
}

/// Another admission webhook rejects writes of the claim.
pub fn by_admission() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let write = "PATCH PersistentVolumeClaim data";
        let why = "admission webhook \"policy.example.com\" denied the request: no finalizers";
        world.server.refuse(write, refused(403, "Forbidden", why));
        world.claim("data", "plain");
        world.eventually("its author to be told", |world| world.told("no finalizers"))?;
        world.server.refuse(write, None);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}

/// Another admission webhook rejects the persistent volume. No other node could do better.
pub fn volume() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let write = "POST PersistentVolume ";
        let why = "admission webhook \"policy.example.com\" denied the request: no local volumes";
        world.server.refuse(write, refused(403, "Forbidden", why));
        world.claim("data", "plain");
        world.eventually("its author to be told", |world| {
            world.told("no local volumes")
        })?;
        let begun = Instant::now();
        world.eventually("some time to pass", |_| {
            begun.elapsed() > Duration::from_secs(10)
        })?;
        let tried = world.server.requests().into_iter();
        let tried = tried.filter(|request| request == write).count();
        assert!(tried <= 8, "it was tried {tried} times");
        world.server.refuse(write, None);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}

/// The secret of the webhooks' certificate is deleted.
pub fn no_secret() {
    tell(World::start(), |world| {
        let webhooks = format!("--webhooks={}", free_address());
        world.start_controller(&["--rate=1000", &webhooks]);
        let begun = Instant::now();
        world.eventually("some time to pass", |_| {
            begun.elapsed() > Duration::from_secs(12)
        })?;
        let asked = world.server.requests().into_iter();
        let asked = asked.filter(|request| request.starts_with("GET Secret"));
        assert!(asked.count() <= 5, "it is asked for each second");
        let log = fs::read_to_string(world.path("controller.log")).unwrap();
        assert!(log.contains("there is no secret flexvol-webhook"), "{log}");
        let secret = json!({"metadata": {"name": "flexvol-webhook", "namespace": "flexvol"}});
        world.make("Secret", secret);
        world.eventually("a certificate to be made when it is there", |world| {
            world.get("Secret", "flexvol", "flexvol-webhook")["data"]["ca.crt"].is_string()
        })
    });
}

/// No event can be created in a namespace that is being deleted.
pub fn events() {
    tell(World::start(), |world| {
        world.start_controller(&["--rate=1000"]);
        let why =
            "unable to create new content in namespace default because it is being terminated";
        world
            .server
            .refuse("POST Event ", refused(403, "Forbidden", why));
        world.claim("data", "plain");
        let log = world.path("controller.log");
        world.eventually("the log to say of which claim, and why", |_| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let event = said
                .lines()
                .find(|line| line.contains("cannot write an event"));
            let waits = said.lines().find(|line| line.contains("a volume waits"));
            let all = |line: Option<&str>, words: &[&str]| {
                line.is_some_and(|line| words.iter().all(|word| line.contains(word)))
            };
            let told = [
                "PersistentVolumeClaim default/data",
                "ProvisioningFailed",
                "no node",
            ];
            let names = ["pvc-", r#""namespace":"default""#, r#""claim":"data""#];
            all(event, &told) && all(waits, &names) && all(waits, &["no node"])
        })
    });
}

/// A proxy between agent and API server answers 404.
pub fn order_not_found() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        world.eventually("room to be offered", |world| {
            let nodes = world.server.store().all("StorageNode");
            nodes
                .iter()
                .any(|node| node["status"]["capacities"]["plain"].is_u64())
        })?;
        world.kill("node");
        world.claim("data", "plain");
        world.eventually("storage to be ordered", |world| {
            world.server.store().count("NodeVolume") == 1
        })?;
        let node_volume = world.server.store().all("NodeVolume").pop().unwrap();
        let read = format!(
            "GET NodeVolume {}",
            node_volume["metadata"]["name"].as_str().unwrap()
        );
        let times = |world: &World| {
            let requests = world.server.requests().into_iter();
            requests.filter(|request| *request == read).count()
        };
        world
            .server
            .refuse(&read, refused(404, "", "404 page not found\n"));
        let before = times(world);
        world.start_agent("node", &[]);
        world.eventually("the agent to ask for its NodeVolume", |world| {
            times(world) > before
        })?;
        world.server.refuse(&read, None);
        world.eventually("the claim to be bound", |world| world.is_bound("data"))
    });
}
