//! Volumes that are plain directories without limits, as pods see them.

pub mod removal;

use crate::{
    node::{Backend, MIB, Node, ROOT, size_of_filesystem},
    story::stories,
};
use flexvol_host::{VolumeId, mount::Target, mountinfo, pool::Pool};
use flexvol_testing::{Points, below, tests};
use nix::mount::MsFlags;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

stories! {
    STORIES:
    "a mount that was cut half-way is mended, and unmounted", [hello_directory btrfs] => half_made;
    "the pod's group gets the volume's root, and a read-only pod changes nothing",
        [hello_directory btrfs] => fs_group;
}

tests! {
    "a plain directory cannot grow beyond its file system", ROOT => whole;
    "another directory in the volume's place is not taken for it", ROOT => replaced;
}

fn options(dir: &Path) -> mountinfo::Mount {
    Target::open(dir)
        .unwrap()
        .unwrap()
        .mount()
        .unwrap()
        .unwrap()
}

fn whole(_: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let volume = node.volume("data");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let refused = node.grow(&pod, size_of_filesystem(&node.sandbox.disk()) + MIB);
    assert!(refused.failure().contains("whole file system"), "{refused}");
    assert_eq!(refused.text("errorClass"), "exhausted");
    pod.unmount().success();
}

fn half_made(backend: Backend, _: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("data");
    let pod = node.pod(&volume);
    let cut = || {
        fs::create_dir_all(pod.dir()).unwrap();
        nix::mount::mount(
            Some(&node.directory(&volume)),
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
    assert_eq!(below(&node.sandbox.kubelet_root()), []);
}

fn fs_group(backend: Backend, _: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("data");
    let pod = node.pod(&volume);
    let mount = |mode: &str, key: &str| {
        let [callout, dir, json] = pod.mount_arguments(mode).try_into().unwrap();
        let group = format!("{{\"{key}\":\"4711\",");
        let json = json.replacen('{', &group, 1);
        node.driver.call(&[callout, dir, json]).success();
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
    // The owner's choice of permissions for others is kept.
    let root = node.directory(&volume);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    let old = "kubernetes.io/fsGroup";
    assert_eq!(mount("rw", old), (0, 4711, 0o2770, Some(4711)));
}

fn replaced(_: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let volume = node.volume("data");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let (directory, volume_directory) = (node.directory(&volume), volume.image(&node.sandbox));
    let open = || {
        let id = VolumeId::parse(&volume.id()).unwrap();
        pool(&node).directory(&id).unwrap()
    };
    let mark = open().mark().unwrap().unwrap();
    let away = node.sandbox.disk().join("away");
    fs::create_dir(&away).unwrap();
    fs::rename(&volume_directory, away.join(volume.id())).unwrap();
    let absent = pod.mount("rw").failure();
    assert!(absent.contains("no such volume"), "{absent}");
    // Another directory with that name, and even with that mark, is not the mounted one.
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

fn pool(node: &Node) -> Pool {
    Pool::open(&node.sandbox.pool()).unwrap()
}
