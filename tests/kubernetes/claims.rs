//! Claims for which `flexvol-controller` makes volumes.

use crate::{
    accidents::Changed,
    controllers::{self, ExitPoint, Program, Running, plain_volumes, writes_of},
    lab::{self, DISK},
    objects::pod,
    scenario::Scenario,
};
use flexvol_lab::kubernetes::Component;
use flexvol_testing::{Need, Points, Random, budget, tests};
use serde_json::{Value, json};
use std::{fs, thread, time::Duration};

tests! {
    "claims: a claim becomes a volume, grows under its pod, and is gone with its storage", &[Need::Root]
        => life;
    "claims: the controller killed after any write leaves neither storage without a claim nor a claim without storage", &[Need::Root]
        => killed;
    "claims: a claim that cannot be had says why, and leaves nothing", &[Need::Root] => refused;
    "claims: a claim grows under its pod also where Kubernetes' own expander does not run", &[Need::Root]
        => without_expander;
}

/// The first release in which a request can be lowered by default (`RecoverVolumeExpansionFailure`).
pub const LOWERS: &str = "1.32.0";

const MEBI: u64 = 1 << 20;

/// A storage class of the driver.
pub fn class(name: &str, driver: &str, late: bool, parameters: &Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": driver,
        // Before 1.33 Kubernetes treats empty parameters as different from none.
        "parameters": Some(parameters).filter(|parameters| **parameters != json!({})),
        "allowVolumeExpansion": true,
        "volumeBindingMode": if late { "WaitForFirstConsumer" } else { "Immediate" },
    })
}

/// A claim in the default namespace.
pub fn claim(name: &str, class: &str, mebibytes: u64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": format!("{mebibytes}Mi")}},
        },
    })
}

/// Makes two classes: one with immediate binding, one that waits for a pod.
pub fn classes(scenario: &Scenario) {
    let pool = json!({"pool": "default"});
    scenario.apply(&[
        class("at-once", DISK, false, &pool),
        class("later", DISK, true, &pool),
    ]);
}

/// Waits until the claim is bound, and returns its volume's name.
pub fn wait_bound(scenario: &Scenario, claim: &str) -> String {
    scenario.eventually(&format!("claim {claim} to be bound"), || {
        scenario.claim("default", claim)["status"]["phase"] == "Bound"
    });
    let found = scenario.claim("default", claim);
    found["spec"]["volumeName"].as_str().unwrap().to_owned()
}

/// A condition of a claim in the default namespace.
pub fn condition(scenario: &Scenario, claim: &str, kind: &str) -> Option<Value> {
    let conditions = scenario.claim("default", claim)["status"]["conditions"].clone();
    let mut all = conditions.as_array().cloned().into_iter().flatten();
    all.find(|condition| condition["type"] == kind)
}

/// Deletes a claim and waits until it is gone.
pub fn delete_claim(scenario: &Scenario, claim: &str) {
    let lab = scenario.lab();
    lab.kubectl(&["delete", "persistentvolumeclaim", claim, "--timeout=150s"]);
}

/// Waits until no trace of any claim is left in the cluster or on the node.
pub fn wait_nothing_left(scenario: &Scenario) {
    for kind in ["persistentvolumes", "nodevolumes"] {
        scenario.eventually(&format!("no {kind} to be left"), || {
            let left = scenario.lab().kubectl(&["get", kind, "--output=name"]);
            left.trim().is_empty()
        });
    }
    scenario.eventually("no storage to be left", || {
        scenario.volumes().is_empty() && plain_volumes(scenario).is_empty()
    });
}

fn life(points: &Points) {
    controllers::with(|scenario, _| {
        classes(scenario);
        for class in ["at-once", "later"] {
            scenario.apply(&[claim("data", class, 320)]);
            let app = pod("app", "data");
            if class == "at-once" {
                wait_bound(scenario, "data");
            }
            scenario.run_pod(&app);
            let volume = wait_bound(scenario, "data");
            let found = scenario.get("default", "persistentvolume", &volume);
            let uid = &scenario.claim("default", "data")["metadata"]["uid"];
            assert_eq!(volume, format!("pvc-{}", uid.as_str().unwrap()));
            assert_eq!(found["spec"]["claimRef"]["uid"], *uid);
            assert_eq!(found["spec"]["storageClassName"], class);
            assert_eq!(found["spec"]["persistentVolumeReclaimPolicy"], "Delete");
            assert_eq!(found["spec"]["capacity"]["storage"], "320Mi");
            assert_eq!(
                found["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"],
                DISK
            );
            scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
            let sum = scenario.exec(&app, "sha256sum /data/file");
            let before = scenario.size_in(&app);
            scenario.ask_for("data", 640);
            scenario.wait_grown("data", 640);
            assert_eq!(scenario.size_in(&app) - before, 320);
            assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
            assert_eq!(scenario.image_bytes(&volume), 640 * MEBI);
            let finalizers =
                || scenario.claim("default", "data")["metadata"]["finalizers"].to_string();
            scenario.eventually("the claim to be let go of", || {
                !finalizers().contains("flexvol.dev")
            });
            scenario.delete_pod(&app);
            said_for_people(scenario);
            delete_claim(scenario, "data");
            wait_nothing_left(scenario);
            points.add(1);
        }
    });
}

/// Checks that events, conditions, logs and what commands show have no text that only Rust's `Debug` writes.
fn said_for_people(scenario: &Scenario) {
    let events = scenario
        .lab()
        .kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    let conditions = scenario.claim("default", "data")["status"]["conditions"].clone();
    let conditions = conditions.as_array().into_iter().flatten();
    let messages = conditions.filter_map(|condition| condition["message"].as_str());
    let mut all = vec![("events", events), ("logs", controllers::log(scenario))];
    all.extend(messages.map(|message| ("conditions", message.to_owned())));
    for (what, text) in all {
        for debug in ["Some(", "None", "Bytes(", "{ "] {
            assert!(!text.contains(debug), "{what}: {debug}: {text}");
        }
    }
}

/// Number of lives in which the controller is killed, unless every point is tried. Each takes a quarter of a
/// minute, and crates/controller/tests/faults kills it at every write.
const LIVES: usize = 2;

fn killed(points: &Points) {
    controllers::with(|scenario, running| {
        classes(scenario);
        assert!(!killed_once(scenario, running, ExitPoint::NEVER));
        let all = writes_of(scenario, Program::Controller);
        assert!(all > 8, "a life has more writes than {all}");
        let mut writes: Vec<_> = (1..=all).collect();
        Random::new(budget().seed).shuffle(&mut writes);
        if !budget().every_point {
            writes.truncate(LIVES);
        }
        let lives = writes.iter().map(|write| ExitPoint::After(*write));
        let reached = lives.filter(|end| killed_once(scenario, running, *end));
        let reached = reached.count().try_into().unwrap();
        assert!(reached > 0, "nothing was killed");
        let name = "flexvol-controller, under a pod";
        points.report(name, reached, all.try_into().unwrap(), "kills after writes");
    });
}

/// Makes a claim, grows it under its pod, and deletes it, while the controller ends once. Returns whether the
/// controller did end: a life may need fewer writes than another.
fn killed_once(scenario: &Scenario, running: &Running, end: ExitPoint) -> bool {
    let mut round = Round::new(scenario, running);
    running.restart_controller(scenario, Some(end));
    scenario.apply(&[claim("short", "at-once", 320)]);
    round.eventually("the claim to be bound", || {
        scenario.claim("default", "short")["status"]["phase"] == "Bound"
    });
    assert_eq!(scenario.volumes().len(), 1, "{end:?}");
    let app = pod("app", "short");
    scenario.run_pod(&app);
    let before = scenario.size_in(&app);
    scenario.ask_for("short", 352);
    round.eventually("the claim to have grown", || {
        scenario.claim("default", "short")["status"]["capacity"]["storage"] == "352Mi"
    });
    let volume = scenario.volumes()[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(scenario.image_bytes(&volume), 352 * MEBI);
    assert_eq!(scenario.size_in(&app) - before, 32);
    scenario.delete_pod(&app);
    let delete = ["delete", "persistentvolumeclaim", "short", "--wait=false"];
    scenario.lab().kubectl(&delete);
    for kind in ["persistentvolumeclaims", "persistentvolumes", "nodevolumes"] {
        round.eventually(&format!("no {kind} to be left"), || {
            let left = scenario.lab().kubectl(&["get", kind, "--output=name"]);
            left.trim().is_empty()
        });
    }
    assert_eq!(scenario.volumes().len(), 0, "{end:?}");
    // It may have ended at its last write, which no wait noticed.
    round.killed || !Program::Controller.runs(scenario)
}

/// A life during which a program ends once, and is started again.
pub struct Round<'a> {
    scenario: &'a Scenario,
    program: Program,
    restart: Box<dyn Fn() + 'a>,
    /// Whether the program has ended.
    pub killed: bool,
}

impl<'a> Round<'a> {
    /// The program is the controller.
    pub fn new(scenario: &'a Scenario, running: &'a Running) -> Self {
        let restart = || running.restart_controller(scenario, None);
        Round::of(scenario, Program::Controller, restart)
    }

    pub fn of(scenario: &'a Scenario, program: Program, restart: impl Fn() + 'a) -> Self {
        Round {
            scenario,
            program,
            restart: Box::new(restart),
            killed: false,
        }
    }

    pub fn eventually(&mut self, what: &str, mut question: impl FnMut() -> bool) {
        self.scenario.eventually(what, || {
            if !self.program.runs(self.scenario) {
                assert!(
                    !self.killed,
                    "it ended twice: {}",
                    controllers::log(self.scenario)
                );
                self.killed = true;
                (self.restart)();
            }
            question()
        });
    }
}

fn expander() -> &'static str {
    match lab::version() >= "1.28.0".parse().unwrap() {
        true => "persistentvolume-expander-controller",
        false => "persistentvolume-expander",
    }
}

/// Restarts the controller manager without its expander.
pub fn stop_expander(scenario: &Scenario) -> Changed<'_> {
    let but = format!("--controllers=*,-{}", expander());
    Changed::with(scenario, Component::ControllerManager, &[&but])
}

/// Kubernetes' expander sets the condition `Resizing` and raises the volume's capacity. Growth works without it.
fn without_expander(_: &Points) {
    controllers::with(|scenario, _| {
        let without = stop_expander(scenario);
        classes(scenario);
        scenario.apply(&[claim("data", "at-once", 320)]);
        let volume = wait_bound(scenario, "data");
        let app = pod("app", "data");
        scenario.run_pod(&app);
        let before = scenario.size_in(&app);
        scenario.ask_for("data", 640);
        scenario.wait_grown("data", 640);
        assert_eq!(scenario.size_in(&app) - before, 320);
        assert_eq!(scenario.image_bytes(&volume), 640 * MEBI);
        let log = scenario
            .lab()
            .cluster()
            .file("/var/log/kube-controller-manager.log");
        let log = fs::read_to_string(log).unwrap();
        let expander = expander();
        let off = |line: &str| line.contains(expander) && line.contains("is disabled");
        assert!(log.lines().any(off), "{expander} runs");
        scenario.delete_pod(&app);
        delete_claim(scenario, "data");
        wait_nothing_left(scenario);
        without.back();
    });
}

fn refused(points: &Points) {
    controllers::with(|scenario, _| {
        classes(scenario);
        let unknown = json!({"pool": "default", "colour": "red"});
        scenario.apply(&[class("unknown", DISK, false, &unknown)]);
        let mut block = claim("block", "at-once", 320);
        block["spec"]["volumeMode"] = "Block".into();
        let mut selects = claim("selects", "at-once", 320);
        selects["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
        let mut many = claim("many", "at-once", 320);
        many["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        let mut mounts = class("mounts", DISK, false, &json!({"pool": "default"}));
        mounts["mountOptions"] = json!(["noatime"]);
        scenario.apply(&[mounts]);
        for (claim, why) in [
            (block, "set volumeMode to Filesystem"),
            (selects, "has a selector"),
            (many, "ask for ReadWriteOnce"),
            (claim("mounts", "mounts", 320), "mountOptions"),
            (
                claim("classless", "forgotten", 320),
                "\"forgotten\" not found",
            ),
            (claim("unknown", "unknown", 320), "colour"),
            (claim("huge", "at-once", 1 << 30), "no node has room"),
        ] {
            let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
            scenario.apply(std::slice::from_ref(&claim));
            scenario.wait_event("default", &name, why);
            assert_eq!(
                scenario.claim("default", &name)["status"]["phase"],
                "Pending"
            );
            assert!(scenario.volumes().is_empty(), "{name}");
            if name == "unknown" {
                let uid = scenario.claim("default", &name)["metadata"]["uid"].clone();
                // Long enough for delays of 1, 2 and 4 seconds.
                thread::sleep(Duration::from_secs(7));
                let calls =
                    scenario.calls(&["provision"], &format!("pvc-{}", uid.as_str().unwrap()));
                assert!(
                    (1..=5).contains(&calls.len()),
                    "asked {} times",
                    calls.len()
                );
            }
            delete_claim(scenario, &name);
            points.add(1);
        }
        wait_nothing_left(scenario);
    });
}
