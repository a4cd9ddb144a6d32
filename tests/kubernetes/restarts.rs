//! Kubelet ends and starts, and the node loses its power.

use crate::{
    accidents::Stopped,
    lab::DISK,
    scenario::{Scenario, pod},
};
use flexvol_lab::kubernetes::Component;
use flexvol_testing::{Need, Points, Test};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

pub const TESTS: &[Test] = &[
    Test {
        name: "a pod goes on while kubelet is restarted, and the new kubelet grows and unmounts its volume",
        needs: &[Need::Root],
        run: kubelet_restarts,
    },
    Test {
        name: "a node that lost its power has the pod's data, and finishes the growth that was cut",
        needs: &[Need::Root],
        run: power_cut,
    },
];

fn kubelet_restarts(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "restarted", 320);
    let app = ticking("app", "restarted");
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let container = scenario.container(&app);
    let ticks = scenario.directory(&app, DISK, "restarted").join("ticks");
    let written = || std::fs::metadata(&ticks).unwrap().len();
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let kubelet = Stopped::by(&scenario, Component::Kubelet, signal);
        let before = written();
        scenario.eventually("the pod to write while kubelet is down", || {
            written() > before
        });
        kubelet.start();
        scenario.wait_known(&app);
        assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    }
    scenario.ask_for("restarted", 640);
    scenario.wait_grown("restarted", 640);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    assert_eq!(scenario.container(&app), container, "the container is new");
    assert_eq!(scenario.calls(&["mount"], "restarted").len(), 1);
    scenario.delete_pod(&app);
    scenario.eventually("the volume to be unmounted", || {
        let unmounts = scenario.calls(&["unmount"], "restarted");
        unmounts.iter().any(|call| call.succeeded())
    });
    let next = pod("next", "restarted");
    scenario.run_pod(&next);
    assert_eq!(scenario.exec(&next, "sha256sum /data/file"), sum);
    scenario.end();
}

fn power_cut(_: &Points) {
    let mut scenario = Scenario::begin();
    scenario.volume(DISK, "cut", 320);
    let app = pod("app", "cut");
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let before = scenario.size_in(&app);
    for size in [320, 640] {
        let container = scenario.container(&app);
        if size > 320 {
            scenario.ask_for("cut", size);
            scenario.wait_begun("expandfs", "cut");
        }
        let rebooted = scenario.lab_mut().cluster_mut().reboot();
        rebooted.unwrap_or_else(|e| panic!("{e:#}"));
        scenario.eventually("a new container", || scenario.container(&app) != container);
        scenario.wait_running(&app);
        scenario.wait_grown("cut", size);
        assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    }
    let after = scenario.size_in(&app);
    assert_eq!(after - before, 320, "{before} MiB became {after} MiB");
    assert_eq!(scenario.image_bytes("cut"), 640 << 20);
    scenario.end();
}

/// A pod that writes ten times a second.
fn ticking(name: &str, claim: &str) -> Value {
    let mut pod = pod(name, claim);
    let script = "while sleep 0.1; do echo tick >>/data/ticks; done";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    pod
}
