//! Limits and records that were damaged by people, copies or kernels.

use super::{GROWN, SIZE, on_each, run, write};
use crate::{
    by_hand::stdout_of,
    node::{Backend, MIB, Node, capacity, ext4_meets_error, size_of_filesystem},
};
use flexvol_testing::{PersistentVolume, Points, Test, request, tests};
use rustix::fs::XattrFlags;
use std::{fs, path::Path, process::Command};

pub const TESTS: &[Test] = on_each![
    "a record that is damaged or newer stops its own volume and no other" => record,
    "a volume whose record is damaged is deleted after a person wrote what doctor says" => rewritten,
    "a growth that was cut behind its record is completed by the next mount" => cut,
    "a pod is not promised what a file system that became read-only cannot keep" => read_only,
];

tests! {
    XFS:
    "dir on xfs: blocks that files share are not promised twice", super::XFS => clones;
}

tests! {
    BTRFS:
    "dir on btrfs: a volume that was copied is refused, and nothing around it is limited", super::BTRFS
        => copied;
    "dir on btrfs: a kernel without openat2 has volumes too", super::BTRFS => without_openat2;
    "dir on btrfs: while the kernel has lost count, nothing is promised", super::BTRFS
        => lost_count;
}

pub(super) const RECORD: &str = "trusted.flexvol.limit";

/// Writes the record to the directory around a volume's root.
fn set_record(volume_directory: &Path, text: &str) {
    rustix::fs::setxattr(
        volume_directory,
        RECORD,
        text.as_bytes(),
        XattrFlags::empty(),
    )
    .unwrap();
}

pub(super) fn read_record(volume_directory: &Path) -> String {
    let mut text = [0; 64];
    let length = rustix::fs::getxattr(volume_directory, RECORD, &mut text).unwrap();
    str::from_utf8(&text[..length]).unwrap().to_owned()
}

/// The size in a volume's record.
pub fn recorded(volume_directory: &Path) -> u64 {
    let text = read_record(volume_directory);
    text.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn record(node: &Node, points: &Points) {
    let [a, b] = ["a", "b"].map(|name| node.volume(name));
    let pod = node.pod(&a);
    let before = capacity(&node.driver);
    for (text, why) in [("1 x", "is damaged"), ("7 1 2 3", "by a newer flexvol")] {
        set_record(&node.volume_directory(&a), text);
        let refused = pod.mount("rw");
        assert!(refused.failure().contains(why), "{refused}");
        // The volume counts as before, and keeps its project.
        assert!(before.abs_diff(capacity(&node.driver)) <= 2 * MIB);
        let c = node.volume("c");
        if node.has_projects() {
            assert_eq!(size_of_filesystem(&node.directory(&c)), SIZE);
        }
        node.delete(&c).success();
        let other = node.mounted(&b, "two");
        other.unmount().success();
        points.add(1);
    }
}

/// Doctor reconstructs a damaged record from the kernel's state.
fn rewritten(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let directory = node.volume_directory(&volume);
    let text = read_record(&directory);
    set_record(&directory, "damaged");
    let refused = node.delete(&volume);
    assert!(refused.failure().contains("is damaged"), "{refused}");
    let doctor = || {
        let plugins = node.sandbox.plugins();
        let mut doctor = Command::new(crate::executable());
        doctor.args(["doctor", "--plugin-dir"]).arg(plugins);
        String::from_utf8(doctor.output().unwrap().stdout).unwrap()
    };
    let told = doctor();
    let advice = format!("setfattr -n {RECORD} -v '{text}' {}", directory.display());
    assert!(told.contains(&advice), "{advice} in {told}");
    set_record(&directory, &text);
    assert!(!doctor().contains("setfattr"));
    points.add(2);
    if node.has_projects() {
        // Doctor proposes no project that belongs to another volume.
        let other = node.volume("other");
        let taken = read_record(&node.volume_directory(&other));
        let project = taken.split(' ').nth(1).unwrap();
        run("chattr", &["-p", project], &node.directory(&volume));
        set_record(&directory, "damaged");
        let told = doctor();
        assert!(
            told.contains("another volume's") && !told.contains(&taken),
            "{told}"
        );
        // Nor to either of two volumes whose records are both damaged.
        let other_directory = node.volume_directory(&other);
        set_record(&other_directory, "damaged");
        let told = doctor();
        let offer = format!("-v '1 {project} ");
        assert!(
            told.contains("cannot be read: 2") && !told.contains(&offer),
            "{told}"
        );
        set_record(&other_directory, &taken);
        set_record(&directory, &text);
        node.delete(&other).success();
        points.add(1);
    }
    node.delete(&volume).success();
}

fn cut(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let directory = node.directory(&volume);
    let volume_directory = node.volume_directory(&volume);
    let text = read_record(&volume_directory);
    let (project, _) = text.rsplit_once(' ').unwrap();
    set_record(&volume_directory, &format!("{project} {GROWN}"));
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    node.expect_limit(&volume, GROWN);
    points.add(1);
    if !node.has_projects() {
        pod.unmount().success();
        let lower = (8 * MIB).to_string();
        run("btrfs", &["qgroup", "limit", &lower], &directory);
        pod.mount("rw").success();
        node.expect_limit(&volume, GROWN);
        run("btrfs", &["qgroup", "limit", &lower], &directory);
        let told = stdout_of(&node.driver, &["gc"]);
        assert!(told.contains("the lack of a limit of volume"), "{told}");
        node.expect_limit(&volume, GROWN);
        points.add(2);
    }
    pod.unmount().success();
}

/// A file system that became read-only after an error. The mounts of the pool and of pods do not show that.
fn read_only(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let mounted = node.mounted(&volume, "one");
    let disk = node.sandbox.disk();
    let remount = |how: &str| run("mount", &["-o", how], &disk);
    remount("remount,ro");
    remount("remount,rw,bind");
    for pod in [&mounted, &node.pod_of(&volume, "two")] {
        let refused = pod.mount("rw").failure();
        assert!(refused.contains("takes no writes"), "{refused}");
        points.add(1);
    }
    // Remounting an ext4 read-only switches its quotas off, unlike an error.
    if node.kind() != "ext4" {
        let reader = node.pod_of(&volume, "three");
        reader.mount("ro").success();
        reader.unmount().success();
    }
    remount("remount,rw");
    mounted.mount("rw").success();
    if node.kind() == "ext4" {
        // Since 6.12 a file system with an error is not shown as read-only.
        remount("remount,errors=remount-ro");
        ext4_meets_error(&disk);
        let refused = mounted.mount("rw").failure();
        assert!(refused.contains("takes no writes"), "{refused}");
        points.add(1);
    }
    mounted.unmount().success();
    points.add(1);
}

fn clones(points: &Points) {
    let node = Node::new(Backend::Dir("xfs"));
    let init = node.driver.call(&["init"]).success().object().unwrap();
    assert_eq!(init["capabilities"]["selinuxRelabel"], true);
    let all = capacity(&node.driver);
    let half = all / 2 / MIB * MIB;
    let volume = PersistentVolume::provision(&node.driver, "a", "", half);
    let pod = node.mounted(&volume, "one");
    assert_eq!(write(pod.dir(), "file", 16 * MIB), "");
    for copy in 0..half / MIB / 16 - 2 {
        let mut clone = Command::new("cp");
        clone.args(["--reflink=always", "file", &format!("copy-{copy}")]);
        assert!(clone.current_dir(pod.dir()).status().unwrap().success());
    }
    let left = capacity(&node.driver);
    // The file system's own blocks appear in only one of the two counts.
    let own = 32 * MIB;
    assert!(left <= all - half + own, "{left} of {all} beside {half}");
    pod.unmount().success();
    points.add(1);
}

fn copied(points: &Points) {
    let node = Node::new(Backend::Dir("btrfs"));
    let volume = node.volume("pv");
    let (directory, volume_directory) = (node.directory(&volume), node.volume_directory(&volume));
    let copy = node.volumes().join("copy");
    let mut cp = Command::new("cp");
    cp.arg("-a").arg(&volume_directory).arg(&copy);
    assert!(cp.status().unwrap().success());
    run("btrfs", &["subvolume", "delete"], &directory);
    fs::remove_dir(&volume_directory).unwrap();
    fs::rename(&copy, &volume_directory).unwrap();
    let refused = node.pod(&volume).mount("rw").failure();
    assert!(refused.contains("the volume was copied here"), "{refused}");
    let groups = run(
        "btrfs",
        &["qgroup", "show", "-r", "--raw"],
        &node.sandbox.disk(),
    );
    let outer_group = groups.lines().find(|line| line.starts_with("0/5 "));
    assert!(outer_group.unwrap().contains("none"), "{groups}");
    points.add(1);
    // Other volumes can be made, and this one can be deleted.
    node.volume("other");
    node.delete(&volume).success();
    points.add(1);
}

fn without_openat2(points: &Points) {
    let node = Node::new(Backend::Dir("btrfs"));
    let call = |arguments: &[&str]| {
        let output = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=openat2"])
            .args(["-e", "inject=openat2:error=ENOSYS"])
            .arg(node.driver.executable())
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("\"Success\""), "{arguments:?}: {said}");
        points.add(1);
    };
    call(&["provision", &request("pv", SIZE)]);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    let [callout, dir, json] = pod.mount_arguments("rw").try_into().unwrap();
    call(&[&callout, &dir, &json]);
    node.expect_limit(&volume, SIZE);
    pod.unmount().success();
    call(&["delete", &volume.json("rw")]);
    assert_eq!(fs::read_dir(node.volumes()).unwrap().count(), 0);
}

fn lost_count(points: &Points) {
    let node = Node::new(Backend::Dir("btrfs"));
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    assert_eq!(write(pod.dir(), "file", MIB), "");
    // An extent shared by two subvolumes cannot be moved to another quota group without a rescan.
    let shown = node.directory(&volume).display().to_string();
    let disk = node.sandbox.disk();
    run(
        "btrfs",
        &["subvolume", "snapshot", &shown],
        &disk.join("snapshot"),
    );
    run("btrfs", &["filesystem", "sync"], &disk);
    run("btrfs", &["qgroup", "create", "1/1"], &disk);
    let id = run(
        "btrfs",
        &["inspect-internal", "rootid"],
        &node.directory(&volume),
    );
    let group = format!("0/{}", id.trim());
    run(
        "btrfs",
        &["qgroup", "assign", "--no-rescan", &group, "1/1"],
        &disk,
    );
    run("btrfs", &["filesystem", "sync"], &disk);
    for refused in [
        node.driver.call(&["provision", &request("more", SIZE)]),
        node.driver.call(&["capacity", "{}"]),
        node.grow(&pod, GROWN),
    ] {
        assert!(
            refused.failure().contains("btrfs quota rescan"),
            "{refused}"
        );
        points.add(1);
    }
    // An existing volume can still be used.
    pod.unmount().success();
    pod.mount("rw").success();
    run("btrfs", &["quota", "rescan", "-w"], &disk);
    node.grow(&pod, GROWN).success();
    pod.unmount().success();
    points.add(1);
}
