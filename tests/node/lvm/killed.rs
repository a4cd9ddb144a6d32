//! Callouts killed at each ioctl that they, or the programs they start, make, or refused it:
//! device-mapper's are among them. The repeated call succeeds, and nothing is left.

use super::{GROUP, GROWN, NEEDS, SIZE, inventory, output, told};
use crate::node::{MIB, Node, fill, size_of_filesystem};
use flexvol_testing::{
    Call,
    Disturbance::{self, ErrorsAt, KillAt},
    Disturbed, PersistentVolume, Points, Test, request,
};
use std::fs;

pub const TESTS: &[Test] = &[
    test(
        "lvm: provision, killed at or refused any ioctl, is finished by its repetition",
        |points| provision(&Node::linear(), "lvm: provision", KILLED_OR_REFUSED, points),
    ),
    test(
        "lvm: mount of a new volume, killed at or refused any ioctl, is finished by its repetition",
        |points| {
            let name = "lvm: mount of a new volume";
            mount_new(&Node::linear(), name, KILLED_OR_REFUSED, points);
        },
    ),
    test(
        "lvm: provision and mount of a thin volume, killed at any ioctl, are finished by their repetition",
        |points| {
            let node = Node::thin(1200 * MIB);
            provision(&node, "lvm: provision of a thin volume", KILLED, points);
            mount_new(&node, "lvm: mount of a new thin volume", KILLED, points);
        },
    ),
    test(
        "lvm: expandfs, killed at or refused any ioctl, is finished by its repetition",
        |points| expandfs(&Node::linear(), "lvm: expandfs", KILLED_OR_REFUSED, points),
    ),
    test(
        "lvm: expandfs of a thin volume, killed at any ioctl, is finished by its repetition",
        |points| {
            let name = "lvm: expandfs of a thin volume";
            expandfs(&Node::thin(1200 * MIB), name, KILLED, points);
        },
    ),
    test(
        "lvm: delete, killed at or refused any ioctl, is finished by its repetition",
        |points| delete(&Node::linear(), "lvm: delete", KILLED_OR_REFUSED, points),
    ),
    test(
        "lvm: delete of a thin volume, killed at any ioctl, is finished by its repetition",
        |points| {
            let name = "lvm: delete of a thin volume";
            delete(&Node::thin(1200 * MIB), name, KILLED, points);
        },
    ),
];

const KILLED: &[Disturbance] = &[KillAt("ioctl")];
const KILLED_OR_REFUSED: &[Disturbance] = &[KillAt("ioctl"), ErrorsAt("ioctl")];

const fn test(name: &'static str, run: fn(&Points)) -> Test {
    Test {
        name,
        needs: NEEDS,
        run,
    }
}

fn disturbed<S>(
    node: &Node,
    name: &str,
    (disturbances, points): (&[Disturbance], &Points),
    prepare: &dyn Fn() -> S,
    arguments: &dyn Fn(&S) -> Vec<String>,
    check: &dyn Fn(&S, &Call),
    undo: &dyn Fn(S),
) {
    // The pool's directory of promised names stays.
    let first = node.volume_of("first", "ext4");
    node.delete(&first).success();
    let before = inventory();
    let undo = |state| {
        undo(state);
        assert_eq!(inventory(), before, "{name}, undone");
    };
    let disturbed = Disturbed {
        name,
        sandbox: &node.sandbox,
        driver: &node.driver,
        prepare,
        arguments,
        formats: true,
        check,
        undo: &undo,
    };
    disturbed.run(disturbances, points);
}

fn provision(node: &Node, name: &str, disturbances: &[Disturbance], points: &Points) {
    let arguments = vec!["provision".to_owned(), request("pv", SIZE)];
    let volume = |call: &Call| PersistentVolume::from_reply("pv", "ext4", call);
    let check = |(): &(), call: &Call| assert_eq!(told(&volume(call), "lv_size"), SIZE.to_string());
    let undo = |()| {
        let again = node.driver.call(&arguments).success();
        node.delete(&volume(&again)).success();
    };
    disturbed(
        node,
        name,
        (disturbances, points),
        &|| (),
        &|()| arguments.clone(),
        &check,
        &undo,
    );
}

fn mount_new(node: &Node, name: &str, disturbances: &[Disturbance], points: &Points) {
    let prepare = || node.volume_of("pv", "ext4");
    let check = |volume: &PersistentVolume, _: &Call| {
        fill(node.pod(volume).dir(), "file");
    };
    let undo = |volume| {
        node.pod(&volume).unmount().success();
        node.delete(&volume).success();
    };
    let arguments = |volume: &PersistentVolume| node.pod(volume).mount_arguments("rw");
    let how = (disturbances, points);
    disturbed(node, name, how, &prepare, &arguments, &check, &undo);
}

fn expandfs(node: &Node, name: &str, disturbances: &[Disturbance], points: &Points) {
    let prepare = || {
        let volume = node.volume_of("pv", "ext4");
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        let content = fill(pod.dir(), "file");
        (volume, content)
    };
    let check = |(volume, content): &(PersistentVolume, Vec<u8>), _: &Call| {
        let pod = node.pod(volume);
        assert_eq!(told(volume, "lv_size"), GROWN.to_string());
        assert!(size_of_filesystem(pod.dir()) > SIZE + 100 * MIB);
        assert!(fs::read(pod.dir().join("file")).unwrap() == *content);
    };
    let undo = |(volume, _)| {
        node.pod(&volume).unmount().success();
        node.delete(&volume).success();
    };
    let arguments =
        |(volume, _): &(PersistentVolume, Vec<u8>)| node.pod(volume).expand_arguments(GROWN, SIZE);
    let how = (disturbances, points);
    disturbed(node, name, how, &prepare, &arguments, &check, &undo);
}

fn delete(node: &Node, name: &str, disturbances: &[Disturbance], points: &Points) {
    let prepare = || node.volume_of("pv", "ext4");
    let arguments = |volume: &PersistentVolume| vec!["delete".to_owned(), volume.json("rw")];
    let check = |volume: &PersistentVolume, _: &Call| {
        let name = format!("{GROUP}/flexvol-{}", volume.id());
        assert!(!output("lvm", &["lvs", &name]).status.success());
    };
    let how = (disturbances, points);
    disturbed(node, name, how, &prepare, &arguments, &check, &|_| ());
}
