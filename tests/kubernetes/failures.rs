//! Growth that fails at first.

use crate::{accidents::Configured, calls::Call, lab::DISK, objects::pod, scenario::Scenario};
use flexvol_testing::{Need, Points, tests};
use std::fs;

tests! {
    "growth that finds no room says so, is asked for ever more rarely, and finishes when there is room", &[Need::Root]
        => full_pool;
    "a pod whose volume has to grow first waits for room, says so, and starts by itself", &[Need::Root]
        => full_at_start;
    "growth beyond what the configuration allows says so, and finishes when it allows more", &[Need::Root]
        => largest;
}

fn full_pool(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "crowded", 320);
    let app = pod("app", "crowded");
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let before = scenario.size_in(&app);
    let container = scenario.container(&app);
    let filler = scenario.fill_disk(200);
    scenario.ask_for("crowded", 640);
    scenario.eventually("kubelet to ask four times", || {
        scenario.calls(&["expandfs"], "crowded").len() >= 4
    });
    let why = "640Mi was asked for, the volume has 320Mi: the volume needs";
    scenario.wait_event("default", "app", why);
    assert_readable(&scenario, "app", why);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    assert_eq!(scenario.size_in(&app), before);
    fs::remove_file(filler).unwrap();
    scenario.wait_grown("crowded", 640);
    let calls = scenario.calls(&["expandfs"], "crowded");
    assert_backs_off(&calls);
    assert!(calls.last().is_some_and(Call::succeeded), "{calls:#?}");
    let after = scenario.size_in(&app);
    assert_eq!(after - before, 320, "{before} MiB became {after} MiB");
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    assert_eq!(scenario.container(&app), container, "the container is new");
    scenario.end();
}

fn full_at_start(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "waiting", 320);
    let first = pod("first", "waiting");
    scenario.run_pod(&first);
    let before = scenario.size_in(&first);
    scenario.exec(&first, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&first, "sha256sum /data/file");
    scenario.delete_pod(&first);
    let filler = scenario.fill_disk(200);
    scenario.ask_for("waiting", 640);
    scenario.wait_pending("waiting");
    let app = pod("app", "waiting");
    scenario.apply(std::slice::from_ref(&app));
    let why = "640Mi was asked for, the volume has 320Mi: the volume needs";
    scenario.wait_event("default", "app", why);
    assert_readable(&scenario, "app", why);
    scenario.eventually("kubelet to ask three times", || {
        scenario.calls(&["expandfs"], "waiting").len() >= 3
    });
    let phase = scenario.get("default", "pod", "app")["status"]["phase"].clone();
    assert_eq!(phase, "Pending");
    fs::remove_file(filler).unwrap();
    scenario.wait_running(&app);
    scenario.wait_grown("waiting", 640);
    assert_eq!(scenario.size_in(&app) - before, 320);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    scenario.end();
}

fn largest(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "limited", 320);
    let app = pod("app", "limited");
    scenario.run_pod(&app);
    let before = scenario.size_in(&app);
    let container = scenario.container(&app);
    let limited = Configured::with(&scenario, DISK, "largest = \"400Mi\"\n");
    scenario.ask_for("limited", 640);
    scenario.wait_event("default", "app", "400Mi");
    assert_readable(&scenario, "app", "400Mi");
    assert_eq!(scenario.size_in(&app), before);
    limited.restore();
    scenario.wait_grown("limited", 640);
    assert_eq!(scenario.size_in(&app) - before, 320);
    assert_eq!(scenario.container(&app), container, "the container is new");
    scenario.end();
}

/// Checks that events with this text exist and contain no paths.
#[track_caller]
fn assert_readable(scenario: &Scenario, object: &str, text: &str) {
    let events = scenario.events("default", object);
    let told: Vec<&str> = events.lines().filter(|line| line.contains(text)).collect();
    assert!(!told.is_empty(), "{events}");
    assert!(told.iter().all(|line| !line.contains('/')), "{told:?}");
}

/// Milliseconds of a day. Recorded times are since midnight.
const DAY: u64 = 86_400_000;

/// Checks that the intervals between calls grow.
#[track_caller]
fn assert_backs_off(calls: &[Call]) {
    let times: Vec<u64> = calls.iter().map(|call| call.time).collect();
    let gaps: Vec<u64> = times
        .windows(2)
        .map(|pair| (pair[1] + DAY - pair[0]) % DAY)
        .collect();
    assert!(gaps.len() > 2 && gaps.is_sorted(), "{gaps:?}");
    // The backoff doubles, and the interval includes the duration of the call.
    assert!(gaps[gaps.len() - 1] >= 3 * gaps[0], "{gaps:?}");
}
