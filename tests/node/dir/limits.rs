//! Limits of volumes, and how they grow.

use super::{GROWN, SIZE, eventually, length, nobody, on_each, open_to_all, run, write};
use crate::{
    by_hand::stdout_of,
    node::{Backend, MIB, Node, size_of_filesystem},
};
use flexvol_testing::{Baseline, Points, Random, Test, budget, tests};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Child, Command},
    time::Instant,
};

pub const TESTS: &[Test] = on_each![
    "a full volume grows at once, while a pod writes to it" => growth,
    "a limit is never lowered, and the claim's size is what is measured" => never_lower,
    "a pod that changes limits or projects of its own is put right by the next mount" => mended,
    "a root that a pod made unchangeable grows and stays so, also where the growth is killed" => flagged,
    "the pod's group gets the root of a full volume's directory, and a full volume is deleted" => full_to_the_end,
];

tests! {
    PROJECTS:
    "dir on xfs: a pod with a user namespace of its own cannot leave its project", super::XFS
        => |points| confined(&Node::new(Backend::Dir("xfs")), points);
    "dir on ext4: a pod with a user namespace of its own cannot leave its project", super::EXT4
        => |points| confined(&Node::new(Backend::Dir("ext4")), points);
    "dir on xfs: files are limited too, and a neighbour still makes some", super::XFS
        => |points| files(&Node::new(Backend::Dir("xfs")), points);
    "dir on ext4: files are limited too, and a neighbour still makes some", super::EXT4
        => |points| files(&Node::new(Backend::Dir("ext4")), points);
}

/// System calls of a growth that change the directory.
const CHANGES: &str = "trace=ioctl,fsetxattr,fremovexattr";

/// Whether a directory has this flag of `lsattr`.
fn has(flag: char, dir: &Path) -> bool {
    let listed = run("lsattr", &["-d"], dir);
    listed.split(' ').next().unwrap().contains(flag)
}

/// A pod with CAP_LINUX_IMMUTABLE sets flags on the volume's root.
fn flagged(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    run("chattr", &["+a"], pod.dir());
    node.grow(&pod, SIZE + MIB).success();
    assert!(has('a', pod.dir()));
    run("chattr", &["-a", "+i"], pod.dir());
    node.grow(&pod, GROWN).success();
    node.expect_limit(&volume, GROWN);
    assert!(has('i', pod.dir()) && !has('a', pod.dir()));
    points.add(2);

    let log = node.sandbox.path("calls.log");
    let traced = |to: u64, more: &[&str]| {
        let strace = ["/usr/bin/strace", "-f", "-qq", "-o", log.to_str().unwrap()];
        let strace = [&strace[..], &["-e", CHANGES], more].concat();
        let arguments = pod.expand_arguments(to, SIZE);
        node.driver.call_through(&strace, &arguments)
    };
    // Takes the root out of its project, which must be repaired despite the flag.
    let leave = || {
        if node.has_projects() {
            for change in [&["-i"][..], &["-p", "0", "-P"], &["+i"]] {
                run("chattr", change, pod.dir());
            }
        }
    };
    let mut to = GROWN + MIB;
    leave();
    traced(to, &[]).success();
    let (mut calls, mut counted) = (Vec::new(), BTreeMap::new());
    for line in fs::read_to_string(&log).unwrap().lines() {
        let (process, call) = line.split_once(' ').unwrap();
        let (name, _) = call.trim_start().split_once('(').unwrap();
        let nth = counted.entry((process.to_owned(), name.to_owned()));
        let nth = nth.or_insert(0);
        *nth += 1;
        calls.push((name.to_owned(), *nth));
    }
    Random::new(budget().seed).shuffle(&mut calls);
    let (all, started) = (calls.len(), Instant::now());
    let (mut reached, mut without) = (0, 0);
    for (name, nth) in calls {
        if without > 0 && !budget().allows(started) {
            break;
        }
        to += MIB;
        leave();
        let inject = format!("inject={name}:signal=KILL:when={nth}");
        traced(to, &["-e", &inject]);
        let when = format!("killed at {name} {nth}");
        if !has('i', pod.dir()) {
            without += 1;
            // The next callout restores the flag, even one for another pod.
            let other = node.pod_of(&volume, "two");
            other.mount("ro").success();
            assert!(has('i', pod.dir()), "{when}");
            other.unmount().success();
        }
        node.grow(&pod, to).success();
        assert!(has('i', pod.dir()), "{when}");
        reached += 1;
    }
    let name = format!("dir on {}: growth of an unchangeable root", node.kind());
    points.report(&name, reached, all, "changes killed");
    match node.kind() {
        "ext4" => assert!(without > 0, "never killed without the flag"),
        "btrfs" => assert_eq!(without, 0, "there is nothing to put right"),
        // Some kernels change the project of an immutable directory.
        _ => {}
    }
    // A completed change clears the note of one that was killed after its last step.
    node.grow(&pod, to + MIB).success();
    run("chattr", &["-i"], pod.dir());
    node.grow(&pod, to + 2 * MIB).success();
    assert!(!has('i', pod.dir()), "given back for ever");
    run("chattr", &["+i"], pod.dir());
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(2);
}

/// Btrfs counts metadata, so slightly less than the limit may fit.
const LEEWAY: u64 = MIB;

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn growth(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    // It starts with a full volume, and continues as soon as there is space.
    let writer = format!(
        "for try in $(seq 10000); do
           [ $(stat -c %s file) -ge {0} ] && exit; head -c 262144 /dev/zero >>file || sleep 0.1
         done 2>/dev/null",
        SIZE + 4 * MIB
    );
    let said = write(pod.dir(), "file", 2 * SIZE);
    assert!(said.contains(node.full()), "{said}");
    let mut writer = Running(nobody(&writer, pod.dir()).spawn().unwrap());
    let grown = node.grow(&pod, GROWN).success();
    assert_eq!(grown.object().unwrap()["volumenewsize"], GROWN);
    eventually("the writer to go on", || {
        writer.0.try_wait().unwrap().is_some()
    });
    points.add(1);
    if node.has_projects() {
        assert_eq!(size_of_filesystem(pod.dir()), GROWN);
    }
    let said = write(pod.dir(), "other", GROWN);
    assert!(said.contains(node.full()), "{said}");
    let both = length(&pod.dir().join("file")) + length(&pod.dir().join("other"));
    assert!((GROWN - LEEWAY..=GROWN).contains(&both), "{both}");
    points.add(1);
    pod.unmount().success();
    // An unmounted volume grows too, even while it is full.
    node.driver
        .call(&[
            "expandvolume",
            &volume.json("rw"),
            pod.dir().to_str().unwrap(),
            &(2 * GROWN).to_string(),
            &SIZE.to_string(),
        ])
        .success();
    pod.mount("rw").success();
    assert_eq!(write(pod.dir(), "third", GROWN - LEEWAY), "");
    pod.unmount().success();
}

fn never_lower(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    for (asked, has) in [
        (GROWN, GROWN),
        (GROWN, GROWN),
        (SIZE, GROWN),
        (GROWN + 1, GROWN + MIB),
    ] {
        let call = node.grow(&pod, asked).success();
        assert_eq!(
            call.object().unwrap()["volumenewsize"],
            has,
            "{asked} was asked for"
        );
        points.add(1);
    }
    // More than the pool has is refused, and leaves the volume unchanged.
    let refused = node.grow(&pod, 4096 * MIB);
    assert!(refused.failure().contains("the pool has"), "{refused}");
    let again = node.grow(&pod, SIZE).success();
    assert_eq!(again.object().unwrap()["volumenewsize"], GROWN + MIB);
    pod.unmount().success();
}

fn mended(node: &Node, points: &Points) {
    let [a, b] = ["a", "b"].map(|name| node.volume(name));
    let pod = node.mounted(&a, "one");
    if node.has_projects() {
        // As a pod with root can: no project, and the project of another volume.
        for project in ["0", &project(node, &b)] {
            run("chattr", &["-p", project, "-P"], pod.dir());
            assert_ne!(project_of(pod.dir()), project_of(&node.directory(&b)));
            pod.unmount().success();
            pod.mount("rw").success();
            assert_eq!(size_of_filesystem(pod.dir()), SIZE);
            points.add(1);
        }
        run("chattr", &["-p", "0", "-P"], pod.dir());
        let told = stdout_of(&node.driver, &["gc"]);
        assert!(told.contains("the lack of a limit of volume"), "{told}");
        assert_eq!(size_of_filesystem(pod.dir()), SIZE);
        assert!(!stdout_of(&node.driver, &["gc"]).contains("limit"));
        run("chattr", &["-p", &project(node, &b)], pod.dir());
        node.grow(&pod, GROWN).success();
        assert_eq!(size_of_filesystem(pod.dir()), GROWN);
        let neighbour = node.mounted(&b, "two");
        assert_eq!(
            size_of_filesystem(neighbour.dir()),
            SIZE,
            "a neighbour's limit was touched"
        );
        neighbour.unmount().success();
    } else {
        let mut set = Command::new("btrfs");
        set.args(["property", "set"]).arg(pod.dir());
        assert!(set.args(["ro", "true"]).status().unwrap().success());
        pod.unmount().success();
        pod.mount("rw").success();
        assert_eq!(write(pod.dir(), "file", MIB), "");
        let disk = node.sandbox.disk();
        run("btrfs", &["quota", "disable"], &disk);
        let refused = node.grow(&pod, GROWN);
        assert!(
            refused.failure().contains("btrfs quota enable"),
            "{refused}"
        );
        run("btrfs", &["quota", "enable"], &disk);
        let mut wait = Command::new("btrfs");
        wait.args(["quota", "rescan", "-w"]).arg(&disk);
        assert!(wait.output().unwrap().status.success());
        points.add(1);
    }
    pod.unmount().success();
    pod.mount("rw").success();
    open_to_all(pod.dir());
    let said = write(pod.dir(), "file", 2 * GROWN);
    assert!(said.contains(node.full()), "{said}");
    pod.unmount().success();
    for volume in [&a, &b] {
        node.delete(volume).success();
    }
}

/// The project that the volume was made with.
fn project(node: &Node, volume: &flexvol_testing::PersistentVolume) -> String {
    project_of(&node.directory(volume)).0
}

/// Parses `lsattr -pd`: project, flags and path. Returns the project, and whether new files inherit it.
fn project_of(dir: &std::path::Path) -> (String, bool) {
    let line = run("lsattr", &["-p", "-d"], dir);
    let mut words = line.split_whitespace();
    let project = words.next().unwrap().to_owned();
    (project, words.next().unwrap().contains('P'))
}

fn full_to_the_end(node: &Node, _: &Points) {
    let before = Baseline::of(&node.sandbox);
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    let said = write(pod.dir(), "file", 2 * SIZE);
    assert!(said.contains(node.full()), "{said}");
    pod.unmount().success();
    let [callout, dir, json] = pod.mount_arguments("rw").try_into().unwrap();
    let json = json.replacen('{', "{\"kubernetes.io/mounterArgs.FsGroup\":\"4711\",", 1);
    node.driver.call(&[callout, dir, json]).success();
    assert_eq!(fs::metadata(pod.dir()).unwrap().gid(), 4711);
    pod.unmount().success();
    node.delete(&volume).success();
    before.expect(&node.sandbox, "deleted while it was full");
}

fn confined(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    assert_eq!(write(pod.dir(), "file", MIB), "");
    let leave = |how: &str| {
        let script = format!("{how} chattr -p 0 file");
        nobody(&script, pod.dir())
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(!leave("unshare --user --map-root-user"));
    assert_eq!(project_of(pod.dir()).0, project(node, &volume));
    points.add(1);
    // Outside a user namespace an owner can change the project: quotas do not stop those who want to evade them.
    assert!(leave(""));
    pod.unmount().success();
}

fn files(node: &Node, points: &Points) {
    let [a, b] = ["a", "b"].map(|name| node.volume(name));
    let [first, second] = [node.mounted(&a, "one"), node.mounted(&b, "two")];
    let make = "for i in $(seq 2000); do : >$i || { echo $i; exit; }; done";
    let output = nobody(make, first.dir()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(node.full()), "{said}");
    let stopped: u64 = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // One inode for each 16 KiB. The volume's root is one of them.
    assert_eq!(stopped, SIZE / (16 << 10));
    points.add(stopped);
    assert_eq!(write(second.dir(), "file", MIB), "");
    for pod in [first, second] {
        pod.unmount().success();
    }
}
