//! Callouts of volumes that are directories.

use super::Callout;
use crate::node::{Backend, Node};
use flexvol_host::mount::Target;
use flexvol_testing::{Disturbance, PersistentVolume, Points, below, request};
use std::{fs, os::unix::fs::symlink};

pub fn provision(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let arguments = vec!["provision".to_owned(), request("pv", node.size())];
    let callout = Callout {
        name: "provision of a directory",
        prepare: &|| (),
        arguments: &|()| arguments.clone(),
        formats: false,
        check: &|(), call| {
            let made = PersistentVolume::from_reply("pv", "", call);
            assert!(made.root(&node.sandbox).is_dir());
        },
        undo: &|()| drop(node.delete(&node.volume("pv")).success()),
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn mount(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    let callout = Callout {
        name: "mount of a directory",
        prepare: &|| (),
        arguments: &|()| pod.mount_arguments("ro"),
        formats: false,
        check: &|(), _| {
            let target = Target::open(pod.dir()).unwrap().unwrap();
            let found = target.mount().unwrap().unwrap();
            assert!(found.is_confined && found.read_only);
        },
        undo: &|()| drop(pod.unmount().success()),
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn unmount(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    let callout = Callout {
        name: "unmount of a directory",
        prepare: &|| drop(pod.mount("rw").success()),
        arguments: &|()| vec!["unmount".to_owned(), pod.dir().to_str().unwrap().to_owned()],
        formats: false,
        check: &|(), _| assert_eq!(below(&node.sandbox.kubelet_root()), []),
        undo: &|()| drop(pod.unmount().success()),
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn delete(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::HelloDirectory);
    let callout = Callout {
        name: "delete of a directory",
        prepare: &|| {
            let volume = node.volume("pv");
            let root = volume.root(&node.sandbox);
            fs::create_dir_all(root.join("a/b/c")).unwrap();
            fs::create_dir_all(root.join("a/d")).unwrap();
            fs::write(root.join("a/b/c/file"), "gone").unwrap();
            symlink("/", root.join("a/link")).unwrap();
            volume
        },
        arguments: &|volume: &PersistentVolume| vec!["delete".to_owned(), volume.json("rw")],
        formats: false,
        check: &|volume, _| assert!(!volume.image(&node.sandbox).exists()),
        undo: &|_| {},
    };
    node.disturbed(&callout, disturbance, points);
}
