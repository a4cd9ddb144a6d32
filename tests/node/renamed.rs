//! Images that are attached under another name: one was renamed while attached, or a bind mount of the file was
//! attached.

use crate::node::{Backend, LOOP, Node};
use flexvol_testing::{PersistentVolume, Points, tests};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File},
    path::PathBuf,
    process::Command,
};

tests! {
    "a volume whose image somebody attached under another name, or renamed, is unmounted and not deleted under its pod",
        LOOP => renamed;
}

/// A name that no volume has, and a valid volume id of another one.
const NAMES: [&str; 2] = ["image", "00112233445566778899aabbccddeeff"];

fn renamed(points: &Points) {
    for backend in [Backend::Loop, Backend::HelloBlock] {
        for name in NAMES {
            moved(&Node::new(backend), name);
            attached(&Node::new(backend), name);
            points.add(2);
        }
    }
}

/// While a pod uses the volume.
fn moved(node: &Node, name: &str) {
    let volume = node.volume("pv");
    let (pod, content) = node.written(&volume);
    pod.mount("rw").success();
    let image = volume.image(&node.sandbox);
    let away = image.with_file_name(name);
    fs::rename(&image, &away).unwrap();
    let refused = node.delete(&volume).failure();
    assert!(refused.contains("in use"), "{refused}");
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    fs::rename(&away, &image).unwrap();
    node.delete(&volume).success();
}

/// Before a pod uses the volume.
fn attached(node: &Node, name: &str) {
    let volume = node.volume("pv");
    let (pod, content) = node.written(&volume);
    let file = FileMount::new(node, &volume, name);
    let mut attaches = Command::new("losetup");
    let attached = attaches.arg("-f").arg(&file.0).output().unwrap();
    assert!(attached.status.success(), "{attached:?}");
    pod.mount("rw").success();
    assert_eq!(node.sandbox.loops().len(), 1, "a second device");
    let another = node.pod_of(&volume, "two");
    another.mount("rw").success();
    assert_eq!(node.sandbox.loops().len(), 1, "a second device");
    let refused = node.delete(&volume).failure();
    assert!(
        refused.contains("mounted") || refused.contains("in use"),
        "{refused}"
    );
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    for pod in [&pod, &another] {
        pod.unmount().success();
    }
    drop(file);
    node.delete(&volume).success();
}

/// A bind mount of a volume's image file.
struct FileMount(PathBuf);

impl FileMount {
    fn new(node: &Node, volume: &PersistentVolume, name: &str) -> FileMount {
        let place = node.sandbox.path(name);
        File::create_new(&place).unwrap();
        let (image, none) = (volume.image(&node.sandbox), None::<&str>);
        mount(Some(&image), &place, none, MsFlags::MS_BIND, none).unwrap();
        FileMount(place)
    }
}

impl Drop for FileMount {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::empty()).unwrap();
    }
}
