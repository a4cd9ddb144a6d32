//! A btrfs with full metadata takes no attributes and no names. Only removals work, and free space.

use crate::{
    by_hand::stdout_of,
    node::{Backend, MIB, Node, size_of_filesystem},
    sandbox_with,
};
use flexvol_testing::{Baseline, Need, PersistentVolume, Points, PoolFilesystem, tests};
use rustix::{
    fs::{XattrFlags, setxattr, syncfs},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Filesystem("btrfs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

tests! {
    "btrfs without room for metadata: images are deleted, kept ones too", NEEDS => images;
    "btrfs without room for metadata: an image whose storage has grown is mounted, and its file system grows", NEEDS => grown;
    "btrfs without room for metadata: directories are deleted", NEEDS => directories;
    "dir on btrfs: a volume whose root is away is neither mounted nor tidied up, and can be deleted", NEEDS => rootless;
}

const DISK: u64 = 768;

fn node(backend: Backend, keys: &str) -> Node {
    let quotas = matches!(backend, Backend::Dir(_));
    let disk = PoolFilesystem {
        kind: "btrfs",
        mebibytes: DISK,
        quotas,
    };
    Node::on(backend, sandbox_with(disk), false, keys)
}

/// Fills the data with a foreign file, and `directory` with as many names and attributes as fit.
fn fill(node: &Node, directory: &Path) {
    let mut data = File::create_new(node.sandbox.disk().join("somebody-else")).unwrap();
    while data.write_all(&[1; 1 << 20]).is_ok() {}
    fs::create_dir(directory).unwrap();
    let whole = File::open(directory).unwrap();
    let mut refused = 0;
    let mut tried = |made: io::Result<()>| {
        refused = made.map_or(refused + 1, |()| 0);
        if refused == 1 {
            syncfs(&whole).unwrap();
        }
        refused < 60
    };
    let at = |at: usize| directory.join(at.to_string());
    let target = "y".repeat(1900);
    let mut names = 0..;
    while tried(symlink(&target, at(names.next().unwrap()))) {}
    while tried(fs::create_dir(at(names.next().unwrap()))) {}
    let attribute = |number| format!("user.{number}");
    let set = |name: &str| setxattr(directory, name, &[b'z'; 200], XattrFlags::empty());
    let mut numbers = 0..;
    while tried(set(&attribute(numbers.next().unwrap())).map_err(io::Error::from)) {}
}

fn expect_full(directory: &Path) {
    let set = setxattr(directory, "trusted.full", &[b'z'; 200], XattrFlags::empty());
    assert_eq!(set, Err(Errno::NOSPC), "there is room for an attribute");
}

fn images(_: &Points) {
    let node = node(Backend::Loop, "reserve = \"0%\"\nkeep_deleted = \"1s\"");
    let before = Baseline::of(&node.sandbox);
    let [kept, deleted] = ["kept", "deleted"].map(|name| {
        let volume = node.volume(name);
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        pod.unmount().success();
        volume
    });
    node.delete(&kept).success();
    assert!(kept.image(&node.sandbox).exists(), "not kept");
    let names = node.sandbox.disk().join("names");
    fill(&node, &names);
    expect_full(&deleted.image(&node.sandbox));
    // Keeping a deleted volume takes another word in its mark.
    node.delete(&deleted).failure();
    thread::sleep(Duration::from_secs(2));
    stdout_of(&node.driver, &["gc"]);
    assert!(!kept.image(&node.sandbox).exists(), "still kept");
    node.install("reserve = \"0%\"");
    node.delete(&deleted).success();
    fs::remove_dir_all(&names).unwrap();
    fs::remove_file(node.sandbox.disk().join("somebody-else")).unwrap();
    before.expect(&node.sandbox, "deleted without room");
}

/// The mark records that the growth has begun. Shortening the mark takes space, too.
fn grown(points: &Points) {
    let node = node(Backend::Loop, "reserve = \"0%\"");
    let before = Baseline::of(&node.sandbox);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let had = size_of_filesystem(pod.dir());
    pod.unmount().success();
    let to = node.size() + 32 * MIB;
    node.expand_volume(&volume, to).success();
    let names = node.sandbox.disk().join("names");
    fill(&node, &names);
    expect_full(&volume.image(&node.sandbox));
    for _ in 0..2 {
        pod.mount("rw").success();
        assert!(size_of_filesystem(pod.dir()) > had + 16 * MIB, "not grown");
        node.expand(&volume, to).success();
        pod.unmount().success();
        points.add(1);
    }
    fs::remove_dir_all(&names).unwrap();
    fs::remove_file(node.sandbox.disk().join("somebody-else")).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
    node.delete(&volume).success();
    before.expect(&node.sandbox, "grown without room");
}

/// Metadata filled by foreign files, and by a tenant within the volume's limit.
fn directories(points: &Points) {
    for in_volume in [false, true] {
        let node = node(Backend::Dir("btrfs"), "");
        let before = Baseline::of(&node.sandbox);
        let large = PersistentVolume::provision(&node.driver, "large", "", 400 * MIB);
        let volumes = [node.volume("one"), large, node.volume("two")];
        let names = match in_volume {
            true => node.directory(&volumes[1]).join("names"),
            false => node.sandbox.disk().join("names"),
        };
        fill(&node, &names);
        expect_full(&node.directory(&volumes[0]));
        for volume in &volumes {
            node.delete(volume).success();
            points.add(1);
        }
        if !in_volume {
            fs::remove_dir_all(&names).unwrap();
        }
        fs::remove_file(node.sandbox.disk().join("somebody-else")).unwrap();
        before.expect(&node.sandbox, "deleted without room");
    }
}

/// A root that was moved away for a while, and a removal that was interrupted.
fn rootless(_: &Points) {
    let node = node(Backend::Dir("btrfs"), "");
    let before = Baseline::of(&node.sandbox);
    let (volume, cut) = (node.volume("pv"), node.volume("cut"));
    let (pod, data) = node.written(&volume);
    let (root, away) = (node.directory(&volume), node.sandbox.disk().join("away"));
    fs::rename(&root, &away).unwrap();
    let mut delete = Command::new("btrfs");
    delete
        .args(["subvolume", "delete"])
        .arg(node.directory(&cut));
    assert!(delete.output().unwrap().status.success());
    for volume in [&volume, &cut] {
        let refused = node.pod(volume).mount("rw");
        assert!(refused.failure().contains("has no root"), "{refused:?}");
    }
    stdout_of(&node.driver, &["gc"]);
    fs::rename(&away, &root).unwrap();
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), data);
    pod.unmount().success();
    for volume in [&volume, &cut] {
        node.delete(volume).success();
    }
    before.expect(&node.sandbox, "deleted");
}
