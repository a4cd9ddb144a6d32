//! Restarts of kubelet, and power failures of the node.

use crate::{
    accidents::{Busy, Stopped},
    calls::Call,
    lab::DISK,
    objects::pod,
    scenario::Scenario,
};
use flexvol_lab::kubernetes::{Component, wait_until};
use flexvol_testing::{Need, Points, loops_of, tests};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{fs, os::unix::fs::MetadataExt, time::Duration};

tests! {
    "a pod goes on while kubelet is restarted, and the new kubelet grows and unmounts its volume", &[Need::Root]
        => kubelet_restarts;
    "growth that kubelet's end cut short, or that nobody began, is finished by the next kubelet", &[Need::Root]
        => killed_while_growing;
    "pods that were deleted while kubelet was down are cleaned up when it starts", &[Need::Root]
        => deleted_while_down;
    "a claim edited as its pod is deleted is grown for the next pod, and nothing is left", &[Need::Root]
        => grown_while_deleted;
    "a node that lost its power has the pod's data, and finishes the growth that was cut", &[Need::Root]
        => power_cut;
}

/// A volume whose persistent volume has the same name as the pod's volume. After a restart kubelet 1.24
/// confuses the two names, and if they differ the pod waits for two minutes
/// (`processReconstructedVolumes` in `pkg/kubelet/volumemanager/reconciler/reconciler.go`).
pub const PODS_OWN: &str = "data";

fn kubelet_restarts(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, PODS_OWN, 320);
    let app = ticking("app", PODS_OWN);
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let container = scenario.container(&app);
    let ticks = scenario.directory(&app, DISK, PODS_OWN).join("ticks");
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
    scenario.ask_for(PODS_OWN, 640);
    scenario.wait_grown(PODS_OWN, 640);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    assert_eq!(scenario.container(&app), container, "the container is new");
    assert_eq!(scenario.calls(&["mount"], PODS_OWN).len(), 1);
    scenario.delete_pod(&app);
    scenario.eventually("the volume to be unmounted", || {
        let unmounts = scenario.calls(&["unmount"], PODS_OWN);
        unmounts.iter().any(|call| call.succeeded())
    });
    let next = pod("next", PODS_OWN);
    scenario.run_pod(&next);
    assert_eq!(scenario.exec(&next, "sha256sum /data/file"), sum);
    scenario.end();
}

fn killed_while_growing(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, PODS_OWN, 320);
    let app = ticking("app", PODS_OWN);
    scenario.run_pod(&app);
    let before = scenario.size_in(&app);
    let container = scenario.container(&app);

    let kubelet = Stopped::by(&scenario, Component::Kubelet, Signal::SIGKILL);
    scenario.ask_for(PODS_OWN, 384);
    scenario.wait_pending(PODS_OWN);
    kubelet.start();
    scenario.wait_grown(PODS_OWN, 384);

    // The callout waits for a lock when kubelet is killed, and continues without it.
    let other = Busy::volume(&scenario, PODS_OWN);
    scenario.ask_for(PODS_OWN, 448);
    scenario.wait_begun("expandfs", PODS_OWN);
    let kubelet = Stopped::by(&scenario, Component::Kubelet, Signal::SIGKILL);
    assert_eq!(scenario.image_bytes(PODS_OWN), 384 << 20);
    other.end();
    scenario.eventually("the call to grow the volume without its caller", || {
        scenario.image_bytes(PODS_OWN) == 448 << 20
    });
    kubelet.start();
    scenario.wait_grown(PODS_OWN, 448);

    // As under systemd: all processes that kubelet started are killed too.
    let other = Busy::volume(&scenario, PODS_OWN);
    scenario.ask_for(PODS_OWN, 512);
    scenario.wait_begun("expandfs", PODS_OWN);
    let kubelet = Stopped::by(&scenario, Component::Kubelet, Signal::SIGKILL);
    other.end();
    scenario.kill_callouts(PODS_OWN);
    kubelet.start();
    scenario.wait_grown(PODS_OWN, 512);

    scenario.wait_known(&app);
    assert_eq!(scenario.size_in(&app) - before, 512 - 320);
    assert_eq!(scenario.image_bytes(PODS_OWN), 512 << 20);
    assert_eq!(scenario.container(&app), container, "the container is new");
    scenario.end();
}

fn deleted_while_down(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "deserted", 320);
    let (polite, forced) = (pod("polite", "deserted"), pod("forced", "deserted"));
    scenario.run_pod(&polite);
    scenario.run_pod(&forced);
    scenario.exec(&polite, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&polite, "sha256sum /data/file");
    let kubelet = Stopped::by(&scenario, Component::Kubelet, Signal::SIGKILL);
    let kubectl = |arguments: &[&str]| scenario.lab().kubectl(arguments);
    kubectl(&["delete", "pod", "polite", "--wait=false"]);
    let force = ["--force", "--grace-period=0", "--wait=false"];
    kubectl(&[&["delete", "pod", "forced"], &force[..]].concat());
    kubelet.start();
    scenario.eventually("kubelet to remove both pods", || {
        kubectl(&["get", "pods", "--output=name"]).is_empty() && scenario.no_pods_on_disk()
    });
    let unmounts = scenario.calls(&["unmount"], "deserted");
    assert!(unmounts.len() >= 2, "{unmounts:#?}");
    assert!(unmounts.iter().all(Call::succeeded), "{unmounts:#?}");
    let next = pod("next", "deserted");
    scenario.run_pod(&next);
    assert_eq!(scenario.exec(&next, "sha256sum /data/file"), sum);
    scenario.end();
}

fn grown_while_deleted(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "passing", 320);
    let mut app = pod("app", "passing");
    // The container ignores SIGTERM, so its end takes this long.
    app["spec"]["terminationGracePeriodSeconds"] = 4.into();
    scenario.run_pod(&app);
    let before = scenario.size_in(&app);
    scenario.ask_for("passing", 640);
    scenario.delete_pod(&app);
    scenario.eventually("the pod's directories to go", || scenario.no_pods_on_disk());
    let next = pod("next", "passing");
    scenario.run_pod(&next);
    scenario.wait_grown("passing", 640);
    assert_eq!(scenario.size_in(&next) - before, 320);
    assert_eq!(scenario.image_bytes("passing"), 640 << 20);
    let calls = scenario.calls(&["expandfs", "mount", "unmount"], "passing");
    assert!(calls.iter().all(Call::succeeded), "{calls:#?}");
    scenario.end();
}

fn power_cut(_: &Points) {
    let mut scenario = Scenario::begin();
    scenario.volume(DISK, PODS_OWN, 320);
    let app = pod("app", PODS_OWN);
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let before = scenario.size_in(&app);
    for size in [320, 640] {
        let container = scenario.container(&app);
        if size > 320 {
            // The power fails during the callout.
            let other = Busy::volume(&scenario, PODS_OWN);
            scenario.ask_for(PODS_OWN, size);
            scenario.wait_begun("expandfs", PODS_OWN);
            other.end();
        }
        let cluster = scenario.lab_mut().cluster_mut();
        let disk = fs::metadata(cluster.node().path(flexvol_lab::kubernetes::DISK))
            .unwrap()
            .dev();
        assert_eq!(loops_of(disk).len(), 1);
        cluster.cut_power().unwrap_or_else(|e| panic!("{e:#}"));
        // The kernel takes a moment to release the loop devices.
        let gone = || Ok(loops_of(disk).is_empty());
        wait_until("the loop devices to go", Duration::from_secs(30), gone)
            .unwrap_or_else(|e| panic!("{e}"));
        cluster.boot().unwrap_or_else(|e| panic!("{e:#}"));
        scenario.eventually("a new container", || scenario.container(&app) != container);
        scenario.wait_running(&app);
        scenario.wait_grown(PODS_OWN, size);
        assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    }
    let after = scenario.size_in(&app);
    assert_eq!(after - before, 320, "{before} MiB became {after} MiB");
    assert_eq!(scenario.image_bytes(PODS_OWN), 640 << 20);
    scenario.end();
}

/// A pod that writes ten times a second.
fn ticking(name: &str, claim: &str) -> Value {
    let mut pod = pod(name, claim);
    let script = "while sleep 0.1; do echo tick >>/data/ticks; done";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    pod
}
