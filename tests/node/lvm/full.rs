//! A volume group or thin pool that runs out in the middle of a volume's life: each step says so, leaves
//! nothing behind, and succeeds by its repetition once there is room again.

use super::{
    GROUP, MIB, NEEDS, Node, SIZE, fill, inventory, lvm, output, size_of_filesystem, told,
};
use crate::full::expect_exhausted;
use flexvol_testing::{Call, PersistentVolume, Points, request, tests};
use std::fs;

tests! {
    "lvm: a full group refuses each step, which succeeds once there is room", NEEDS => |points| {
            let take = || {
                drop(lvm(&[
                    "lvcreate", "-qq", "-l", "100%FREE", "-n", "other", GROUP,
                ]))
            };
            full(&Node::linear(), &take, false, points);
        };
    "lvm: a full thin pool fails each step, which succeeds once there is room", NEEDS
        => |points| full(&Node::thin(400 * MIB), &fill_thin_pool, true, points);
}

/// Somebody else's volume takes all the blocks there are.
fn fill_thin_pool() {
    let pool = format!("{GROUP}/tp0");
    lvm(&[
        "lvcreate",
        "-qq",
        "-y",
        "-V",
        "400M",
        "--thinpool",
        &pool,
        "-n",
        "other",
    ]);
    let to = format!("of=/dev/{GROUP}/other");
    let filled = output("dd", &["if=/dev/zero", &to, "bs=1M", "oflag=direct"]);
    assert!(!filled.status.success(), "400 MiB were free: {filled:?}");
}

/// Calls while somebody else has `take`n the rest, and again when that is gone.
fn refused_once(take: &dyn Fn(), call: &dyn Fn() -> Call) -> Call {
    let before = inventory();
    take();
    let full = inventory();
    expect_exhausted(&call());
    assert_eq!(inventory(), full, "refused");
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/other")]);
    assert_eq!(inventory(), before, "there is room again");
    call().success()
}

fn full(node: &Node, take: &dyn Fn(), thin: bool, points: &Points) {
    let grown = SIZE + 40 * MIB;
    let provision = || node.driver.call(&["provision", &request("pv", SIZE)]);
    // The pool's directory of promised names stays.
    let first = PersistentVolume::from_reply("pv", "ext4", &provision().success());
    node.delete(&first).success();
    let before = inventory();
    let made = refused_once(take, &|| {
        let call = provision();
        // The promise of a name stays, for the repetition.
        fs::remove_dir_all("/run/flexvol/names").unwrap();
        call
    });
    let volume = PersistentVolume::from_reply("pv", "ext4", &made);
    let pod = node.pod(&volume);
    match thin {
        true => drop(refused_once(take, &|| pod.mount("rw"))),
        false => drop(pod.mount("rw").success()),
    }
    let content = fill(pod.dir(), "synced");
    points.add(2);
    let size = size_of_filesystem(pod.dir());
    refused_once(take, &|| node.expand(&volume, grown));
    assert_eq!(told(&volume, "lv_size"), grown.to_string());
    assert!(size_of_filesystem(pod.dir()) > size + 32 * MIB);
    assert_eq!(fs::read(pod.dir().join("synced")).unwrap(), content);
    points.add(1);
    pod.unmount().success();
    node.delete(&volume).success();
    assert_eq!(inventory(), before);
}
