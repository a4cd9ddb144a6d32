//! Callouts on directory volumes, killed at each of their system calls or refused it.

use super::{GROWN, SIZE, damage::recorded, on_each};
use crate::{
    by_hand::{said, said_json},
    callouts::Callout,
    node::{Backend, Node, size_of_filesystem},
};
use flexvol_testing::{
    Call,
    Disturbance::{self, Errors, Kill},
    PersistentVolume, Points, Test, request, tests,
};
use std::fs;

pub const TESTS: &[Test] = on_each![
    "every callout, killed anywhere, is finished by its repetition" => killed,
];

// XFS is asked in the same way as ext4.
tests! {
    ERRORS:
    "dir on ext4: every callout, refused by the kernel anywhere, says so and is finished by its repetition", super::EXT4
        => |points| refused(&Node::new(Backend::Dir("ext4")), points);
    "dir on btrfs: every callout, refused by the kernel anywhere, says so and is finished by its repetition", super::BTRFS
        => |points| refused(&Node::new(Backend::Dir("btrfs")), points);
}

fn killed(node: &Node, points: &Points) {
    all(node, Kill, points);
}

fn refused(node: &Node, points: &Points) {
    all(node, Errors, points);
}

/// One after the other, because a virtual machine of its own for each takes longer than that.
fn all(node: &Node, disturbance: Disturbance, points: &Points) {
    for check in [provision, expandfs, delete, mount] {
        check(node, disturbance, points);
    }
}

/// Makes the state before a callout, and its arguments in that state.
type Called<'a, S> = (&'a dyn Fn() -> S, &'a dyn Fn(&S) -> Vec<String>);

impl Node {
    /// Whether the kernel holds the volume to that size, by the driver's word and by `statfs`.
    #[track_caller]
    pub(super) fn expect_limit(&self, volume: &PersistentVolume, size: u64) {
        let shown = said_json(&self.driver, &["show", volume.handle(), "-o", "json"]);
        assert_eq!(shown["storage"], size, "{shown}");
        if self.has_projects() {
            assert_eq!(size_of_filesystem(&self.directory(volume)), size);
        }
    }
}

fn disturbed<S>(
    node: &Node,
    callout: &str,
    (prepare, arguments): Called<'_, S>,
    check: &dyn Fn(&S, &Call),
    undo: &dyn Fn(S),
    (disturbance, points): (Disturbance, &Points),
) {
    let callout = Callout {
        name: &format!("{callout} of a directory on {}", node.kind()),
        prepare,
        arguments,
        formats: false,
        check,
        undo,
    };
    node.disturbed(&callout, disturbance, points);
}

fn provision(node: &Node, disturbance: Disturbance, points: &Points) {
    let arguments = vec!["provision".to_owned(), request("pv", SIZE)];
    disturbed(
        node,
        "provision",
        (&|| (), &|()| arguments.clone()),
        &|(), call| node.expect_limit(&PersistentVolume::from_reply("pv", "", call), SIZE),
        &|()| {
            node.delete(&node.volume("pv")).success();
            // Where undoing was refused too, something stays under a name that nobody looks for.
            said(&node.driver, &["gc"]);
            assert_eq!(fs::read_dir(node.volumes()).unwrap().count(), 0);
        },
        (disturbance, points),
    );
}

fn expandfs(node: &Node, disturbance: Disturbance, points: &Points) {
    let prepare = || {
        let volume = node.volume("pv");
        node.pod(&volume).mount("rw").success();
        volume
    };
    disturbed(
        node,
        "expandfs",
        (&prepare, &|volume| {
            node.pod(volume).expand_arguments(GROWN, SIZE)
        }),
        &|volume, _| {
            node.expect_limit(volume, GROWN);
            // Quotas that were off meanwhile come back with what the record says.
            assert_eq!(recorded(&node.around(volume)), GROWN);
        },
        &|volume| {
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
        (disturbance, points),
    );
}

fn delete(node: &Node, disturbance: Disturbance, points: &Points) {
    let prepare = || {
        let volume = node.volume("pv");
        let root = node.directory(&volume);
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "gone").unwrap();
        volume
    };
    disturbed(
        node,
        "delete",
        (&prepare, &|volume| {
            vec!["delete".to_owned(), volume.json("rw")]
        }),
        &|volume, _| assert!(!node.around(volume).exists()),
        &|_| {},
        (disturbance, points),
    );
}

fn mount(node: &Node, disturbance: Disturbance, points: &Points) {
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    // Out of its project, so that this is put right too.
    let prepare = || {
        if node.has_projects() {
            super::run("chattr", &["-p", "0", "-P"], &node.directory(&volume));
        }
    };
    disturbed(
        node,
        "mount",
        (&prepare, &|()| pod.mount_arguments("rw")),
        &|(), _| node.expect_limit(&volume, SIZE),
        &|()| drop(pod.unmount().success()),
        (disturbance, points),
    );
}
