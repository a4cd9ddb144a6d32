//! Claim templates that get the sizes that their sets grew to: `flexvol-controller realign`.

use crate::{
    claims::class,
    claims_of_sets::{annotate, delete_set, ready, scale, set_of_data},
    controllers::{self, End, Running},
    lab::{self, DISK},
    scenario::Scenario,
};
use anyhow::Result;
use flexvol_lab::kubernetes::run;
use flexvol_testing::{Need, Points, Test};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::thread;

pub const TESTS: &[Test] = &[Test {
    name: "claims: a set is made anew around its pods with the sizes that it grew to, killed at any write",
    needs: &[Need::Root],
    run: realigned,
}];

/// The release in which a set says what becomes of its claims (`StatefulSetAutoDeletePVC` by default).
const RETENTION: &str = "1.27.0";

/// The command, as a person gives it, or where it ends by itself.
fn realign(scenario: &Scenario, more: &[&str], end: Option<End>) -> Result<String> {
    let node = scenario.lab().cluster().node();
    let mut command = node.command("flexvol-controller");
    command.args(["realign", "db"]).args(more);
    if let Some(end) = end {
        command.env("FLEXVOL_CONTROLLER_END", end.to_string());
    }
    run(&mut command)
}

#[track_caller]
fn refused(scenario: &Scenario, why: &str) {
    let error = realign(scenario, &[], None).unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains(why), "{said}");
}

fn realigned(points: &Points) {
    controllers::with(|scenario, running| {
        let pool = json!({"pool": "default"});
        let class = class("realigns", DISK, false, &pool);
        scenario.apply(&[class, set_of_data("realigns")]);
        ready(scenario, 2);
        let before = Before::of(scenario);
        for ordinal in 0..2 {
            let app = scenario.get("default", "pod", &format!("db-{ordinal}"));
            scenario.exec(&app, "echo kept >/data/note");
        }
        refusals(scenario, running, points);
        let size = killed(scenario, &before, points);
        let size = beside_others(scenario, &before, size, points);

        // Nothing but the template says it to a claim that is made now.
        annotate(scenario, "data", "320Mi");
        scale(scenario, 3);
        ready(scenario, 3);
        let third = scenario.claim("default", "data-db-2");
        let size = format!("{size}Mi");
        assert_eq!(third["status"]["capacity"]["storage"], *size);
        assert_eq!(Before::of(scenario), before, "no pod was restarted");
        for ordinal in 0..2 {
            let app = scenario.get("default", "pod", &format!("db-{ordinal}"));
            assert_eq!(scenario.exec(&app, "cat /data/note").trim(), "kept");
        }
        deleted_on_purpose(scenario, points);
        delete_set(scenario);
    });
}

fn refusals(scenario: &Scenario, running: &Running, points: &Points) {
    refused(scenario, "there is nothing to realign");
    annotate(scenario, "data", "330Mi");
    grown(scenario, 330);
    if lab::version() >= RETENTION.parse().unwrap() {
        retain(scenario, "Delete");
        refused(scenario, "its claims are to go with it");
        retain(scenario, "Retain");
        points.add(1);
    }
    // Nobody asks the claims for it.
    running.signal_controller(scenario, Signal::SIGSTOP);
    annotate(scenario, "data", "400Mi");
    refused(scenario, "and not 400Mi yet");
    annotate(scenario, "data", "330Mi");
    running.signal_controller(scenario, Signal::SIGCONT);
    let uid = || set(scenario)["metadata"]["uid"].clone();
    let before = uid();
    let said = realign(scenario, &["--dry-run"], None).unwrap();
    let asks = "claim template data says 320Mi, and its claims have 330Mi";
    assert!(said.contains(asks), "{said}");
    assert_eq!(uid(), before);
    assert_eq!(saves(scenario), 0);
    points.add(2);
}

/// Every end of the command but the last, after which there is none. Returns the template's size.
fn killed(scenario: &Scenario, before: &Before, points: &Points) -> u64 {
    let ends = (1..).flat_map(|write| [End::Before(write), End::After(write)]);
    let (mut killed, mut size) = (0, 330);
    for end in ends {
        size += 2;
        larger(scenario, size);
        if realign(scenario, &[], Some(end)).is_ok() {
            break;
        }
        killed += 1;
        let status = scenario.lab().run("flexvol-controller", &["status"]);
        let is_saved = saves(scenario) == 1;
        assert_eq!(status.contains("being realigned"), is_saved, "{status}");
        // It may have ended when all was done.
        if let Err(error) = realign(scenario, &[], None) {
            let said = format!("{error:#}");
            assert!(said.contains("nothing to realign"), "{end:?}: {said}");
        }
        is_whole(scenario, before, size);
    }
    is_whole(scenario, before, size);
    // That it can be made, the secret, the end of the one set, the other one, and the end of the secret.
    assert_eq!(killed, 2 * 5);
    println!("flexvol-controller realign: killed at {killed} moments");
    points.add(killed);
    size
}

/// Beside another run of the command, and beside people who edit the set or make it first.
fn beside_others(scenario: &Scenario, before: &Before, mut size: u64, points: &Points) -> u64 {
    size += 2;
    larger(scenario, size);
    let two = thread::scope(|scope| {
        let two = [(); 2].map(|()| scope.spawn(|| realign(scenario, &[], None)));
        two.map(|one| one.join().unwrap())
    });
    assert!(two.iter().any(Result::is_ok), "{two:?}");
    if saves(scenario) == 1 {
        realign(scenario, &[], None).unwrap();
    }
    is_whole(scenario, before, size);

    size += 2;
    larger(scenario, size);
    realign(scenario, &[], Some(End::After(2))).unwrap_err();
    let edit = ["annotate", "statefulset", "db", "edited=meanwhile"];
    scenario.lab().kubectl(&edit);
    realign(scenario, &[], None).unwrap();
    is_whole(scenario, before, size);
    assert_eq!(
        set(scenario)["metadata"]["annotations"]["edited"],
        "meanwhile"
    );

    size += 2;
    larger(scenario, size);
    let mut former = set(scenario);
    realign(scenario, &[], Some(End::After(3))).unwrap_err();
    scenario.eventually("the set to be gone", || {
        let found = scenario
            .lab()
            .cluster()
            .kubectl(&["get", "statefulset", "db"]);
        found.is_err()
    });
    for read_only in ["uid", "resourceVersion", "managedFields"] {
        former["metadata"]
            .as_object_mut()
            .unwrap()
            .remove(read_only);
    }
    scenario.apply(&[former]);
    ready(scenario, 2);
    realign(scenario, &[], None).unwrap();
    is_whole(scenario, before, size);
    points.add(3);
    size
}

/// A set that somebody deletes while it is saved stays away.
fn deleted_on_purpose(scenario: &Scenario, points: &Points) {
    let lab = scenario.lab();
    larger(scenario, 400);
    realign(scenario, &[], Some(End::After(2))).unwrap_err();
    lab.kubectl(&["delete", "statefulset", "db", "--timeout=60s"]);
    lab.kubectl(&[
        "wait",
        "--for=delete",
        "pods",
        "--selector=app=db",
        "--timeout=150s",
    ]);
    refused(scenario, "if somebody has deleted it on purpose");
    lab.kubectl(&["delete", "secret", "flexvol-realign-db"]);
    refused(scenario, "there is none");
    scenario.apply(&[set_of_data("realigns")]);
    points.add(1);
}

/// The set's claims grow to the size, and its pods are all there.
fn larger(scenario: &Scenario, mebibytes: u64) {
    annotate(scenario, "data", &format!("{mebibytes}Mi"));
    grown(scenario, mebibytes);
    ready(
        scenario,
        set(scenario)["spec"]["replicas"].as_u64().unwrap(),
    );
}

fn grown(scenario: &Scenario, mebibytes: u64) {
    for ordinal in 0..set(scenario)["spec"]["replicas"].as_u64().unwrap() {
        scenario.wait_grown_to(&format!("data-db-{ordinal}"), &format!("{mebibytes}Mi"));
    }
}

fn set(scenario: &Scenario) -> Value {
    scenario.get("default", "statefulset", "db")
}

fn retain(scenario: &Scenario, when_deleted: &str) {
    let policy = json!({"whenDeleted": when_deleted, "whenScaled": "Retain"});
    let patch = json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}}).to_string();
    let patch = ["patch", "statefulset", "db", "--patch", &patch];
    scenario.lab().kubectl(&patch);
}

/// What stays: the set's first two pods, and the revision of all.
#[derive(Debug, PartialEq)]
struct Before {
    pods: Vec<Value>,
    revision: Value,
}

impl Before {
    fn of(scenario: &Scenario) -> Self {
        let pod = |ordinal| scenario.get("default", "pod", &format!("db-{ordinal}"));
        let uids = (0..2).map(|ordinal| pod(ordinal)["metadata"]["uid"].clone());
        Before {
            pods: uids.collect(),
            revision: set(scenario)["status"]["updateRevision"].clone(),
        }
    }
}

/// How many sets are saved.
fn saves(scenario: &Scenario) -> usize {
    let saved = ["--selector=flexvol.dev/realigned", "--output=name"];
    let saved = [&["get", "secrets"][..], &saved].concat();
    scenario.lab().kubectl(&saved).lines().count()
}

/// The template has the size, the pods are the same and the set's, and nothing is saved any more.
#[track_caller]
fn is_whole(scenario: &Scenario, before: &Before, mebibytes: u64) {
    assert_eq!(saves(scenario), 0);
    ready(scenario, 2);
    let set = set(scenario);
    let template = &set["spec"]["volumeClaimTemplates"][0]["spec"];
    let size = format!("{mebibytes}Mi");
    assert_eq!(template["resources"]["requests"]["storage"], *size);
    assert_eq!(Before::of(scenario), *before, "no pod was restarted");
    for ordinal in 0..2 {
        let pod = scenario.get("default", "pod", &format!("db-{ordinal}"));
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], set["metadata"]["uid"]);
    }
}
