//! Administrators change a driver while its volumes are in use.

use crate::sandbox;
use assert_cmd::assert::{Assert, OutputAssertExt};
use flexvol_testing::{Baseline, Need, PersistentVolume, Pod, Points, Sandbox, tests};
use std::{fs, os::unix::fs::MetadataExt, process::Command};

tests! {
    "a driver is upgraded under a mounted volume, but not uninstalled or given attach", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => under_a_mounted_volume;
}

const NAME: &str = "example.com/people";

fn flexvol(sandbox: &Sandbox, verb: &str, more: &[&str]) -> Assert {
    let mut command = Command::new(crate::executable());
    command.args([verb, "--name", NAME, "--plugin-dir"]);
    command.arg(sandbox.plugins()).args(more).assert()
}

#[track_caller]
fn refused_because_mounted(assert: Assert) {
    let assert = assert.failure().code(1);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(
        said.contains("while its volumes are mounted: 1 on this node"),
        "{said}"
    );
}

fn under_a_mounted_volume(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install(NAME, false, "");
    let before = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "pv", "ext4", 64 << 20);
    let pod = Pod::new(&sandbox, &driver, &volume, "uid");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "data").unwrap();

    refused_because_mounted(flexvol(&sandbox, "uninstall", &[]));
    let attach = sandbox.path("attach.toml");
    let text = format!(
        "backend = \"loop\"\nattach = true\n[pools.default]\npath = {:?}\n",
        sandbox.pool()
    );
    fs::write(&attach, text).unwrap();
    let attach = ["--config", attach.to_str().unwrap()];
    refused_because_mounted(flexvol(&sandbox, "install", &attach));
    points.add(2);

    // A different executable, which install takes for another version.
    let old = fs::metadata(driver.executable()).unwrap().ino();
    let mut other = fs::read(driver.executable()).unwrap();
    other.push(b'\n');
    fs::remove_file(driver.executable()).unwrap();
    fs::write(driver.executable(), other).unwrap();
    flexvol(&sandbox, "install", &[]).success();
    assert_ne!(fs::metadata(driver.executable()).unwrap().ino(), old);
    assert_eq!(fs::read_to_string(pod.dir().join("file")).unwrap(), "data");

    let doctor = flexvol(&sandbox, "doctor", &["--output", "json"]);
    let said = String::from_utf8_lossy(&doctor.get_output().stdout).into_owned();
    assert!(said.contains(", volumes: 1, "), "{said}");
    points.add(2);

    let directory = pod.dir().to_str().unwrap();
    flexvol(&sandbox, "call", &["unmount", directory]).success();
    assert!(!pod.dir().join("file").exists());
    fs::remove_dir(pod.dir()).unwrap();
    flexvol(&sandbox, "call", &["delete", &volume.json("rw")]).success();
    before.expect(&sandbox, "unmounted and deleted");
    flexvol(&sandbox, "install", &attach).success();
    flexvol(&sandbox, "uninstall", &[]).success();
    assert_eq!(fs::read_dir(sandbox.plugins()).unwrap().count(), 0);
}
