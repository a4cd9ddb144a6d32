//! Volumes that are directories: what kubelet, pods and kills do to them.

use crate::{sandbox, vendors};
use flexvol_host::{
    VolumeId,
    mount::{Target, bind, unbind},
    mountinfo,
    pool::{Pool, Reserve},
};
use flexvol_sdk::{Bytes, Handle};
use flexvol_testing::{
    Baseline, Driver, Need, PersistentVolume, Pod, Points, Sandbox, Test, below,
};
use nix::mount::MsFlags;
use std::{
    fs,
    io::{Read, Write},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const ROOT: &[Need] = &[Need::Root];

pub const TESTS: &[Test] = &[
    Test {
        name: "a directory is shown read-only and writable at once, and neither honours devices",
        needs: ROOT,
        run: both_ways,
    },
    Test {
        name: "a mount that was cut half-way is mended, and unmounted",
        needs: ROOT,
        run: half_made,
    },
    Test {
        name: "pods share a directory volume, and deleting waits for all of them",
        needs: ROOT,
        run: pods_share,
    },
    Test {
        name: "a part of a volume that is mounted elsewhere keeps it from being deleted",
        needs: ROOT,
        run: sub_path,
    },
    Test {
        name: "a directory mounted only in another mount namespace is not deleted",
        needs: &[Need::Root, Need::Tool("unshare", "util-linux")],
        run: elsewhere,
    },
    Test {
        name: "a directory is unmounted while its pool is missing",
        needs: ROOT,
        run: missing_pool,
    },
    Test {
        name: "a directory is known by where it is mounted after a kubelet restart",
        needs: ROOT,
        run: bare_json,
    },
    Test {
        name: "the pod's group gets the volume's root, and a read-only pod changes nothing",
        needs: ROOT,
        run: fs_group,
    },
    Test {
        name: "another directory in the volume's place is not taken for it",
        needs: ROOT,
        run: replaced,
    },
    Test {
        name: "deleting follows no link, enters no mount and leaves other volumes alone",
        needs: ROOT,
        run: confined_removal,
    },
    Test {
        name: "what a killed process left of a directory is swept",
        needs: ROOT,
        run: sweep,
    },
];

const SIZE: u64 = 64 << 20;

/// A node with the directory driver.
struct Place {
    sandbox: Sandbox,
    driver: Driver,
}

impl Place {
    fn new() -> Self {
        let sandbox = sandbox();
        let driver = vendors::install(&sandbox, "hello-directory");
        Place { sandbox, driver }
    }

    fn volume(&self, name: &str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, name, "", SIZE)
    }

    fn pod<'a>(&'a self, volume: &'a PersistentVolume, uid: &str) -> Pod<'a> {
        Pod::new(&self.sandbox, &self.driver, volume, uid)
    }

    fn directory(&self, volume: &PersistentVolume) -> PathBuf {
        volume.root(&self.sandbox)
    }

    fn delete(&self, volume: &PersistentVolume) {
        self.driver.call(&["delete", &volume.json("rw")]).success();
    }
}

fn options(dir: &Path) -> mountinfo::Mount {
    Target::open(dir)
        .unwrap()
        .unwrap()
        .mount()
        .unwrap()
        .unwrap()
}

fn both_ways(points: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let [writer, reader] = ["writer", "reader"].map(|uid| place.pod(&volume, uid));
    for order in [["rw", "ro"], ["ro", "rw"]] {
        for mode in order {
            let pod = if mode == "rw" { &writer } else { &reader };
            pod.mount(mode).success();
            let found = options(pod.dir());
            assert!(found.is_confined && found.read_only == (mode == "ro"));
            assert_eq!(found.volume().unwrap().to_string(), volume.id());
            points.add(1);
        }
        fs::write(writer.dir().join("file"), "text").unwrap();
        assert_eq!(fs::read(reader.dir().join("file")).unwrap(), b"text");
        assert!(fs::write(reader.dir().join("file"), "other").is_err());
        // The mode of a use may change, and repeating a callout changes nothing.
        for mode in ["rw", "ro", "ro"] {
            reader.mount(mode).success();
            assert_eq!(options(reader.dir()).read_only, mode == "ro");
        }
        assert_eq!(below(&place.sandbox.kubelet_root()).len(), 2);
        for pod in [&writer, &reader] {
            pod.unmount().success();
            pod.unmount().success();
        }
    }
}

fn half_made(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let pod = place.pod(&volume, "one");
    let cut = || {
        fs::create_dir_all(pod.dir()).unwrap();
        nix::mount::mount(
            Some(&place.directory(&volume)),
            pod.dir(),
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .unwrap();
        assert!(!options(pod.dir()).is_confined);
    };
    cut();
    pod.mount("ro").success();
    let found = options(pod.dir());
    assert!(found.is_confined && found.read_only);
    pod.unmount().success();
    cut();
    pod.unmount().success();
    assert_eq!(below(&place.sandbox.kubelet_root()), []);
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

fn missing_pool(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let pods = ["one", "two"].map(|uid| place.pod(&volume, uid));
    pods[0].mount("rw").success();
    let (pool, away) = (place.sandbox.pool(), place.sandbox.disk().join("away"));
    fs::rename(&pool, &away).unwrap();
    fs::create_dir(&pool).unwrap();
    for refused in [
        pods[1].mount("rw"),
        place.driver.call(&["delete", &volume.json("rw")]),
        place.driver.call(&pods[0].expand_arguments(SIZE, SIZE)),
    ] {
        let message = refused.failure();
        assert!(message.contains("not mounted"), "{refused}");
    }
    pods[0].unmount().success();
    fs::remove_dir(&pool).unwrap();
    fs::rename(&away, &pool).unwrap();
    pods[1].mount("rw").success();
    pods[1].unmount().success();
}

fn bare_json(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let pod = place.pod(&volume, "one");
    pod.mount("rw").success();
    let mut arguments = pod.expand_arguments(SIZE, SIZE);
    arguments[1] = r#"{"kubernetes.io/readwrite":"rw"}"#.to_owned();
    place.driver.call(&arguments).success();
    pod.unmount().success();
    let unknown = place.driver.call(&arguments);
    assert!(unknown.failure().contains("no handle"), "{unknown}");
}

fn fs_group(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let pod = place.pod(&volume, "one");
    let mount = |mode: &str, key: &str| {
        let [callout, dir, json] = pod.mount_arguments(mode).try_into().unwrap();
        let group = format!("{{\"{key}\":\"4711\",");
        let json = json.replacen('{', &group, 1);
        place.driver.call(&[callout, dir, json]).success();
        let found = fs::metadata(pod.dir()).unwrap();
        let file = pod.dir().join("file");
        let _ = fs::write(&file, "text");
        let inherited = fs::metadata(&file).map(|file| file.gid()).ok();
        pod.unmount().success();
        (found.uid(), found.gid(), found.mode() & 0o7777, inherited)
    };
    let new = "kubernetes.io/mounterArgs.FsGroup";
    assert_eq!(mount("ro", new), (0, 0, 0o755, None));
    assert_eq!(mount("rw", new), (0, 4711, 0o2775, Some(4711)));
    // The owner's choice of what others may do is kept.
    let root = place.directory(&volume);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    let old = "kubernetes.io/fsGroup";
    assert_eq!(mount("rw", old), (0, 4711, 0o2770, Some(4711)));
}

fn replaced(_: &Points) {
    let place = Place::new();
    let volume = place.volume("data");
    let pod = place.pod(&volume, "one");
    pod.mount("rw").success();
    let (directory, around) = (place.directory(&volume), volume.image(&place.sandbox));
    let open = || {
        let id = VolumeId::parse(&volume.id()).unwrap();
        pool(&place).directory(&id).unwrap()
    };
    let mark = open().mark().unwrap().unwrap();
    let away = place.sandbox.disk().join("away");
    fs::create_dir(&away).unwrap();
    fs::rename(&around, away.join(volume.id())).unwrap();
    let absent = pod.mount("rw").failure();
    assert!(absent.contains("no such volume"), "{absent}");
    // Another directory of that name, even with that mark, is not what is mounted.
    fs::create_dir_all(&directory).unwrap();
    for mark in [None, Some(mark)] {
        if let Some(mark) = mark {
            open().set_mark(&mark).unwrap();
        }
        let refused = pod.mount("rw").failure();
        assert!(refused.contains("not this volume any more"), "{refused}");
    }
    pod.unmount().success();
}

fn pool(place: &Place) -> Pool {
    Pool::open(&place.sandbox.pool()).unwrap()
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
