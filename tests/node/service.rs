//! kubelet as a unit of systemd, and processes that end with it.

use crate::{
    lvm,
    node::{MIB, Node, size_of_filesystem},
    sandbox,
    wrapper::Wrapper,
};
use flexvol_testing::{
    Driver, Need, PersistentVolume, Pod, Points, ServiceManager, eventually, tests,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

tests! {
    "stopping kubelet's unit does not cut an mkfs", &[Need::Root, Need::Systemd, Need::Tool("mkfs.xfs", "xfsprogs")]
        => mkfs;
    "where systemd gives no scope, mkfs runs without one", &[Need::Root, Need::Systemd, Need::Tool("mkfs.xfs", "xfsprogs")]
        => without;
    "lvm: stopping kubelet's unit does not cut an lvextend", LVM => lvextend;
}

const LVM: &[Need] = &[
    Need::Root,
    Need::Systemd,
    Need::DeviceMapper,
    Need::Disks,
    Need::Tool("lvm", "lvm2"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
];

/// Makes a program create a file when it starts and wait for another one. With `verb`, only if that is its first
/// argument.
fn slow(name: &str, verb: &str, dir: &Path) -> (Wrapper, PathBuf, PathBuf) {
    let (begun, go) = (dir.join("begun"), dir.join("go"));
    let before = format!(
        "if [[ $1 == {verb}* ]]; then\necho $$ >>{0}.new && mv {0}.new {0}\nuntil [ -e {1} ]; do sleep 0.1; done\nfi",
        begun.display(),
        go.display()
    );
    (Wrapper::of(name, &before), begun, go)
}

/// How long a program may take to begin or to end.
const SOON: Duration = Duration::from_secs(10);

fn mkfs(_: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", false, "");
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    let (program, begun, go) = slow("mkfs.xfs", "", sandbox.root());
    stopped(&driver, &pod.mount_arguments("rw"), &begun, &go);
    drop(program);
    pod.mount("rw").success();
    pod.unmount().success();
}

/// If the unit's stop killed lvextend between suspend and resume, the volume would block all its users.
fn lvextend(_: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("data", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let (program, begun, go) = slow("lvm", "lvextend", node.sandbox.root());
    let expand = pod.expand_arguments(lvm::GROWN, lvm::SIZE);
    stopped(&node.driver, &expand, &begun, &go);
    drop(program);
    // Only the first call grew it.
    assert_eq!(lvm::told(&volume, "lv_size"), lvm::GROWN.to_string());
    node.expand(&volume, lvm::GROWN).success();
    assert!(size_of_filesystem(pod.dir()) > lvm::GROWN - 64 * MIB);
    pod.unmount().success();
    node.delete(&volume).success();
}

/// Runs a callout as a unit, stops the unit while the slowed program is running, and lets that program
/// finish.
fn stopped(driver: &Driver, callout: &[String], begun: &Path, go: &Path) {
    let manager = ServiceManager::start();
    let executable = driver.executable().to_str().unwrap();
    let mut line = vec![executable];
    line.extend(callout.iter().map(String::as_str));
    manager.start_unit("kubelet", &line);
    eventually(SOON, "the program to begin", || begun.exists());
    let alive = || {
        let number = fs::read_to_string(begun).unwrap();
        let look = format!("kill -0 {}", number.trim());
        let mut shell = manager.command("bash");
        shell.args(["-c", &look]).output().unwrap().status.success()
    };
    let drivers = || {
        let mut look = manager.command("bash");
        look.args(["-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
        String::from_utf8(look.output().unwrap().stdout)
            .unwrap()
            .contains(&format!("{executable} {} ", callout[0]))
    };
    assert!(alive() && drivers());
    manager.stop_unit("kubelet");
    assert!(alive(), "the program was cut");
    assert!(!drivers(), "the driver of the stopped unit still runs");
    fs::write(go, "").unwrap();
    eventually(SOON, "the program to end", || !alive());
}

fn without(_: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", false, "");
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    // As on a node whose manager does not answer: its directory exists, but not the process.
    fs::create_dir_all("/run/systemd/system").unwrap();
    let asked = Command::new("systemd-run")
        .args(["--scope", "true"])
        .output()
        .unwrap();
    assert!(!asked.status.success(), "there is a manager: {asked:?}");
    pod.mount("rw").success();
    pod.unmount().success();
}
