//! Volumes that are directories, and what pods get of them.

pub mod removal;

use crate::{sandbox, vendors};
use flexvol_host::{VolumeId, mount::Target, mountinfo, pool::Pool};
use flexvol_testing::{Driver, Need, PersistentVolume, Pod, Points, Sandbox, below, tests};
use nix::mount::MsFlags;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

const ROOT: &[Need] = &[Need::Root];

tests! {
    "a directory is shown read-only and writable at once, and neither honours devices", ROOT
        => both_ways;
    "a mount that was cut half-way is mended, and unmounted", ROOT => half_made;
    "a directory is unmounted while its pool is missing", ROOT => missing_pool;
    "a directory is known by where it is mounted after a kubelet restart", ROOT => bare_json;
    "the pod's group gets the volume's root, and a read-only pod changes nothing", ROOT => fs_group;
    "another directory in the volume's place is not taken for it", ROOT => replaced;
}

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
