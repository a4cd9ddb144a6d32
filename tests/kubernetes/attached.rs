//! A driver with attach: the controller attaches, kubelet mounts once for the node.

use crate::{
    lab::BLOCK,
    scenario::{Scenario, pod},
};
use flexvol_testing::{Need, Points, Test};
use serde_json::{Value, json};

pub const TESTS: &[Test] = &[Test {
    name: "an attached volume is mounted once for two pods, grown with and without them, and detached",
    needs: &[Need::Root],
    run: life,
}];

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
    let device = format!("/run/flexvol/volumes/{}", handle.as_str().unwrap());
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
    wait_detached(&scenario);
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
    let third = pod("third", "attached");
    scenario.run_pod(&third);
    scenario.wait_grown("attached", 640);
    assert_eq!(scenario.size_in(&third) - before, 320);
    assert_eq!(scenario.exec(&third, "sha256sum /data/file"), sum);
    scenario.delete_pod(&third);
    wait_detached(&scenario);
    expect(
        &scenario,
        offline,
        &[
            "kube-controller attach",
            "kubelet waitforattach",
            "kubelet mountdevice",
            "kubelet mount",
            "kubelet expandfs",
            "kubelet unmount",
            "kubelet unmountdevice",
            "kube-controller detach",
        ],
    );
    scenario.end();
}

/// What the node's status says of attached volumes.
fn attached(scenario: &Scenario) -> Value {
    scenario.get("default", "node", "node")["status"]["volumesAttached"].clone()
}

fn wait_detached(scenario: &Scenario) {
    scenario.eventually("the volume to be detached", || attached(scenario).is_null());
}

/// Compares the calls about the volume, after so many earlier ones, with callers and callouts in
/// their order; all of them succeeded. Returns how many there were in all.
#[track_caller]
fn expect(scenario: &Scenario, from: usize, expected: &[&str]) -> usize {
    let calls = scenario.calls(&CALLOUTS, "attached");
    let made: Vec<String> = calls[from..]
        .iter()
        .map(|call| format!("{} {}", call.caller, call.callout()))
        .collect();
    assert_eq!(made, expected);
    assert!(calls.iter().all(|call| call.succeeded()), "{calls:#?}");
    calls.len()
}
