//! Growth of volumes that pods use.

use crate::{
    accidents::Changed,
    claims::{claim, classes, delete_claim, wait_bound, wait_nothing_left},
    controllers,
    objects::pod,
    scenario::Scenario,
};
use flexvol_lab::kubernetes::{Component, wait_until};
use flexvol_testing::{Need, Points, budget, tests};
use nix::sys::statvfs::statvfs;
use std::{
    path::Path,
    time::{Duration, Instant},
};

tests! {
    "claims: a mounted volume grows when its claim is edited, and not when kubelet looks at its pod", &[Need::Root]
        => at_once;
}

/// Number of growths, unless every point is tried.
const ROUNDS: u64 = 3;
const ALL_ROUNDS: u64 = 50;

const STEP: u64 = 32;

/// Size in MiB of the file system that is mounted there.
fn size_at(scenario: &Scenario, directory: &Path) -> u64 {
    let path = scenario
        .lab()
        .cluster()
        .node()
        .path(directory.to_str().unwrap());
    let found = statvfs(&path).unwrap();
    (found.blocks() * found.fragment_size()).div_ceil(1 << 20)
}

/// Waits for something that must happen at once, and returns the elapsed seconds.
fn seconds(what: &str, begun: Instant, mut question: impl FnMut() -> bool) -> f64 {
    // Much shorter than kubelet's sync period in this test.
    wait_until(what, Duration::from_secs(60), || Ok(question())).unwrap_or_else(|e| panic!("{e}"));
    begun.elapsed().as_secs_f64()
}

fn at_once(points: &Points) {
    controllers::with(|scenario, _| {
        let idle = Changed::with(scenario, Component::Kubelet, &["--sync-frequency=24h"]);
        classes(scenario);
        scenario.apply(&[claim("data", "at-once", 320)]);
        let volume = wait_bound(scenario, "data");
        let app = pod("app", "data");
        scenario.run_pod(&app);
        scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
        let sum = scenario.exec(&app, "sha256sum /data/file");
        let volumes = scenario.directory_of(&app).join("volumes/lab.example~disk");
        let (directory, before) = (volumes.join(&volume), scenario.size_in(&app));
        let all = if budget().every_point {
            ALL_ROUNDS
        } else {
            ROUNDS
        };
        let (mut in_pod, mut in_claim) = (Vec::new(), Vec::new());
        for round in 1..=all {
            let begun = Instant::now();
            scenario.ask_for("data", 320 + round * STEP);
            in_pod.push(seconds("the file system to grow", begun, || {
                size_at(scenario, &directory) - before == round * STEP
            }));
            let told = format!("{}Mi", 320 + round * STEP);
            in_claim.push(seconds("the claim to say so", begun, || {
                scenario.claim("default", "data")["status"]["capacity"]["storage"] == *told
            }));
            scenario.wait_grown("data", 320 + round * STEP);
            points.add(1);
        }
        assert_eq!(scenario.size_in(&app) - before, all * STEP);
        assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
        let calls = scenario.calls(&["expandfs"], &volume);
        let ours = calls.iter().filter(|call| call.caller != "kubelet");
        assert_eq!(ours.count() as u64, all, "{calls:?}");
        for (what, mut took) in [("in the pod", in_pod), ("in the claim's status", in_claim)] {
            took.sort_by(f64::total_cmp);
            let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
            print!("({what} after {median:.2} s, {worst:.2} s at most) ");
        }
        scenario.delete_pod(&app);
        delete_claim(scenario, "data");
        wait_nothing_left(scenario);
        idle.back();
    });
}
