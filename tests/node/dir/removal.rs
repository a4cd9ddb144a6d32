//! Deletes volumes with unusual content.

use super::{SIZE, on_each, run, write};
use crate::node::{Backend, Node};
use flexvol_testing::{Baseline, Points, Test, tests};
use std::{
    fs::{self, File},
    io::Write,
    process::Command,
};

pub const TESTS: &[Test] = on_each![
    "a full volume with directories in directories is deleted" => full_and_deep,
    "a volume with directories in directories is deleted from a disk that is full" => full_disk,
    "a volume with files and directories that nobody may change is deleted" => unchangeable,
];

tests! {
    BTRFS:
    "dir on btrfs: a volume with snapshots, read-only or deep in one another, is deleted", super::BTRFS
        => snapshots;
}

fn full_and_deep(node: &Node, _: &Points) {
    let before = Baseline::of(&node.sandbox);
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    // Enough long names that one more directory needs another block on XFS.
    for top in 0..9 {
        let name = format!("{top}-{}/b/c", "x".repeat(31));
        fs::create_dir_all(pod.dir().join(name)).unwrap();
    }
    if !node.has_projects() {
        run("btrfs", &["subvolume", "create"], &pod.dir().join("sub"));
    }
    let said = write(pod.dir(), "file", 2 * SIZE);
    assert!(said.contains(node.full()), "{said}");
    for small in 0..64 {
        if !write(pod.dir(), &format!("small-{small}"), 4096).is_empty() {
            break;
        }
    }
    pod.unmount().success();
    node.delete(&volume).success();
    before.expect(&node.sandbox, "deleted while it was full");
}

/// The disk is full, so there is no space for another name either.
fn full_disk(node: &Node, _: &Points) {
    let before = Baseline::of(&node.sandbox);
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    for below in 0..200 {
        let name = format!("data/{below}-{}", "x".repeat(200));
        fs::create_dir_all(pod.dir().join(name)).unwrap();
    }
    fs::write(pod.dir().join("data/file"), "text").unwrap();
    pod.unmount().success();
    let filler = node.sandbox.fill_disk(1 << 20);
    let rest = node.sandbox.disk().join("rest");
    let mut file = File::create_new(&rest).unwrap();
    // To the last block.
    while file.write_all(&[0; 4096]).is_ok() && file.sync_data().is_ok() {}
    drop(file);
    node.delete(&volume).success();
    fs::remove_file(filler).unwrap();
    fs::remove_file(rest).unwrap();
    before.expect(&node.sandbox, "deleted while the disk was full");
}

/// As left by a pod with CAP_LINUX_IMMUTABLE.
fn unchangeable(node: &Node, points: &Points) {
    let before = Baseline::of(&node.sandbox);
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    fs::create_dir_all(pod.dir().join("a/b/c")).unwrap();
    for (flags, path) in [
        ("+i", "a/b/c/file"),
        ("+a", "a/b/c/log"),
        ("+a", "a/b/c"),
        ("+i", "a/b"),
        ("+i", "a"),
        ("+i", "."),
    ] {
        let path = pod.dir().join(path);
        if !path.exists() {
            fs::write(&path, "text").unwrap();
        }
        run("chattr", &[flags], &path);
        points.add(1);
    }
    std::os::unix::fs::symlink("/dev/null", pod.dir().join("link")).unwrap_err();
    pod.unmount().success();
    node.delete(&volume).success();
    before.expect(&node.sandbox, "deleted with flags");
}

fn snapshots(points: &Points) {
    let node = Node::new(Backend::Dir("btrfs"));
    let volume = node.volume("pv");
    let root = node.directory(&volume);
    let btrfs = |arguments: &[&str], path: &str| run("btrfs", arguments, &root.join(path));
    let make = ["subvolume", "create"];
    let set = |path: &str| {
        let path = root.join(path);
        let mut command = Command::new("btrfs");
        command.args(["property", "set"]).arg(path);
        assert!(command.args(["ro", "true"]).status().unwrap().success());
    };
    fs::write(root.join("file"), "gone").unwrap();
    let shown = root.to_str().unwrap();
    btrfs(&["subvolume", "snapshot", "-r", shown], "snap");
    // A read-only subvolume, not at the top, with another one in it.
    fs::create_dir_all(root.join("deep/er")).unwrap();
    btrfs(&make, "deep/er/outer");
    btrfs(&make, "deep/er/outer/inner");
    set("deep/er/outer/inner");
    set("deep/er/outer");
    // Subvolumes in directories in subvolumes.
    let mut path = "chain".to_owned();
    fs::create_dir(root.join(&path)).unwrap();
    for _ in 0..40 {
        path += "/s";
        btrfs(&make, &path);
        path += "/d";
        fs::create_dir(root.join(&path)).unwrap();
    }
    // The volume's root is immutable too.
    run("chattr", &["+i"], &root);
    set("");
    node.delete(&volume).success();
    assert_eq!(fs::read_dir(node.volumes()).unwrap().count(), 0);
    points.add(44);
}
