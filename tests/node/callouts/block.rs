//! Callouts of block volumes.

use super::Callout;
use crate::node::{Backend, Node, size_of_filesystem};
use flexvol_testing::{Call, Disturbance, PersistentVolume, Points, below, request};
use std::fs;

const SIZE: u64 = 300 << 20;
const GROWN: u64 = 316 << 20;
const TEXT: &str = "written and synced before the callout";

impl Node {
    /// A volume that was mounted and holds a file, and is mounted now.
    pub fn with_file(&self, filesystem: &'static str) -> PersistentVolume {
        let volume = self.volume_of("pv", filesystem);
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        let path = pod.dir().join("file");
        fs::write(&path, TEXT).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        volume
    }

    pub fn holds_the_file(&self, volume: &PersistentVolume) {
        let file = self.pod(volume).dir().join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), TEXT);
    }
}

pub fn provision(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let arguments = vec!["provision".to_owned(), request("pv", SIZE)];
    let made = |call: &Call| PersistentVolume::from_reply("pv", "xfs", call);
    let callout = Callout {
        name: "provision",
        prepare: &|| (),
        arguments: &|()| arguments.clone(),
        formats: false,
        check: &|(), call| {
            let image = fs::metadata(made(call).image(&node.sandbox)).unwrap();
            assert_eq!(image.len(), SIZE);
        },
        undo: &|()| {
            node.delete(&made(&node.driver.call(&arguments).success()))
                .success();
        },
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn mount_new(filesystem: &'static str, disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let callout = Callout {
        name: &format!("mount of a new {filesystem} volume"),
        prepare: &|| node.volume_of("pv", filesystem),
        arguments: &|volume| node.pod(volume).mount_arguments("rw"),
        formats: true,
        check: &|volume, _| {
            fs::write(node.pod(volume).dir().join("file"), TEXT).unwrap();
        },
        undo: &|volume| {
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn mount(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("xfs");
    node.pod(&volume).unmount().success();
    let callout = Callout {
        name: "mount",
        prepare: &|| (),
        arguments: &|()| node.pod(&volume).mount_arguments("rw"),
        formats: false,
        check: &|(), _| node.holds_the_file(&volume),
        undo: &|()| {
            node.pod(&volume).unmount().success();
        },
    };
    node.disturbed(&callout, disturbance, points);
}

/// The storage was grown while nobody had it mounted, and the file system must follow.
pub fn mount_grown(filesystem: &'static str, disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let callout = Callout {
        name: &format!("mount of {filesystem} on storage that was grown"),
        prepare: &|| {
            let volume = node.with_file(filesystem);
            let before = size_of_filesystem(node.pod(&volume).dir());
            let pod = node.pod(&volume);
            pod.unmount().success();
            node.expand_volume(&volume, GROWN).success();
            (volume, before)
        },
        arguments: &|(volume, _)| node.pod(volume).mount_arguments("rw"),
        formats: false,
        // A mount does not fail for a growth that cannot be, but the next one makes good for it.
        check: &|(volume, _), _| node.holds_the_file(volume),
        undo: &|(volume, before)| {
            let pod = node.pod(&volume);
            pod.unmount().success();
            pod.mount("rw").success();
            // ext4 takes a part of what it is given for itself.
            let least = before + (GROWN - SIZE) / 2;
            assert!(
                size_of_filesystem(node.pod(&volume).dir()) > least,
                "it did not follow"
            );
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn expandfs(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let callout = Callout {
        name: "expandfs",
        prepare: &|| {
            let volume = node.with_file("xfs");
            let before = size_of_filesystem(node.pod(&volume).dir());
            (volume, before)
        },
        arguments: &|(volume, _)| node.pod(volume).expand_arguments(GROWN, SIZE),
        formats: false,
        check: &|(volume, before), _| {
            let image = fs::metadata(volume.image(&node.sandbox)).unwrap();
            assert_eq!(image.len(), GROWN);
            assert_eq!(
                size_of_filesystem(node.pod(&volume).dir()),
                before + GROWN - SIZE
            );
            node.holds_the_file(volume);
        },
        undo: &|(volume, _)| {
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn unmount(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("xfs");
    let pod = node.pod(&volume);
    pod.unmount().success();
    let arguments = vec!["unmount".to_owned(), pod.dir().to_str().unwrap().to_owned()];
    let callout = Callout {
        name: "unmount",
        prepare: &|| {
            pod.mount("rw").success();
            node.holds_the_file(&volume);
        },
        arguments: &|()| arguments.clone(),
        formats: false,
        check: &|(), _| assert_eq!(below(&node.sandbox.kubelet_root()), []),
        undo: &|()| {
            if pod.dir().exists() {
                fs::remove_dir(pod.dir()).unwrap();
            }
        },
    };
    node.disturbed(&callout, disturbance, points);
}

pub fn delete(disturbance: Disturbance, points: &Points) {
    let node = Node::new(Backend::Loop);
    let callout = Callout {
        name: "delete",
        prepare: &|| node.volume_of("pv", "xfs"),
        arguments: &|volume: &PersistentVolume| vec!["delete".to_owned(), volume.json("rw")],
        formats: false,
        check: &|volume, _| assert!(!volume.image(&node.sandbox).exists()),
        undo: &|_| {},
    };
    node.disturbed(&callout, disturbance, points);
}
