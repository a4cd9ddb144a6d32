//! Deletes volumes: what prevents it, what it removes, and what is left after a kill.

use super::{options, pool};
use crate::{
    node::{Backend, MIB, Node, ROOT, capacity},
    story::stories,
};
use flexvol_host::{
    VolumeId,
    mount::{Target, bind, unbind},
    pool::Reserve,
};
use flexvol_sdk::{Bytes, Handle};
use flexvol_testing::{Baseline, PersistentVolume, Points, below, json, request, tests};
use std::{
    fs,
    io::{Read, Write},
    os::{fd::AsFd, unix::fs::symlink},
    path::Path,
    process::{Command, Stdio},
};

stories! {
    STORIES:
    "a part of a volume that is mounted elsewhere keeps it from being deleted",
        [hello_directory btrfs] => sub_path;
    "a directory mounted only in another mount namespace is not deleted", [hello_directory btrfs]
        => elsewhere;
    "deleting follows no link, enters no mount and leaves other volumes alone",
        [hello_directory xfs ext4] => confined_removal;
    "what a provision that was cut left goes when its name is deleted, with what it was promised",
        [hello_directory xfs ext4 btrfs] => cut_provision;
}

tests! {
    "what a killed process left of a directory is swept", ROOT => sweep;
}

fn sub_path(backend: Backend, _: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("data");
    let root = node.directory(&volume);
    let part = root.join("part");
    fs::create_dir(&part).unwrap();
    let elsewhere = node.sandbox.path("sub-path");
    fs::create_dir(&elsewhere).unwrap();
    let target = Target::open(&elsewhere).unwrap().unwrap();
    // The root's parent directory is deleted with it, so a mount of the parent counts, too.
    for shown in [&part, root.parent().unwrap()] {
        bind(fs::File::open(shown).unwrap().as_fd(), &target, false).unwrap();
        // A mount of a part does not identify the volume.
        assert_eq!(options(&elsewhere).volume().is_none(), shown == part);
        let refused = node.delete(&volume);
        assert!(refused.failure().contains("still mounted"), "{refused}");
        assert!(unbind(&elsewhere).unwrap());
    }
    node.delete(&volume).success();
}

/// A mount in another container, whose pod's own mount is gone already.
fn elsewhere(backend: Backend, _: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("data");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let inside = node.sandbox.path("container");
    fs::create_dir(&inside).unwrap();
    let mut container = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(r#"mount --bind "$0" "$1" && exec cat"#)
        .args([pod.dir(), &inside])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = container.stdin.take().unwrap();
    let mut output = container.stdout.take().unwrap();
    // The echo comes when everything is mounted.
    input.write_all(b".").unwrap();
    output.read_exact(&mut [0]).unwrap();
    pod.unmount().success();
    let refused = node.delete(&volume);
    drop(input);
    container.wait().unwrap();
    assert!(refused.failure().contains("still mounted"), "{refused}");
    node.delete(&volume).success();
}

fn confined_removal(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let [doomed, other] = ["doomed", "other"].map(|name| node.volume(name));
    let outside = node.sandbox.disk().join("outside");
    fs::create_dir(&outside).unwrap();
    for keep in [&outside, &node.directory(&other)] {
        fs::write(keep.join("file"), "kept").unwrap();
    }
    let root = node.directory(&doomed);
    fs::create_dir_all(root.join("a/b")).unwrap();
    for (at, target) in [
        ("absolute", outside.clone()),
        ("a/other", Path::new("../../..").join(other.id())),
        ("a/b/up", "../../../../..".into()),
    ] {
        symlink(target, root.join(at)).unwrap();
    }
    // A limited directory shares no hard links with others.
    let linked = fs::hard_link(outside.join("file"), root.join("linked"));
    assert_eq!(linked.is_ok(), backend == Backend::HelloDirectory);
    // A mount inside prevents that the rest of the volume is deleted unnoticed.
    let inside = root.join("a/b/mount");
    fs::create_dir(&inside).unwrap();
    let target = Target::open(&inside).unwrap().unwrap();
    bind(fs::File::open(&outside).unwrap().as_fd(), &target, false).unwrap();
    let refused = node.delete(&doomed);
    assert!(refused.failure().contains("mounted inside"), "{refused}");
    points.add(1);
    let mounted = below(&node.sandbox.pool());
    assert_eq!(mounted.len(), 1, "it is still mounted, wherever it is now");
    assert!(unbind(&mounted[0].point).unwrap());
    node.delete(&doomed).success();
    for keep in [&outside, &node.directory(&other)] {
        assert_eq!(fs::read(keep.join("file")).unwrap(), b"kept");
        points.add(1);
    }
    let left = fs::read_dir(node.sandbox.pool().join("volumes")).unwrap();
    assert_eq!(left.count(), 1);
}

fn cut_provision(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let all = capacity(&node.driver);
    let before = Baseline::of(&node.sandbox);
    for delete in [
        json([("kubernetes.io/pvOrVolumeName", "pv")]),
        // As a controller asks that missed the reply.
        request("pv", all / 2),
    ] {
        let volume = PersistentVolume::provision(&node.driver, "pv", "", all / 2);
        // Killed before its last step.
        let unfinished = node.volumes().join(format!(".new-{}", volume.id()));
        fs::rename(node.volume_directory(&volume), &unfinished).unwrap();
        let promised = capacity(&node.driver) < all * 3 / 4;
        assert_eq!(promised, backend != Backend::HelloDirectory);
        node.driver.call(&["delete", &delete]).success();
        assert!(!unfinished.exists(), "{delete}");
        let now = capacity(&node.driver);
        assert!(all.abs_diff(now) <= 8 * MIB, "{now}, not about {all}");
        before.expect(&node.sandbox, "deleted");
        points.add(1);
    }
}

fn id_of(byte: u8) -> VolumeId {
    VolumeId::of(&Handle::from_bytes([byte; 16]))
}

fn sweep(_: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let before = Baseline::of(&node.sandbox);
    let volumes = node.sandbox.pool().join("volumes");
    let kept = id_of(7);
    let pool = pool(&node);
    pool.create_directory(&kept, Bytes::MIB, "mark", Reserve::Percent(15))
        .unwrap();
    for (prefix, byte) in [(".new-", 1), (".gone-", 2), (".gone-", 3), (".other-", 4)] {
        let name = format!("{prefix}{}", id_of(byte));
        fs::create_dir_all(volumes.join(name).join("a/b")).unwrap();
    }
    // And a removal that had not yet reached the root.
    let whole = volumes.join(format!(".gone-{}", id_of(2)));
    fs::create_dir_all(whole.join(id_of(2).to_string()).join("a/b")).unwrap();
    let busy = id_of(3);
    let lock = flexvol_host::lock::volume(&busy, std::time::Duration::ZERO).unwrap();
    let sweep = || {
        let remains = pool.remains().unwrap();
        let cleared = remains
            .iter()
            .filter(|remains| pool.clear(remains).unwrap());
        cleared.count()
    };
    assert_eq!(sweep(), 2);
    drop(lock);
    assert_eq!(sweep(), 1);
    assert!(volumes.join(kept.to_string()).exists());
    pool.remove_directory(&kept).unwrap();
    let foreign = format!(".other-{}", id_of(4));
    fs::remove_dir_all(volumes.join(foreign)).unwrap();
    before.expect(&node.sandbox, "swept");
}
