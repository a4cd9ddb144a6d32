//! The demo: it is complete, and leaves nothing however it ends.

use crate::executable;
use flexvol_testing::{Need, Points, tests};
use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

tests! {
    "demo: every file system grows under its pod and keeps its file", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => complete;
    "demo: killed at any moment it leaves nothing behind", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => killed;
}

/// Loop devices, mounts and directories of demos that this process can see.
fn remains() -> Vec<String> {
    let mut remains = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap().flatten() {
        let backing = entry.path().join("loop/backing_file");
        let backing = fs::read_to_string(backing).unwrap_or_default();
        if backing.starts_with("/run/flexvol-demo/") {
            remains.push(format!("{}: {backing}", entry.file_name().display()));
        }
    }
    let mounts = fs::read("/proc/self/mountinfo").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let mounts = mounts.lines().filter(|line| line.contains("flexvol-demo"));
    remains.extend(mounts.map(str::to_owned));
    if fs::exists("/run/flexvol-demo").unwrap() {
        remains.push("/run/flexvol-demo".to_owned());
    }
    remains
}

/// Waits, because the kernel removes a mount namespace some time after its last process ended.
fn expect_nothing(when: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !remains().is_empty() {
        assert!(Instant::now() < deadline, "{when}: {:?}", remains());
        thread::sleep(Duration::from_millis(20));
    }
}

fn demo() -> Command {
    let mut demo = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/demo"));
    demo.env_clear().env("FLEXVOL_EXECUTABLE", executable());
    demo
}

fn complete(_: &Points) {
    let output = demo().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}{errors}");
    for callout in [
        "init",
        "provision",
        "mount",
        "expandfs",
        "unmount",
        "delete",
    ] {
        assert!(
            text.contains(&format!("$ {callout}")),
            "no {callout} in:\n{text}"
        );
    }
    assert_eq!(text.matches("the file is the same").count(), 4, "{text}");
    assert!(text.contains(r#""volumeNewSize":1073741824"#), "{text}");
    expect_nothing("after the demo");
}

fn killed(points: &Points) {
    for milliseconds in [10, 50, 120, 250, 400, 600, 900] {
        let mut demo = demo()
            .arg("xfs")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
        demo.kill().unwrap();
        demo.wait().unwrap();
        expect_nothing(&format!("killed after {milliseconds} ms"));
        points.add(1);
    }
}
