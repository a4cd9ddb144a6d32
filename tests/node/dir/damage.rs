//! Limits and records that people, copies and kernels damaged.

use super::{GROWN, MIB, Place, SIZE, on_each, run, total, write};
use crate::by_hand::said;
use flexvol_testing::{PersistentVolume, Points, Test, request, tests};
use rustix::fs::{XattrFlags, major, minor};
use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

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

/// Written to the directory around a volume's root.
fn set_record(around: &Path, text: &str) {
    rustix::fs::setxattr(around, RECORD, text.as_bytes(), XattrFlags::empty()).unwrap();
}

pub(super) fn read_record(around: &Path) -> String {
    let mut text = [0; 64];
    let length = rustix::fs::getxattr(around, RECORD, &mut text).unwrap();
    str::from_utf8(&text[..length]).unwrap().to_owned()
}

/// The size in a volume's record.
pub(super) fn recorded(around: &Path) -> u64 {
    let text = read_record(around);
    text.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// What can be provisioned, by the driver's own word.
fn capacity(place: &Place) -> u64 {
    let call = place.driver.call(&["capacity", "{}"]).success();
    call.object().unwrap()["capacity"].as_u64().unwrap()
}

fn record(place: &Place, points: &Points) {
    let [a, b] = ["a", "b"].map(|name| place.volume(name));
    let pod = place.pod(&a, "one");
    let before = capacity(place);
    for (text, why) in [("1 x", "is damaged"), ("7 1 2 3", "by a newer flexvol")] {
        set_record(&place.around(&a), text);
        let refused = pod.mount("rw");
        assert!(refused.failure().contains(why), "{refused}");
        // It counts as before, and its project is its own.
        assert!(before.abs_diff(capacity(place)) <= 2 * MIB);
        let c = place.volume("c");
        if place.has_projects() {
            assert_eq!(total(&place.directory(&c)), SIZE);
        }
        place.delete(&c).success();
        let other = place.mounted(&b, "two");
        other.unmount().success();
        points.add(1);
    }
}

/// A person is told what the record was, by what the kernel still knows.
fn rewritten(place: &Place, points: &Points) {
    let volume = place.volume("pv");
    let directory = place.around(&volume);
    let text = read_record(&directory);
    set_record(&directory, "damaged");
    let refused = place.delete(&volume);
    assert!(refused.failure().contains("is damaged"), "{refused}");
    let doctor = || {
        let plugins = place.sandbox.plugins();
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
    if place.has_projects() {
        // A project that is another volume's is no proposal.
        let other = place.volume("other");
        let taken = read_record(&place.around(&other));
        let project = taken.split(' ').nth(1).unwrap();
        run("chattr", &["-p", project], &place.directory(&volume));
        set_record(&directory, "damaged");
        let told = doctor();
        assert!(
            told.contains("another volume's") && !told.contains(&taken),
            "{told}"
        );
        // Nor is it one for either of two whose records are damaged.
        let other_directory = place.around(&other);
        set_record(&other_directory, "damaged");
        let told = doctor();
        let offer = format!("-v '1 {project} ");
        assert!(
            told.contains("cannot be read: 2") && !told.contains(&offer),
            "{told}"
        );
        set_record(&other_directory, &taken);
        set_record(&directory, &text);
        place.delete(&other).success();
        points.add(1);
    }
    place.delete(&volume).success();
}

fn cut(place: &Place, points: &Points) {
    let volume = place.volume("pv");
    let directory = place.directory(&volume);
    let around = place.around(&volume);
    let text = read_record(&around);
    let (project, _) = text.rsplit_once(' ').unwrap();
    set_record(&around, &format!("{project} {GROWN}"));
    let pod = place.pod(&volume, "one");
    pod.mount("rw").success();
    place.expect_limit(&volume, GROWN);
    points.add(1);
    if !place.has_projects() {
        pod.unmount().success();
        let lower = (8 * MIB).to_string();
        run("btrfs", &["qgroup", "limit", &lower], &directory);
        pod.mount("rw").success();
        place.expect_limit(&volume, GROWN);
        run("btrfs", &["qgroup", "limit", &lower], &directory);
        let told = said(&place.driver, &["gc"]);
        assert!(told.contains("the lack of a limit of volume"), "{told}");
        place.expect_limit(&volume, GROWN);
        points.add(2);
    }
    pod.unmount().success();
}

/// As after an error: the mounts of the pool and of pods do not show it.
fn read_only(place: &Place, points: &Points) {
    let volume = place.volume("pv");
    let mounted = place.mounted(&volume, "one");
    let disk = place.sandbox.disk();
    let remount = |how: &str| run("mount", &["-o", how], &disk);
    remount("remount,ro");
    remount("remount,rw,bind");
    for pod in [&mounted, &place.pod(&volume, "two")] {
        let refused = pod.mount("rw").failure();
        assert!(refused.contains("takes no writes"), "{refused}");
        points.add(1);
    }
    // A person who makes an ext4 read-only ends its quotas too, an error does not.
    if place.kind != "ext4" {
        let reader = place.pod(&volume, "three");
        reader.mount("ro").success();
        reader.unmount().success();
    }
    remount("remount,rw");
    mounted.mount("rw").success();
    if place.kind == "ext4" {
        // Kernels since 6.12 do not say read-only of a file system that met an error.
        remount("remount,errors=remount-ro");
        let device = fs::metadata(&disk).unwrap().dev();
        let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        let device = fs::canonicalize(device).unwrap();
        let filesystem = Path::new("/sys/fs/ext4").join(device.file_name().unwrap());
        fs::write(filesystem.join("trigger_fs_error"), "1").unwrap();
        let refused = mounted.mount("rw").failure();
        assert!(refused.contains("takes no writes"), "{refused}");
        points.add(1);
    }
    mounted.unmount().success();
    points.add(1);
}

fn clones(points: &Points) {
    let place = Place::new("xfs");
    let init = place.driver.call(&["init"]).success().object().unwrap();
    assert_eq!(init["capabilities"]["selinuxRelabel"], true);
    let all = capacity(&place);
    let half = all / 2 / MIB * MIB;
    let volume = PersistentVolume::provision(&place.driver, "a", "", half);
    let pod = place.mounted(&volume, "one");
    assert_eq!(write(pod.dir(), "file", 16 * MIB), "");
    for copy in 0..half / MIB / 16 - 2 {
        let mut clone = Command::new("cp");
        clone.args(["--reflink=always", "file", &format!("copy-{copy}")]);
        assert!(clone.current_dir(pod.dir()).status().unwrap().success());
    }
    let left = capacity(&place);
    // What the file system has for itself is in one count only.
    let own = 32 * MIB;
    assert!(left <= all - half + own, "{left} of {all} beside {half}");
    pod.unmount().success();
    points.add(1);
}

fn copied(points: &Points) {
    let place = Place::new("btrfs");
    let volume = place.volume("pv");
    let (directory, around) = (place.directory(&volume), place.around(&volume));
    let copy = place.volumes().join("copy");
    let mut cp = Command::new("cp");
    cp.arg("-a").arg(&around).arg(&copy);
    assert!(cp.status().unwrap().success());
    run("btrfs", &["subvolume", "delete"], &directory);
    fs::remove_dir(&around).unwrap();
    fs::rename(&copy, &around).unwrap();
    let refused = place.pod(&volume, "one").mount("rw").failure();
    assert!(refused.contains("the volume was copied here"), "{refused}");
    let groups = run(
        "btrfs",
        &["qgroup", "show", "-r", "--raw"],
        &place.sandbox.disk(),
    );
    let around = groups.lines().find(|line| line.starts_with("0/5 "));
    assert!(around.unwrap().contains("none"), "{groups}");
    points.add(1);
    // Others are made, and it goes as every volume does.
    place.volume("other");
    place.delete(&volume).success();
    points.add(1);
}

fn without_openat2(points: &Points) {
    let place = Place::new("btrfs");
    let call = |arguments: &[&str]| {
        let output = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=openat2"])
            .args(["-e", "inject=openat2:error=ENOSYS"])
            .arg(place.driver.executable())
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("\"Success\""), "{arguments:?}: {said}");
        points.add(1);
    };
    call(&["provision", &request("pv", SIZE)]);
    let volume = place.volume("pv");
    let pod = place.pod(&volume, "one");
    let [callout, dir, json] = pod.mount_arguments("rw").try_into().unwrap();
    call(&[&callout, &dir, &json]);
    place.expect_limit(&volume, SIZE);
    pod.unmount().success();
    call(&["delete", &volume.json("rw")]);
    assert_eq!(fs::read_dir(place.volumes()).unwrap().count(), 0);
}

fn lost_count(points: &Points) {
    let place = Place::new("btrfs");
    let volume = place.volume("pv");
    let pod = place.mounted(&volume, "one");
    assert_eq!(write(pod.dir(), "file", MIB), "");
    // What two subvolumes share cannot be moved to another group without counting again.
    let shown = place.directory(&volume).display().to_string();
    let disk = place.sandbox.disk();
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
        &place.directory(&volume),
    );
    let group = format!("0/{}", id.trim());
    run(
        "btrfs",
        &["qgroup", "assign", "--no-rescan", &group, "1/1"],
        &disk,
    );
    run("btrfs", &["filesystem", "sync"], &disk);
    for refused in [
        place.driver.call(&["provision", &request("more", SIZE)]),
        place.driver.call(&["capacity", "{}"]),
        place.grow(&pod, GROWN),
    ] {
        assert!(
            refused.failure().contains("btrfs quota rescan"),
            "{refused}"
        );
        points.add(1);
    }
    // Whoever has a volume keeps it.
    pod.unmount().success();
    pod.mount("rw").success();
    run("btrfs", &["quota", "rescan", "-w"], &disk);
    place.grow(&pod, GROWN).success();
    pod.unmount().success();
    points.add(1);
}
