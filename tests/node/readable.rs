//! A handle grants access: nothing that every process of the node can read may contain one.

use crate::{
    node::{Backend, Node},
    story::stories,
};
use flexvol_testing::{PersistentVolume, Points};
use std::{path::Path, process::Command};

stories! {
    STORIES:
    "who is not root reads no handle of a mounted volume", [loop btrfs] => mounted;
}

fn mounted(backend: Backend, points: &Points) {
    let node = Node::with(backend, "namespaces = \"any\"");
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    expect_no_handle(node.sandbox.root(), &volume);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);
}

/// Lists files and names in these places, as far as an unprivileged user can read them; in the sandbox, whose disk is
/// a file, only names. The mount table is that of a process that sees the pod's mounts.
const LOOK: &str = r#"
    in="/sys/devices/virtual/block /sys/fs/ext4 /sys/fs/xfs /sys/fs/btrfs /run/flexvol /run/udev"
    find $in "$1" -printf '%p %l\n'
    find $in -type f -perm -o=r -exec cat {} +
    ls -lR /dev/disk /dev/mapper
    cat /proc/self/mountinfo /proc/locks
"#;

/// Checks this for a volume in use.
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
