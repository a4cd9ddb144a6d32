//! An expansion that cannot succeed is taken back with `flexvol-controller recover`.

use crate::{
    claims::{LOWERS, class, condition, wait_bound},
    claims_of_sets::{annotate, delete_set, ready, scale, set_of_data},
    controllers::{self, ExitPoint},
    lab::{self, DISK},
    scenario::Scenario,
};
use anyhow::Result;
use flexvol_lab::kubernetes::run;
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{fs, thread};

tests! {
    "claims: growth that cannot be had is taken back by a command, killed at any write, and the data stays", &[Need::Root]
        => taken_back;
}

/// The set's only claim.
const CLAIM: &str = "data-db-0";

/// A set of one pod with one claim of the driver.
fn one() -> Value {
    let mut set = set_of_data("recovers");
    set["spec"]["replicas"] = 1.into();
    set
}

/// Runs the command as a person does, or lets it end at this write.
fn recover(scenario: &Scenario, more: &[&str], end: Option<ExitPoint>) -> Result<String> {
    let node = scenario.lab().cluster().node();
    let mut command = node.command("flexvol-controller");
    command.args(["recover", CLAIM]).args(more);
    if let Some(end) = end {
        command.env("FLEXVOL_CONTROLLER_END", end.to_string());
    }
    run(&mut command)
}

#[track_caller]
fn refused(scenario: &Scenario, more: &[&str], why: &str) {
    let error = recover(scenario, more, None).unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains(why), "{said}");
}

fn taken_back(points: &Points) {
    controllers::with(|scenario, _| {
        let lab = scenario.lab();
        let pool = json!({"pool": "default"});
        scenario.apply(&[class("recovers", DISK, false, &pool), one()]);
        ready(scenario, 1);
        let app = scenario.get("default", "pod", "db-0");
        scenario.exec(&app, "echo kept >/data/note");
        let volume = wait_bound(scenario, CLAIM);
        refused(scenario, &[], "there is nothing to take back");

        let filler = scenario.fill_disk(200);
        annotate(scenario, "data", "640Mi");
        scenario.eventually("the claim to say that there is no room", || {
            condition(scenario, CLAIM, "ControllerResizeError").is_some()
        });
        refused(scenario, &[], "asks for 640Mi by its annotation");
        annotate(scenario, "data", "320Mi");
        refused(scenario, &["--size=1Mi"], "nothing makes it smaller");
        refused(scenario, &["--size=1Gi"], "to grow it, edit it");
        let mut has = 320;
        if lab::version() >= LOWERS.parse().unwrap() {
            let said = recover(scenario, &["--size=352Mi"], None).unwrap();
            assert!(
                said.ends_with("its request was lowered to 352Mi\n"),
                "{said}"
            );
            scenario.wait_grown(CLAIM, 352);
            has = 352;
            scenario.ask_for(CLAIM, 640);
            points.add(1);
        }

        refused(scenario, &[], "stateful set db would make the claim anew");
        scale(scenario, 0);
        lab.kubectl(&["wait", "--for=delete", "pod/db-0", "--timeout=150s"]);
        let before = scenario.claim("default", CLAIM);
        let said = recover(scenario, &["--dry-run"], None).unwrap();
        assert!(said.contains("it would be deleted and recreated"), "{said}");
        let after = scenario.claim("default", CLAIM);
        assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);

        // Every write of the command. The loop ends when it has no such write.
        let ends = (1..).flat_map(|write| [ExitPoint::Before(write), ExitPoint::After(write)]);
        let mut killed = 0;
        for end in ends {
            scenario.ask_for(CLAIM, 640);
            if recover(scenario, &[], Some(end)).is_ok() {
                break;
            }
            killed += 1;
            let status = lab.run("flexvol-controller", &["status"]);
            let is_noted = annotations(scenario, &volume).contains("recovery");
            assert_eq!(status.contains("being recovered"), is_noted, "{status}");
            // It may have ended when everything was done.
            if let Err(error) = recover(scenario, &[], None) {
                let said = format!("{error:#}");
                assert!(said.contains("nothing to take back"), "{end:?}: {said}");
            }
            is_whole(scenario, &volume, has);
        }
        is_whole(scenario, &volume, has);
        scenario.ask_for(CLAIM, 640);
        let two = thread::scope(|scope| {
            let two = [(); 2].map(|()| scope.spawn(|| recover(scenario, &[], None)));
            two.map(|one| one.join().unwrap())
        });
        assert!(two.iter().any(Result::is_ok), "{two:?}");
        is_whole(scenario, &volume, has);
        assert!(killed >= 2 * 5, "killed {killed} times");
        println!("flexvol-controller recover: killed at {killed} moments");
        points.add(killed);

        fs::remove_file(&filler).unwrap();
        scale(scenario, 1);
        ready(scenario, 1);
        let app = scenario.get("default", "pod", "db-0");
        assert_eq!(scenario.exec(&app, "cat /data/note").trim(), "kept");
        scenario.ask_for(CLAIM, 640);
        scenario.wait_grown(CLAIM, 640);
        assert_eq!(scenario.image_bytes(&volume), 640 << 20);
        delete_set(scenario);
    });
}

fn annotations(scenario: &Scenario, volume: &str) -> String {
    let found = scenario.get("default", "persistentvolume", volume);
    found["metadata"]["annotations"].to_string()
}

/// Checks that the claim requests its actual size and has its original volume, which is deleted with it.
#[track_caller]
fn is_whole(scenario: &Scenario, volume: &str, mebibytes: u64) {
    let claim = scenario.claim("default", CLAIM);
    let size = format!("{mebibytes}Mi");
    assert_eq!(claim["spec"]["volumeName"], volume);
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], *size);
    assert_eq!(claim["status"]["capacity"]["storage"], *size);
    assert_eq!(claim["status"]["phase"], "Bound");
    let found = scenario.get("default", "persistentvolume", volume);
    let spec = &found["spec"];
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(spec["capacity"]["storage"], *size);
    assert_eq!(spec["claimRef"]["uid"], claim["metadata"]["uid"]);
    let annotations = annotations(scenario, volume);
    assert!(!annotations.contains("recovery"), "{annotations}");
    assert_eq!(scenario.volumes().len(), 1);
}
