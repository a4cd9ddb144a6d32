//! The life of a volume with kubelet's callouts, on every backend.

pub mod attached;
pub mod images;

use crate::{
    full::expect_exhausted,
    lvm::{self, GROWERS},
    node::{Backend, MIB, Node, UID, expect_written, fill, measured, size_of_filesystem, write},
    story::stories,
};
use flexvol_host::{mount::Target, mountinfo};
use flexvol_testing::{Driver, Hidden, PersistentVolume, Points, below, has_sys_resource, request};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    thread,
};

stories! {
    STORIES:
    "volumes are mounted, filled, grown while mounted, unmounted and deleted",
        [loop xfs ext4 btrfs hello_block hello_directory lvm thin_lvm] => life;
    "pods read only and writable share a volume in any order, and all see its growth",
        [loop xfs ext4 btrfs hello_block hello_directory lvm] => shared;
    "a volume that a pod has is not deleted, and one that was deleted is gone for good",
        [loop xfs ext4 btrfs hello_block hello_directory lvm] => deleted;
    "volumes made at the same time are one for one name, also after a reboot",
        [loop xfs ext4 btrfs hello_block hello_directory lvm] => names;
}

/// The capabilities that a driver reports in `init`, out of six.
fn capabilities(driver: &Driver) -> Vec<String> {
    let init = driver.call(&["init"]).success().object().unwrap();
    let told: BTreeMap<String, bool> =
        serde_json::from_value(init["capabilities"].clone()).unwrap();
    let names = [
        "attach",
        "concurrentFSResize",
        "fsGroup",
        "requiresFSResize",
        "selinuxRelabel",
        "supportsMetrics",
    ];
    assert!(told.keys().eq(names), "{told:?}");
    told.into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name)
        .collect()
}

impl Node {
    /// The size that a growth measures. A plain directory has the whole file system.
    pub fn growth(&self, to: u64) -> u64 {
        match self.backend {
            Backend::HelloDirectory => size_of_filesystem(&self.sandbox.disk()) / MIB * MIB,
            _ => to,
        }
    }

    /// Checks the size of each volume's storage, where each has some of its own.
    fn expect_sizes(&self, expected: u64, volumes: usize) {
        if self.backend != Backend::HelloDirectory {
            let sizes = self.sizes();
            assert_eq!(sizes.len(), volumes, "{sizes:?}");
            assert!(sizes.values().all(|size| *size == expected), "{sizes:?}");
        }
    }

    /// Checks what `df` shows of a volume that grew from its first size, when it showed `before`.
    pub fn expect_room(&self, dir: &Path, before: u64) {
        let (size, grown, shown) = (self.size(), self.grown(), size_of_filesystem(dir));
        match self.backend {
            // Btrfs ignores quota groups in statfs.
            Backend::Dir("btrfs") | Backend::HelloDirectory => assert_eq!(shown, before),
            Backend::Dir(_) => assert_eq!((before, shown), (size, grown)),
            _ => assert!(shown >= before + (grown - size) * 5 / 6, "{shown}"),
        }
    }

    /// Checks the volume's file system with its own tools.
    pub fn expect_sound(&self, volume: &PersistentVolume) {
        let check: &[&str] = match volume.filesystem {
            "" => return,
            "xfs" => &["xfs_repair", "-n"],
            "btrfs" => &["btrfs", "check"],
            _ => &["e2fsck", "-fn"],
        };
        let mut command = Command::new(check[0]);
        let checked = command
            .args(&check[1..])
            .arg(self.blocks(volume))
            .output()
            .unwrap();
        assert!(checked.status.success(), "{check:?}: {checked:?}");
    }
}

fn life(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let has = capabilities(&node.driver);
    match backend {
        Backend::HelloDirectory => assert_eq!(has, ["concurrentFSResize", "requiresFSResize"]),
        Backend::Dir(_) => assert_eq!(
            has,
            ["concurrentFSResize", "requiresFSResize", "selinuxRelabel"]
        ),
        _ => assert_eq!(
            has,
            [
                "concurrentFSResize",
                "fsGroup",
                "requiresFSResize",
                "selinuxRelabel",
                "supportsMetrics"
            ]
        ),
    }
    for filesystem in backend.filesystems() {
        let before = node.inventory();
        let volume = node.volume_of(&format!("pv{filesystem}"), filesystem);
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        write(pod.dir(), "file", 8).unwrap();
        let shown = size_of_filesystem(pod.dir());

        // Without tools that could grow a file system: the driver uses the kernel.
        let hidden = Hidden::tools(GROWERS);
        let (size, grown) = (node.size(), node.grown());
        let call = node.expand(&volume, grown);
        drop(hidden);
        if filesystem.starts_with("ext") && !has_sys_resource() {
            let message = call.failure();
            assert!(message.contains("CAP_SYS_RESOURCE"), "{message}");
            for size in [size, grown] {
                assert!(message.contains(&format!("{}Mi", size / MIB)), "{message}");
            }
            pod.unmount().success();
            pod.mount("rw").success();
        } else {
            assert_eq!(
                measured(&call.success()),
                node.growth(grown),
                "{filesystem}"
            );
        }
        // The same size and a smaller one change nothing.
        for to in [grown, size] {
            let again = node.expand(&volume, to).success();
            assert_eq!(measured(&again), node.growth(grown), "{filesystem}");
        }
        node.expect_sizes(grown, 1);
        node.expect_room(pod.dir(), shown);
        expect_written(pod.dir(), "file", 8);
        points.add(4);

        let more = fill(pod.dir(), "more");
        pod.mount("rw").success();
        pod.unmount().success();
        pod.unmount().success();
        pod.mount("ro").success();
        expect_written(pod.dir(), "file", 8);
        assert_eq!(fs::read(pod.dir().join("more")).unwrap(), more);
        let mode = fs::metadata(pod.dir()).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o755);
        pod.unmount().success();
        node.expect_sound(&volume);
        node.delete(&volume).success();
        node.delete(&volume).success();
        node.expect(&before, "deleted");
        points.add(4);
    }
}

/// The mount at a pod's directory, which must ignore device files.
fn mount_at(dir: &Path) -> mountinfo::Mount {
    let target = Target::open(dir).unwrap().unwrap();
    let mount = target.mount().unwrap().unwrap();
    assert!(mount.is_confined);
    mount
}

pub fn is_read_only(dir: &Path) -> bool {
    mount_at(dir).read_only
}

fn shared(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("both");
    let pods = [UID, "two"].map(|uid| node.pod_of(&volume, uid));
    pods[0].mount("rw").success();
    fs::write(pods[0].dir().join("text"), "none").unwrap();
    pods[0].unmount().success();
    let before = node.inventory().without_space();
    for (first, second) in [("ro", "rw"), ("rw", "ro"), ("ro", "ro"), ("rw", "rw")] {
        let modes = [first, second];
        for (pod, mode) in pods.iter().zip(modes) {
            pod.mount(mode).success();
        }
        for (pod, mode) in pods.iter().zip(modes) {
            let mount = mount_at(pod.dir());
            assert_eq!(mount.read_only, mode == "ro");
            if backend.is_directory() {
                assert_eq!(mount.volume().unwrap().to_string(), volume.id());
            }
            let written = fs::write(pod.dir().join("text"), modes.concat());
            assert_eq!(written.is_ok(), mode == "rw", "{modes:?}: {written:?}");
        }
        if modes.contains(&"rw") {
            for pod in &pods {
                let text = fs::read_to_string(pod.dir().join("text"));
                assert_eq!(text.unwrap(), modes.concat());
            }
        }
        // The access mode may change, and repeating a callout changes nothing.
        if first != second {
            for mode in ["rw", "ro", "ro"] {
                pods[1].mount(mode).success();
                assert_eq!(is_read_only(pods[1].dir()), mode == "ro");
            }
            assert_eq!(is_read_only(pods[0].dir()), first == "ro");
        }
        assert_eq!(below(&node.sandbox.kubelet_root()).len(), 2);
        let same = node.grow(&pods[1], node.size()).success();
        assert_eq!(measured(&same), node.growth(node.size()));
        pods[0].unmount().success();
        pods[0].unmount().success();
        assert!(
            pods[1].dir().join("text").exists(),
            "the second pod still has it"
        );
        if !backend.is_directory() && !backend.is_lvm() {
            assert_eq!(node.sandbox.loops().len(), 1, "and its device");
        }
        pods[1].unmount().success();
        pods[1].unmount().success();
        node.expect(&before, "both pods are gone");
        points.add(2);
    }
    pods[0].mount("ro").success();
    pods[1].mount("rw").success();
    let shown = size_of_filesystem(pods[0].dir());
    let grown = node.grow(&pods[1], node.grown());
    // Not an ext4 that another pod uses, which the kernel grows only with CAP_SYS_RESOURCE.
    if volume.filesystem != "ext4" || has_sys_resource() {
        assert_eq!(measured(&grown.success()), node.growth(node.grown()));
        node.expect_room(pods[0].dir(), shown);
    }
    for pod in &pods {
        pod.unmount().success();
    }
}

fn deleted(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let before = node.inventory();
    let volume = node.volume("data");
    let pods = [UID, "two"].map(|uid| node.pod_of(&volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    let content = fill(pods[0].dir(), "file");
    for pod in &pods {
        let refused = node.delete(&volume).failure();
        assert!(refused.contains("still mounted"), "{refused}");
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
        pod.unmount().success();
        points.add(1);
    }
    if backend.is_lvm() {
        // Open, but not exclusively: only LVM detects this.
        let device = File::open(node.blocks(&volume)).unwrap();
        let refused = node.delete(&volume).failure();
        assert!(refused.contains("has it open"), "{refused}");
        drop(device);
        points.add(1);
    }
    // It is still a volume.
    pods[0].mount("rw").success();
    assert_eq!(fs::read(pods[0].dir().join("file")).unwrap(), content);
    pods[0].unmount().success();
    node.delete(&volume).success();
    node.delete(&volume).success();
    let gone = pods[0].mount("rw").failure();
    assert!(gone.contains("no such volume"), "{gone}");
    node.expect(&before, "deleted");
    assert_ne!(
        node.volume("data").handle(),
        volume.handle(),
        "a handle is never used again"
    );
    points.add(3);
}

fn names(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    // In the virtual machine `lvm` takes twenty times as long.
    let names: &[&str] = match backend.is_lvm() {
        true => &["a", "a", "b", "a"],
        false => &["a", "b", "c", "a", "b", "c", "d", "d"],
    };
    let count = names.iter().collect::<BTreeSet<_>>().len();
    let made = |name: &str| PersistentVolume::from_reply(name, "", &node.provision(name).success());
    let volumes: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(|| made(name)))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let mut handles = BTreeMap::new();
    for volume in &volumes {
        let handle = handles.entry(&volume.name).or_insert(volume.handle());
        assert_eq!(*handle, volume.handle());
        points.add(1);
    }
    node.expect_sizes(node.size(), count);
    node.expect_own_projects(&volumes);
    // A reboot clears promised names, but not the names of volumes.
    if backend.is_lvm() {
        lvm::forget_promises();
    }
    let again = made("a");
    assert_eq!(again.handle(), handles[&again.name]);
    node.expect_sizes(node.size(), count);
    if backend != Backend::HelloDirectory {
        // Another size does not make another volume, and a request for too much leaves nothing.
        let larger = node
            .driver
            .call(&["provision", &request("a", node.grown())])
            .failure();
        let sizes = [node.size(), node.grown()].map(|size| format!("{}Mi", size / MIB));
        let words = ["exists with", &sizes[0], &sizes[1]];
        assert!(words.iter().all(|word| larger.contains(word)), "{larger}");
        let none = node.driver.call(&["provision", &request("more", 64 << 30)]);
        expect_exhausted(&none);
        assert!(
            none.failure().contains("the volume needs 64Gi more"),
            "{none}"
        );
        if backend.is_lvm() {
            assert!(!lvm::inventory().iter().any(|line| line.contains("more")));
        }
        node.expect_sizes(node.size(), count);
        points.add(2);
    }
    node.delete(&again).success();
    assert_ne!(
        made("a").handle(),
        again.handle(),
        "a handle is never used again"
    );
    points.add(2);
}
