//! A handle is as good as a key: what every process of the node may read tells none.

use crate::{dir, sandbox};
use flexvol_testing::{Driver, Need, PersistentVolume, Pod, Points, Sandbox, tests};
use std::{path::Path, process::Command};

tests! {
    "who is not root reads no handle of a mounted volume", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("setpriv", "util-linux")] => |points| {
            let sandbox = sandbox();
            let driver = sandbox.install("example.com/disk", false, "namespaces = \"any\"\n");
            mounted(&sandbox, &driver, "xfs", points);
        };
    "dir: who is not root reads no handle of a mounted volume", dir::BTRFS => |points| {
            let sandbox = dir::sandbox_on("btrfs", 2048, true);
            let driver = dir::install(&sandbox, "disk", "namespaces = \"any\"\n");
            mounted(&sandbox, &driver, "", points);
        };
}

fn mounted(sandbox: &Sandbox, driver: &Driver, filesystem: &'static str, points: &Points) {
    let volume = PersistentVolume::provision(driver, "pv", filesystem, 320 << 20);
    let pod = Pod::new(sandbox, driver, &volume, "uid");
    pod.mount("rw").success();
    expect_no_handle(sandbox.root(), &volume);
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(1);
}

/// Files and names in these places, as far as a user may read them who is nobody; of the sandbox, whose
/// disk is a file, only names. The mount table is that of a process that sees the pod's mounts.
const LOOK: &str = r#"
    in="/sys/devices/virtual/block /sys/fs/ext4 /sys/fs/xfs /sys/fs/btrfs /run/flexvol /run/udev"
    find $in "$1" -printf '%p %l\n'
    find $in -type f -perm -o=r -exec cat {} +
    ls -lR /dev/disk /dev/mapper
    cat /proc/self/mountinfo /proc/locks
"#;

/// While the volume is used, and everybody sees that.
#[track_caller]
pub fn expect_no_handle(sandbox: &Path, volume: &PersistentVolume) {
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["timeout", "60", "bash", "-c", LOOK, "bash"])
        .arg(sandbox)
        .output()
        .unwrap();
    let read = String::from_utf8_lossy(&output.stdout);
    let telling = |word: &str| -> Vec<&str> {
        let lines = read.lines().filter(|line| line.contains(word));
        lines.collect()
    };
    assert_eq!(telling(volume.handle()), Vec::<&str>::new());
    assert!(
        !telling(&volume.id()).is_empty(),
        "it sees no volume at all"
    );
}
