//! Deleting: who keeps a volume from it, how far it reaches, and what is left of one that was killed.

use super::{Place, ROOT, options, pool};
use flexvol_host::{
    VolumeId,
    mount::{Target, bind, unbind},
    pool::Reserve,
};
use flexvol_sdk::{Bytes, Handle};
use flexvol_testing::{Baseline, Need, Points, below, tests};
use std::{
    fs,
    io::{Read, Write},
    os::{fd::AsFd, unix::fs::symlink},
    path::Path,
    process::{Command, Stdio},
};

tests! {
    "pods share a directory volume, and deleting waits for all of them", ROOT => pods_share;
    "a part of a volume that is mounted elsewhere keeps it from being deleted", ROOT => sub_path;
    "a directory mounted only in another mount namespace is not deleted", &[Need::Root, Need::Tool("unshare", "util-linux")]
        => elsewhere;
    "deleting follows no link, enters no mount and leaves other volumes alone", ROOT
        => confined_removal;
    "what a killed process left of a directory is swept", ROOT => sweep;
}

fn pods_share(_: &Points) {
    let place = Place::new();
    let before = Baseline::of(&place.sandbox);
    let volume = place.volume("data");
    let pods = ["one", "two"].map(|uid| place.pod(&volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    fs::write(pods[0].dir().join("file"), "text").unwrap();
    for pod in &pods {
        let refused = place.driver.call(&["delete", &volume.json("rw")]);
        assert!(refused.failure().contains("still mounted"), "{refused}");
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"text");
        pod.unmount().success();
    }
    place.delete(&volume);
    place.delete(&volume);
    let refused = pods[0].mount("rw").failure();
    assert!(refused.contains("no such volume"), "{refused}");
    before.expect(&place.sandbox, "deleted");
}

fn sub_path(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let root = place.directory(&volume);
    let part = root.join("part");
    fs::create_dir(&part).unwrap();
    let elsewhere = place.sandbox.path("sub-path");
    fs::create_dir(&elsewhere).unwrap();
    let target = Target::open(&elsewhere).unwrap().unwrap();
    // What holds the root goes with it.
    for shown in [&part, root.parent().unwrap()] {
        bind(fs::File::open(shown).unwrap().as_fd(), &target, false).unwrap();
        // A part is no volume of anybody's.
        assert_eq!(options(&elsewhere).volume().is_none(), shown == part);
        let refused = place.driver.call(&["delete", &volume.json("rw")]);
        assert!(refused.failure().contains("still mounted"), "{refused}");
        assert!(unbind(&elsewhere).unwrap());
    }
    place.delete(&volume);
}

/// As a container has it whose pod's directory is unmounted already.
fn elsewhere(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let pod = place.pod(&volume, "one");
    pod.mount("rw").success();
    let inside = place.sandbox.path("container");
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
    // Its echo comes when everything is mounted.
    input.write_all(b".").unwrap();
    output.read_exact(&mut [0]).unwrap();
    pod.unmount().success();
    let refused = place.driver.call(&["delete", &volume.json("rw")]);
    drop(input);
    container.wait().unwrap();
    assert!(refused.failure().contains("still mounted"), "{refused}");
    place.delete(&volume);
}

fn confined_removal(points: &Points) {
    let place = Place::new();
    let [doomed, other] = ["doomed", "other"].map(|name| place.volume(name));
    let outside = place.sandbox.disk().join("outside");
    fs::create_dir(&outside).unwrap();
    for keep in [&outside, &place.directory(&other)] {
        fs::write(keep.join("file"), "kept").unwrap();
    }
    let root = place.directory(&doomed);
    fs::create_dir_all(root.join("a/b")).unwrap();
    for (at, target) in [
        ("absolute", outside.clone()),
        ("a/other", Path::new("../../..").join(other.id())),
        ("a/b/up", "../../../../..".into()),
    ] {
        symlink(target, root.join(at)).unwrap();
    }
    fs::hard_link(outside.join("file"), root.join("linked")).unwrap();
    // A mount inside keeps the rest of the volume from being lost unseen.
    let inside = root.join("a/b/mount");
    fs::create_dir(&inside).unwrap();
    let target = Target::open(&inside).unwrap().unwrap();
    bind(fs::File::open(&outside).unwrap().as_fd(), &target, false).unwrap();
    let refused = place.driver.call(&["delete", &doomed.json("rw")]);
    assert!(refused.failure().contains("mounted inside"), "{refused}");
    points.add(1);
    let mounted = below(&place.sandbox.pool());
    assert_eq!(mounted.len(), 1, "it is still mounted, wherever it is now");
    assert!(unbind(&mounted[0].point).unwrap());
    place.delete(&doomed);
    for keep in [&outside, &place.directory(&other)] {
        assert_eq!(fs::read(keep.join("file")).unwrap(), b"kept");
        points.add(1);
    }
    let left = fs::read_dir(place.sandbox.pool().join("volumes")).unwrap();
    assert_eq!(left.count(), 1);
}

fn id_of(byte: u8) -> VolumeId {
    VolumeId::of(&Handle::from_bytes([byte; 16]))
}

fn sweep(_: &Points) {
    let place = Place::new();
    let before = Baseline::of(&place.sandbox);
    let volumes = place.sandbox.pool().join("volumes");
    let kept = id_of(7);
    let pool = pool(&place);
    pool.create_directory(&kept, Bytes::MIB, "mark", Reserve::Percent(15))
        .unwrap();
    for (prefix, byte) in [(".new-", 1), (".gone-", 2), (".gone-", 3), (".other-", 4)] {
        let name = format!("{prefix}{}", id_of(byte));
        fs::create_dir_all(volumes.join(name).join("a/b")).unwrap();
    }
    // And one that got as far as a root.
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
    before.expect(&place.sandbox, "swept");
}
