//! The life of a volume that is attached to the node before pods get it.

use crate::{
    node::{Backend, LOOP, MIB, Node, UID, fill, measured, size_of_filesystem},
    story::stories,
};
use flexvol_testing::{Outcome, PersistentVolume, Points, below, tests};
use std::{fs, path::PathBuf};

stories! {
    STORIES:
    "an attached volume is mounted for the node, shared by pods, and leaves nothing",
        [loop xfs ext4 btrfs lvm] => attached;
}

tests! {
    "a stranger's pod attaches a blank volume, and its owner's file system is made", LOOP
        => attached_by_a_stranger;
    "of two names of an attached volume only one is mounted for the node", LOOP => attached_twice;
}

impl Node {
    /// kubelet's global mount point of a volume on the node.
    fn global(&self, name: &str) -> PathBuf {
        let plugins = self
            .sandbox
            .kubelet_root()
            .join("plugins/kubernetes.io/flexvolume");
        let dir = plugins.join(self.driver.name()).join("mounts").join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}

fn attached(backend: Backend, points: &Points) {
    let node = Node::attached(backend);
    let driver = &node.driver;
    let init = driver.call(&["init"]).success().object().unwrap();
    assert_eq!(init["capabilities"]["attach"], true);
    let before = node.inventory();
    let volume = node.volume("pv");
    let json = volume.json("rw");
    let device = driver
        .call(&["attach", &json, "node"])
        .success()
        .text("device");
    if !backend.is_lvm() {
        assert_eq!(device, format!("/run/flexvol/volumes/{}", volume.id()));
    }
    let again = driver.call(&["waitforattach", &device, &json]).success();
    assert_eq!(again.text("device"), device);
    let attached = driver.call(&["isattached", &json, "node"]);
    assert_eq!(attached.outcome(), Outcome::NotSupported);
    let dir = node.global("pv");
    let global = dir.to_str().unwrap();
    // For whatever device kubelet passes.
    for device in [device.as_str(), "/dev/null"] {
        driver
            .call(&["mountdevice", global, device, &json])
            .success();
    }
    let pods = [UID, "two"].map(|uid| node.pod_of(&volume, uid));
    pods[0].mount("ro").success();
    pods[1].mount("rw").success();
    let content = fill(pods[1].dir(), "file");
    for dir in [&dir, pods[0].dir()] {
        assert_eq!(fs::read(dir.join("file")).unwrap(), content);
    }
    points.add(3);
    let mut size = node.size();
    for dir in [&dir, pods[1].dir()] {
        let shown = size_of_filesystem(pods[1].dir());
        let new = size + 100 * MIB;
        let [new, old] = [new, size].map(|size| size.to_string());
        let dir = dir.to_str().unwrap();
        let grown = driver.call(&["expandfs", &json, &device, dir, &new, &old]);
        size += 100 * MIB;
        assert_eq!(measured(&grown.success()), size);
        match backend {
            Backend::Dir("btrfs") => {}
            Backend::Dir(_) => {
                let now = size_of_filesystem(pods[0].dir());
                assert_eq!((shown, now), (size - 100 * MIB, size));
            }
            _ => assert!(size_of_filesystem(pods[0].dir()) > shown + 80 * MIB),
        }
        points.add(1);
    }
    for pod in &pods {
        pod.unmount().success();
    }
    let refused = node.delete(&volume).failure();
    assert!(refused.contains("still mounted"), "{refused}");
    driver.call(&["unmountdevice", global]).success();
    driver.call(&["unmountdevice", global]).success();
    driver.call(&["detach", "pv", "node"]).success();
    fs::remove_dir(global).unwrap();
    node.delete(&volume).success();
    node.expect(&before, "detached and deleted");
    points.add(2);
}

/// A pod of another namespace knows the handle, and requests another file system than the owner.
fn attached_by_a_stranger(points: &Points) {
    let node = Node::attached(Backend::Loop);
    let baseline = node.inventory();
    let global = node.global("block");
    let dir = global.to_str().unwrap();
    let made = |volume: PersistentVolume, strange: &'static str| {
        let stranger = PersistentVolume {
            filesystem: strange,
            ..volume.clone()
        };
        let mount = |volume: &PersistentVolume| {
            node.driver
                .call(&["mountdevice", dir, "", &volume.json("rw")])
        };
        let refused = mount(&stranger).failure();
        assert!(refused.contains("was made for"), "{refused}");
        mount(&volume).success();
        node.written(&volume);
        node.driver.call(&["unmountdevice", dir]).success();
        node.delete(&volume).success();
        points.add(1);
    };
    let class = node.volume_of("class", "ext4");
    made(class, "xfs");
    // The class names no file system, so the pool's default is used.
    let any = node.provision("any").success();
    made(PersistentVolume::from_reply("any", "xfs", &any), "ext4");
    fs::remove_dir(&global).unwrap();
    node.expect(&baseline, "deleted");
}

/// Two persistent volumes of one handle, or one and an inline volume. kubelet ends neither of two mounts of a
/// device before the other has ended, so it would wait for ever.
fn attached_twice(_: &Points) {
    let node = Node::attached(Backend::Loop);
    let baseline = node.inventory();
    let volume = node.volume("block");
    let json = volume.json("rw");
    let globals = ["block", "copy"].map(|name| node.global(name));
    let call = |arguments: &[&str]| node.driver.call(arguments).success();
    let [first, second] = globals.each_ref().map(|dir| dir.to_str().unwrap());
    for dir in [first, second, first, second] {
        call(&["mountdevice", dir, "", &json]);
        assert_eq!(below(&globals[0]).len(), 1);
        assert_eq!(below(&globals[1]), []);
    }
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    let grown = call(&["expandfs", &json, "", second, "419430400", "314572800"]);
    assert_eq!(measured(&grown), 400 * MIB);
    call(&["unmountdevice", second]);
    assert_eq!(below(&globals[0]).len(), 1);
    pod.unmount().success();
    call(&["unmountdevice", first]);
    // The remaining name has the volume for itself.
    call(&["mountdevice", second, "", &json]);
    assert_eq!(fs::read(globals[1].join("file")).unwrap(), content);
    call(&["unmountdevice", second]);
    for dir in &globals {
        fs::remove_dir(dir).unwrap();
    }
    call(&["delete", &json]);
    node.expect(&baseline, "both names were detached");
}
