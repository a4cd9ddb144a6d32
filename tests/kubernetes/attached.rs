//! A driver with attach: the controller manager attaches, and kubelet mounts once for the node.

use crate::{
    accidents::Stopped,
    calls::Call,
    lab::{BLOCK, version},
    objects::pod,
    restarts::PODS_OWN,
    scenario::Scenario,
};
use flexvol_lab::kubernetes::Component;
use flexvol_testing::{Need, Points, tests, volume_id};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

tests! {
    "an attached volume is mounted once for two pods, grown with and without them, and detached", &[Need::Root]
        => life;
    "an attached volume outlives the controller and kubelet, and is detached by those that come after", &[Need::Root]
        => restarted;
}

const CALLOUTS: [&str; 8] = [
    "attach",
    "waitforattach",
    "mountdevice",
    "mount",
    "expandfs",
    "unmount",
    "unmountdevice",
    "detach",
];

fn life(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(BLOCK, "attached", 320);
    let first = pod("first", "attached");
    scenario.run_pod(&first);
    let handle = scenario.options("attached")["handle"].clone();
    let device = format!(
        "/run/flexvol/volumes/{}",
        volume_id(handle.as_str().unwrap())
    );
    let name = "lab.example/block/attached";
    assert_eq!(
        attached(&scenario),
        json!([{"name": name, "devicePath": device}])
    );
    scenario.exec(&first, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&first, "sha256sum /data/file");
    let before = scenario.size_in(&first);
    let second = pod("second", "attached");
    scenario.run_pod(&second);
    expect(
        &scenario,
        0,
        &[
            "kube-controller attach",
            "kubelet waitforattach",
            "kubelet mountdevice",
            "kubelet mount",
            "kubelet waitforattach",
            "kubelet mount",
        ],
    );

    scenario.ask_for("attached", 480);
    scenario.wait_grown("attached", 480);
    assert_eq!(scenario.size_in(&first) - before, 160);
    assert_eq!(scenario.size_in(&second) - before, 160);

    scenario.delete_pod(&first);
    assert_eq!(scenario.exec(&second, "sha256sum /data/file"), sum);
    scenario.delete_pod(&second);
    wait_detached(&scenario, "attached");
    let offline = expect(
        &scenario,
        6,
        &[
            "kubelet expandfs",
            "kubelet unmount",
            "kubelet unmount",
            "kubelet unmountdevice",
            "kube-controller detach",
        ],
    );

    scenario.ask_for("attached", 640);
    scenario.wait_pending("attached");
    let mounted_and_grown: &[&str] = if version().minor() < 24 {
        &["kubelet mountdevice", "kubelet expandfs", "kubelet mount"]
    } else {
        &["kubelet mountdevice", "kubelet mount", "kubelet expandfs"]
    };
    let third = pod("third", "attached");
    scenario.run_pod(&third);
    scenario.wait_grown("attached", 640);
    assert_eq!(scenario.size_in(&third) - before, 320);
    assert_eq!(scenario.exec(&third, "sha256sum /data/file"), sum);
    scenario.delete_pod(&third);
    wait_detached(&scenario, "attached");
    expect(
        &scenario,
        offline,
        &[
            &["kube-controller attach", "kubelet waitforattach"],
            mounted_and_grown,
            &["kubelet unmount", "kubelet unmountdevice"],
            &["kube-controller detach"],
        ]
        .concat(),
    );
    scenario.end();
}

fn restarted(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(BLOCK, PODS_OWN, 320);
    let app = pod("app", PODS_OWN);
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let before = scenario.size_in(&app);
    let container = scenario.container(&app);
    let status = attached(&scenario);
    let controller = Stopped::by(&scenario, Component::ControllerManager, Signal::SIGKILL);
    let kubelet = Stopped::by(&scenario, Component::Kubelet, Signal::SIGKILL);
    kubelet.start();
    scenario.wait_known(&app);
    controller.start();
    scenario.ask_for(PODS_OWN, 640);
    scenario.wait_grown(PODS_OWN, 640);
    assert_eq!(scenario.size_in(&app) - before, 320);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    assert_eq!(scenario.container(&app), container, "the container is new");
    assert_eq!(attached(&scenario), status);
    // kubelet sees the existing mounts and does not repeat them.
    for callout in ["mountdevice", "mount"] {
        assert_eq!(scenario.calls(&[callout], PODS_OWN).len(), 1, "{callout}");
    }

    // The pod is deleted while neither component runs, and neither remembers it afterwards.
    let controller = Stopped::by(&scenario, Component::ControllerManager, Signal::SIGKILL);
    let kubelet = Stopped::by(&scenario, Component::Kubelet, Signal::SIGKILL);
    let delete = [
        "delete",
        "pod",
        "app",
        "--force",
        "--grace-period=0",
        "--wait=false",
    ];
    scenario.lab().kubectl(&delete);
    controller.start();
    kubelet.start();
    wait_detached(&scenario, PODS_OWN);
    let calls = scenario.calls(&["unmount", "unmountdevice", "detach"], PODS_OWN);
    for callout in ["unmount", "unmountdevice", "detach"] {
        let made = |call: &Call| call.callout() == callout && call.succeeded();
        assert!(calls.iter().any(made), "{callout}: {calls:#?}");
    }
    scenario.end();
}

/// The attached volumes in the node's status.
fn attached(scenario: &Scenario) -> Value {
    scenario.get("default", "node", "node")["status"]["volumesAttached"].clone()
}

/// Waits for `detach`. The controller removes the volume from the node's status before it calls the driver.
fn wait_detached(scenario: &Scenario, volume: &str) {
    scenario.eventually("the volume to be detached", || {
        let calls = scenario.calls(&CALLOUTS, volume);
        let detached = calls.last().is_some_and(|call| call.callout() == "detach");
        detached && attached(scenario).is_null()
    });
}

/// Compares the calls about the volume after the first `from` with the expected callers and callouts, in
/// order. All must have succeeded. Returns the number of all calls.
#[track_caller]
fn expect(scenario: &Scenario, from: usize, expected: &[&str]) -> usize {
    let calls = scenario.calls(&CALLOUTS, "attached");
    let mut made: Vec<String> = calls[from..]
        .iter()
        .map(|call| format!("{} {}", call.caller, call.callout()))
        .collect();
    // 1.24 and 1.28 call twice after a mount, a tenth of a second apart.
    made.dedup_by(|later, earlier| later == earlier && later.ends_with("expandfs"));
    assert_eq!(made, expected);
    assert!(calls.iter().all(|call| call.succeeded()), "{calls:#?}");
    calls.len()
}
