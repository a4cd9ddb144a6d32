//! A pool runs out of space during a volume's life: each step reports it, leaves nothing behind, and succeeds when
//! it is repeated after space was freed.

use crate::{
    dir::{self, eventually, length},
    lvm::{self, GROUP},
    node::{Backend, MIB, Node, expect_written, measured, size_of_filesystem, write},
    story::stories,
};
use flexvol_testing::{Call, PersistentVolume, Points, request};
use std::fs;

stories! {
    STORIES:
    "a full pool refuses each step, which succeeds once there is room",
        [loop sparse_loop xfs ext4 btrfs lvm thin_lvm] => pool;
    "a full volume fails its own writes and nobody else's", [loop xfs ext4 btrfs lvm] => volume;
}

const SIZE: u64 = 320 * MIB;
const GROWN: u64 = 360 * MIB;

/// Checks for a failure about missing space, in its class and in words.
#[track_caller]
pub fn expect_exhausted(call: &Call) {
    let message = call.failure();
    assert_eq!(call.text("errorClass"), "exhausted", "{message}");
}

impl Node {
    /// Foreign data takes all free space, or all but one MiB.
    fn fill_pool(&self) {
        let volume = |words: &[&str]| {
            lvm::lvm(&[&["lvcreate", "-qq", "-y", "-n", "other"], words].concat());
        };
        match self.backend {
            Backend::Lvm => volume(&["-l", "100%FREE", GROUP]),
            Backend::ThinLvm => {
                volume(&["-V", "400M", "--thinpool", &format!("{GROUP}/tp0")]);
                let to = format!("of=/dev/{GROUP}/other");
                let filled = lvm::output("dd", &["if=/dev/zero", &to, "bs=1M", "oflag=direct"]);
                assert!(!filled.status.success(), "400 MiB were free: {filled:?}");
            }
            _ => drop(self.sandbox.fill_disk(MIB)),
        }
    }

    fn remove_filler(&self) {
        match self.backend.is_lvm() {
            true => drop(lvm::lvm(&[
                "lvremove",
                "-qq",
                "-y",
                &format!("{GROUP}/other"),
            ])),
            false => fs::remove_file(self.sandbox.disk().join("somebody-else")).unwrap(),
        }
    }

    /// Makes a call that must be refused while the pool is full, and repeats it with free space.
    fn refused_once(&self, call: &dyn Fn() -> Call) -> Call {
        let before = self.inventory().without_space();
        self.fill_pool();
        let full = self.inventory().without_space();
        expect_exhausted(&call());
        self.expect(&full, "refused");
        self.remove_filler();
        self.expect(&before, "there is room again");
        call().success()
    }
}

fn pool(backend: Backend, points: &Points) {
    let node = match backend {
        Backend::Lvm => Node::new(backend),
        Backend::ThinLvm => Node::thin(400 * MIB),
        Backend::Dir(_) => Node::on(backend, backend.sandbox(1024), false, ""),
        _ => Node::on(backend, backend.sandbox(1024), false, "reserve = \"0%\""),
    };
    let provision = || node.driver.call(&["provision", &request("pv", SIZE)]);
    let from = |call: &Call| PersistentVolume::from_reply("pv", backend.filesystem(), call);
    let before = node.inventory();
    let volume = from(&node.refused_once(&|| {
        let call = provision();
        // The promised name stays for the repeated call.
        if backend.is_lvm() {
            lvm::forget_promises();
        }
        call
    }));
    let pod = node.pod(&volume);
    let lost = |mebibytes| {
        assert!(
            write(pod.dir(), "lost", mebibytes).is_err(),
            "nothing is full"
        );
    };
    let (mut synced, mut more) = (8, 150);
    if let Backend::SparseLoop | Backend::ThinLvm = backend {
        node.refused_once(&|| pod.mount("rw"));
        write(pod.dir(), "synced", synced).unwrap();
        node.fill_pool();
        lost(32);
        expect_written(pod.dir(), "synced", synced);
        node.remove_filler();
        // The first unmount may report lost writes.
        let _ = pod.unmount();
        pod.unmount().success();
        pod.mount("rw").success();
        write(pod.dir(), "more", more).unwrap();
    } else {
        node.fill_pool();
        pod.mount("rw").success();
        if backend.is_directory() {
            // Mounting writes nothing, and there is no space for writers.
            lost(64);
            node.remove_filler();
            (synced, more) = (64, 1);
        }
        write(pod.dir(), "synced", synced).unwrap();
        write(pod.dir(), "more", more).unwrap();
        if !backend.is_directory() {
            // Promised space is there, however much others take.
            node.remove_filler();
        }
    }
    points.add(3);
    let shown = size_of_filesystem(pod.dir());
    let grown = node.refused_once(&|| node.driver.call(&pod.expand_arguments(GROWN, SIZE)));
    assert_eq!(measured(&grown), GROWN);
    assert_eq!(node.sizes()[&volume.id()], GROWN);
    if !backend.is_directory() {
        assert!(size_of_filesystem(pod.dir()) > shown + 32 * MIB);
    }
    points.add(1);
    expect_written(pod.dir(), "synced", synced);
    expect_written(pod.dir(), "more", more);
    pod.unmount().success();
    node.delete(&volume).success();
    node.expect(&before, "deleted");
}

fn volume(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let before = node.inventory();
    // Btrfs counts metadata, so slightly less than the limit may fit.
    let (filesystem, size, leeway) = match backend.is_directory() {
        true => ("", node.size(), MIB),
        false => ("ext4", 64 * MIB, 16 * MIB),
    };
    let made = |name| PersistentVolume::provision(&node.driver, name, filesystem, size);
    let [a, b] = ["a", "b"].map(made);
    let [first, second] = [node.mounted(&a, "one"), node.mounted(&b, "two")];
    assert_eq!(dir::write(second.dir(), "file", 4 * MIB), "");
    let kept = fs::read(second.dir().join("file")).unwrap();

    let said = dir::write(first.dir(), "file", 2 * size);
    assert!(said.contains(node.full()), "{said}");
    let length = length(&first.dir().join("file"));
    assert!((size - leeway..=size).contains(&length), "{length}");
    points.add(1);

    assert_eq!(dir::write(second.dir(), "more", 4 * MIB), "");
    assert_eq!(fs::read(second.dir().join("file")).unwrap(), kept);
    let shown = size_of_filesystem(first.dir());
    match backend {
        // Btrfs ignores quota groups in statfs.
        Backend::Dir("btrfs") => assert!(shown > 2 * size, "{shown}"),
        Backend::Dir(_) => assert_eq!(shown, size),
        _ => assert!((size - leeway..=size).contains(&shown), "{shown}"),
    }
    points.add(1);

    // Space of a removed file is free at once.
    fs::remove_file(first.dir().join("file")).unwrap();
    eventually("room again", || {
        dir::write(first.dir(), "file", 4 * MIB).is_empty()
    });
    for (pod, volume) in [(&first, &a), (&second, &b)] {
        pod.unmount().success();
        node.delete(volume).success();
        points.add(1);
    }
    node.expect(&before, "deleted");
}
