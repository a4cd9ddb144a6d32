//! The callouts of a volume's life, for suites that disturb them: each with its preparation, its checks and its
//! cleanup.

use crate::{
    by_hand::stdout_of,
    dir::damage::recorded,
    lifecycle::is_read_only,
    node::{Backend, MIB, Node, size_of_filesystem},
};
use flexvol_testing::{
    Call, Disturbance, Disturbed, Need, PersistentVolume, Points, below, request,
};
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
};

pub const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("strace", "strace"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

const TEXT: &str = "written and synced before the callout";

/// A callout in one state of a volume. [`Disturbed`] explains the fields.
struct Callout<'a, S> {
    name: &'a str,
    prepare: &'a dyn Fn() -> S,
    arguments: &'a dyn Fn(&S) -> Vec<String>,
    formats: bool,
    check: &'a dyn Fn(&S, &Call),
    undo: &'a dyn Fn(S),
}

impl Node {
    /// A mounted volume with a file from an earlier mount.
    pub fn with_file(&self, filesystem: &'static str) -> PersistentVolume {
        let volume = self.volume_of("pv", filesystem);
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        let path = pod.dir().join("file");
        fs::write(&path, TEXT).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        volume
    }

    pub fn holds_the_file(&self, volume: &PersistentVolume) {
        let file = self.pod(volume).dir().join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), TEXT);
    }

    /// Checks the space that the storage takes or may take.
    #[track_caller]
    fn expect_storage(&self, volume: &PersistentVolume, size: u64) {
        match self.backend {
            Backend::HelloDirectory => assert!(self.directory(volume).is_dir()),
            Backend::Dir(_) => self.expect_limit(volume, size),
            _ => assert_eq!(self.sizes()[&volume.id()], size),
        }
    }

    /// A small growth, because everything that the suites write into an image stays in memory.
    fn grown_a_little(&self) -> u64 {
        match self.backend {
            Backend::Loop => self.size() + 16 * MIB,
            _ => self.grown(),
        }
    }

    fn disturbed<S>(
        &self,
        callout: &Callout<'_, S>,
        disturbances: &[Disturbance],
        points: &Points,
    ) {
        let &Callout {
            name,
            prepare,
            arguments,
            formats,
            check,
            undo,
        } = callout;
        let name = match self.backend {
            Backend::Dir(kind) => format!("{name} of a directory on {kind}"),
            Backend::HelloDirectory => format!("{name} of a directory"),
            Backend::Lvm => format!("lvm: {name}"),
            Backend::ThinLvm => format!("lvm: {name}, thin"),
            _ => name.to_owned(),
        };
        let before = self.of_lvm();
        let undo = |state| {
            undo(state);
            assert_eq!(self.of_lvm(), before, "{name}, undone");
        };
        Disturbed {
            name: &name,
            sandbox: &self.sandbox,
            driver: &self.driver,
            prepare,
            arguments,
            formats,
            check,
            undo: &undo,
        }
        .run(disturbances, points);
    }
}

pub fn provision(node: &Node, disturbances: &[Disturbance], points: &Points) {
    let arguments = vec!["provision".to_owned(), request("pv", node.size())];
    let made = |call: &Call| PersistentVolume::from_reply("pv", node.backend.filesystem(), call);
    let callout = Callout {
        name: "provision",
        prepare: &|| (),
        arguments: &|()| arguments.clone(),
        formats: false,
        check: &|(), call| node.expect_storage(&made(call), node.size()),
        undo: &|()| {
            let volume = made(&node.driver.call(&arguments).success());
            node.delete(&volume).success();
            if let Backend::Dir(_) = node.backend {
                // If the cleanup was disturbed too, a temporary name may remain, which only `gc` removes.
                stdout_of(&node.driver, &["gc"]);
                assert_eq!(fs::read_dir(node.volumes()).unwrap().count(), 0);
            }
        },
    };
    node.disturbed(&callout, disturbances, points);
}

pub fn mount_new(
    node: &Node,
    filesystem: &'static str,
    disturbances: &[Disturbance],
    points: &Points,
) {
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
    node.disturbed(&callout, disturbances, points);
}

pub fn mount(node: &Node, disturbances: &[Disturbance], points: &Points) {
    let volume = node.with_file(node.backend.filesystem());
    let pod = node.pod(&volume);
    pod.unmount().success();
    let mode = match node.backend {
        Backend::HelloDirectory => "ro",
        _ => "rw",
    };
    let callout = Callout {
        name: "mount",
        // Takes the volume out of its project, so that the mount has to repair this.
        prepare: &|| node.take_from_project(&volume),
        arguments: &|()| pod.mount_arguments(mode),
        formats: false,
        check: &|(), _| {
            node.holds_the_file(&volume);
            assert_eq!(is_read_only(pod.dir()), mode == "ro");
            node.expect_storage(&volume, node.size());
        },
        undo: &|()| drop(pod.unmount().success()),
    };
    node.disturbed(&callout, disturbances, points);
}

/// The storage grew while the volume was not mounted, and the file system must follow at the mount.
pub fn mount_grown(
    node: &Node,
    filesystem: &'static str,
    disturbances: &[Disturbance],
    points: &Points,
) {
    let callout = Callout {
        name: &format!("mount of {filesystem} on storage that was grown"),
        prepare: &|| {
            let volume = node.with_file(filesystem);
            let before = size_of_filesystem(node.pod(&volume).dir());
            let pod = node.pod(&volume);
            pod.unmount().success();
            node.expand_volume(&volume, node.grown_a_little()).success();
            (volume, before)
        },
        arguments: &|(volume, _)| node.pod(volume).mount_arguments("rw"),
        formats: false,
        // A mount succeeds even if it cannot grow the file system. The next mount tries again.
        check: &|(volume, _), _| node.holds_the_file(volume),
        undo: &|(volume, before)| {
            let pod = node.pod(&volume);
            pod.unmount().success();
            pod.mount("rw").success();
            // ext4 uses a part of the space for metadata.
            let least = before + (node.grown_a_little() - node.size()) / 2;
            assert!(
                size_of_filesystem(node.pod(&volume).dir()) > least,
                "it did not follow"
            );
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
    };
    node.disturbed(&callout, disturbances, points);
}

pub fn expandfs(node: &Node, disturbances: &[Disturbance], points: &Points) {
    let (size, grown) = (node.size(), node.grown_a_little());
    let callout = Callout {
        name: "expandfs",
        prepare: &|| {
            let volume = node.with_file(node.backend.filesystem());
            let before = size_of_filesystem(node.pod(&volume).dir());
            (volume, before)
        },
        arguments: &|(volume, _)| node.pod(volume).expand_arguments(grown, size),
        formats: false,
        check: &|(volume, before), _| {
            node.expect_storage(volume, grown);
            match node.backend {
                // If quotas were switched off meanwhile, they are restored from the record.
                Backend::Dir(_) => assert_eq!(recorded(&node.volume_directory(volume)), grown),
                Backend::Loop => {
                    let shown = size_of_filesystem(node.pod(volume).dir());
                    assert_eq!(shown, before + grown - size);
                }
                _ => node.expect_room(node.pod(volume).dir(), *before),
            }
            node.holds_the_file(volume);
        },
        undo: &|(volume, _)| {
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
    };
    node.disturbed(&callout, disturbances, points);
}

/// Grows only the storage, while a pod uses the volume.
pub fn expandvolume(node: &Node, disturbances: &[Disturbance], points: &Points) {
    let (size, grown) = (node.size(), node.grown_a_little());
    let callout = Callout {
        name: "expandvolume",
        prepare: &|| node.with_file(node.backend.filesystem()),
        // Not a multiple of an extent.
        arguments: &|volume| node.expand_volume_arguments(volume, size, grown - 2 * MIB),
        formats: false,
        check: &|volume, _| {
            node.expect_storage(volume, grown);
            node.holds_the_file(volume);
        },
        undo: &|volume| {
            node.pod(&volume).unmount().success();
            node.delete(&volume).success();
        },
    };
    node.disturbed(&callout, disturbances, points);
}

pub fn unmount(node: &Node, disturbances: &[Disturbance], points: &Points) {
    let volume = node.with_file(node.backend.filesystem());
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
    node.disturbed(&callout, disturbances, points);
}

pub fn delete(node: &Node, disturbances: &[Disturbance], points: &Points) {
    let callout = Callout {
        name: "delete",
        prepare: &|| {
            let volume = node.volume("pv");
            if node.backend.is_directory() {
                let root = node.directory(&volume);
                fs::create_dir_all(root.join("a/b/c")).unwrap();
                fs::create_dir_all(root.join("a/d")).unwrap();
                fs::write(root.join("a/b/c/file"), "gone").unwrap();
                symlink("/", root.join("a/link")).unwrap();
            }
            volume
        },
        arguments: &|volume: &PersistentVolume| vec!["delete".to_owned(), volume.json("rw")],
        formats: false,
        check: &|volume, _| match node.backend.is_lvm() {
            true => assert!(!node.sizes().contains_key(&volume.id())),
            false => assert!(!volume.image(&node.sandbox).exists()),
        },
        undo: &|_| {},
    };
    node.disturbed(&callout, disturbances, points);
}
