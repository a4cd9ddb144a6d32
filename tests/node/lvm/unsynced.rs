//! LVM commits without a flush. If a call is killed before it has flushed, the next one must flush, although it
//! finds everything done.

use super::{NEEDS, SIZE, group, output, run};
use crate::node::{Backend, Node};
use flexvol_testing::{Call, Outcome, PersistentVolume, Points, disks, request, tests};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

tests! {
    "lvm: what a killed call changed is on the disks before its repetition answers", NEEDS
        => unsynced;
    "lvm: a disk that answers no flush is named, and not waited for without end", NEEDS => silent;
}

/// More flushes than a call makes.
const FLUSHES: usize = 32;

/// A path that each flushing process reads first. Every flush is a process of its own.
const BEFORE: &str = "/proc/self/fd";

/// A disk on which flushes take long. It maps sectors of another one, without the first ones, because LVM would find
/// the same label on both.
struct Slow(u64);

impl Slow {
    const PATH: &str = "/dev/mapper/slow";
    const FROM: u64 = 2048;

    fn over(disk: &Path) -> Slow {
        let sectors = run("blockdev", &["--getsz", disk.to_str().unwrap()]);
        let sectors: u64 = sectors.trim().parse().unwrap();
        let slow = Slow(sectors - Slow::FROM);
        run("dmsetup", &["create", "slow", "--table", &slow.table(0)]);
        slow
    }

    /// The table with which reads and writes are immediate, and flushes take so many seconds.
    fn table(&self, seconds: u64) -> String {
        let (from, delay) = (Slow::FROM, seconds * 1000);
        let disk = format!("{} {from}", disks()[2].display());
        format!("0 {} delay {disk} 0 {disk} 0 {disk} {delay}", self.0)
    }

    fn answers_after(&self, seconds: u64) {
        run(
            "dmsetup",
            &["reload", "slow", "--table", &self.table(seconds)],
        );
        run("dmsetup", &["resume", "slow"]);
    }
}

fn silent(points: &Points) {
    let slow = Slow::over(&disks()[2]);
    group(super::GROUP, &[disks()[0].clone(), Slow::PATH.into()]);
    let node = Node::on(Backend::Lvm, crate::sandbox(), false, "");
    let volume = node.volume_of("pv", "ext4");
    slow.answers_after(600);
    let started = Instant::now();
    let refused = node.delete(&volume).failure();
    assert!(
        refused.contains("the disk slow of") && refused.contains("did not answer"),
        "{refused}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(90),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(notes(), 1, "somebody must flush it");
    points.add(1);

    slow.answers_after(0);
    node.delete(&volume).success();
    assert_eq!(notes(), 0);
    points.add(1);
    super::lvm(&["vgremove", "-qq", "-y", super::GROUP]);
    assert!(output("dmsetup", &["remove", "slow"]).status.success());
}

fn unsynced(points: &Points) {
    let node = Node::linear();
    let provision = vec!["provision".to_owned(), request("pv", SIZE)];
    let made = |call: &Call| PersistentVolume::from_reply("pv", "ext4", call);
    let left = killed_before_each_flush(
        &node,
        points,
        || provision.clone(),
        |call| drop(node.delete(&made(call)).success()),
    );
    assert!(left > 0, "no provision left something to flush");

    let delete = || {
        let volume = made(&node.driver.call(&provision).success());
        vec!["delete".to_owned(), volume.json("rw")]
    };
    let left = killed_before_each_flush(&node, points, delete, |_| {});
    assert!(
        left > 1,
        "no delete left something to flush after it removed"
    );
}

/// Kills a call before its first flush, its second, and so on until it succeeds, and repeats it each time. Returns
/// how often the repeated call had to flush.
fn killed_before_each_flush(
    node: &Node,
    points: &Points,
    prepare: impl Fn() -> Vec<String>,
    undo: impl Fn(&Call),
) -> usize {
    let mut left = 0;
    for nth in 1..=FLUSHES {
        let arguments = prepare();
        let inject = format!("inject=?open,openat:signal=KILL:when={nth}");
        // Only in forked processes of the driver: `-b execve` detaches from programs.
        let options = [
            "-f",
            "-b",
            "execve",
            "-P",
            BEFORE,
            "-e",
            "trace=?open,openat",
            "-e",
            &inject,
        ];
        let (call, _) = traced(node, &options, &arguments);
        if call.outcome() == Outcome::Success {
            undo(&call);
            return left;
        }
        let noted = notes();
        let options = ["-f", "--seccomp-bpf", "-y", "-e", "trace=fsync"];
        let (again, flushed) = traced(node, &options, &arguments);
        let again = again.success();
        assert_eq!(notes(), 0, "killed at flush {nth}: left noted");
        if noted > 0 {
            assert!(flushed > 0, "killed at flush {nth}: not flushed");
            left += 1;
        }
        points.add(1);
        undo(&again);
    }
    panic!("more than {FLUSHES} flushes");
}

/// Makes a call, and counts the disks that it flushed.
fn traced(node: &Node, options: &[&str], arguments: &[String]) -> (Call, usize) {
    let log = node.sandbox.path("flushes");
    let to_log = [
        "/usr/bin/strace",
        "--quiet=all",
        "-o",
        log.to_str().unwrap(),
    ];
    let strace = [&to_log[..], options].concat();
    let call = node.driver.call_through(&strace, arguments);
    let flushed = fs::read_to_string(&log).unwrap();
    (
        call,
        flushed
            .lines()
            .filter(|line| line.contains("fsync(") && line.contains("</dev/vd"))
            .count(),
    )
}

fn notes() -> usize {
    fs::read_dir("/run/flexvol/unsynced").map_or(0, Iterator::count)
}
