//! Callouts while a file system is frozen (`fsfreeze -f`, as for backups).

use crate::{
    host_lock::any_volume,
    node::{Backend, MIB, Node, fill, measured, size_of_filesystem},
    sandbox,
};
use flexvol_host::{
    exec::{AtDeadline, Limits, Tool},
    lock,
};
use flexvol_sdk::{ErrorKind, leftover::LeftoverNote};
use flexvol_testing::{
    Baseline, Call, Driver, Need, Outcome, PersistentVolume, Pod, Points, Sandbox, eventually,
    patience, request, tests,
};
use std::{
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("fsfreeze", "util-linux"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

tests! {
    "a killed program that waits for a frozen file system does not hold unmount", NEEDS => program;
    "a program that waits for a frozen file system is not started again beside itself", NEEDS => noted;
    "a callout whose program hangs in the kernel answers, and the program ends its work after the thaw", NEEDS
        => hanging;
    "a growth of a frozen file system answers, is not begun twice and does not hold unmount", NEEDS
        => volume;
    "every callout on a frozen pool answers, and nothing is lost after the thaw", NEEDS => pool;
}

/// A file system that is frozen until this is dropped.
pub struct Frozen(PathBuf);

impl Frozen {
    pub fn new(mount: &Path) -> Self {
        let path = mount.to_owned();
        let mounted = flexvol_testing::below(mount);
        assert!(
            mounted.iter().any(|it| it.point == path),
            "whatever else it is on would be frozen"
        );
        run("-f", &path);
        Frozen(path)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run("-u", &self.0);
    }
}

fn run(what: &str, mount: &Path) {
    let done = Command::new("fsfreeze").arg(what).arg(mount).output();
    let done = done.expect("start fsfreeze");
    assert!(done.status.success(), "fsfreeze {what}: {done:?}");
}

/// Counts the processes of a driver.
pub fn processes(driver: &Driver) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| {
        fs::read_link(entry.path().join("exe")).is_ok_and(|runs| runs == driver.executable())
    })
    .count()
}

/// Checks that the call answered within the deadline of a watched callout, extended for a busy machine.
fn expect_answer(call: &Call) {
    let limit = Duration::from_secs(50) * patience();
    assert!(call.took < limit, "{call}");
}

fn expect_at_once(call: &Call) {
    assert!(
        call.took < Duration::from_secs(15) * patience(),
        "{call}, {:?}",
        call.took
    );
}

fn expect_frozen(call: &Call) {
    let said = call.failure();
    assert!(
        said.contains("frozen") && said.contains("fsfreeze -u"),
        "{said}"
    );
    assert_eq!(call.text("errorClass"), "uncertain", "{call}");
}

fn program(_: &Points) {
    let sandbox = sandbox();
    let volume = any_volume();
    let patient = Duration::from_secs(10) * patience();
    let guard = lock::volume(&volume, patient).unwrap();
    let frozen = Frozen::new(&sandbox.disk());
    let limits = Limits {
        deadline: Duration::from_millis(200),
        at_deadline: AtDeadline::Kill,
        inherit: &[guard.as_fd()],
    };
    let file = sandbox.disk().join("file");
    let run = Tool::find("touch").unwrap().run(&[file.as_ref()], &limits);
    assert_eq!(run.unwrap_err().kind(), ErrorKind::TimedOut);
    drop(guard);
    let kind = |taken: flexvol_sdk::Result<lock::Guard>| taken.unwrap_err().kind();
    assert_eq!(kind(lock::volume(&volume, patient)), ErrorKind::TimedOut);
    let unmounts = lock::to_unmount(&volume, patient).unwrap();
    drop(unmounts);
    assert_eq!(kind(lock::volume(&volume, patient)), ErrorKind::TimedOut);
    drop(frozen);
    eventually(patient, "the program to end", || {
        lock::volume(&volume, patient).is_ok()
    });
    lock::volume(&volume, patient).unwrap().retire().unwrap();
}

fn noted(points: &Points) {
    let sandbox = sandbox();
    let file = sandbox.disk().join("file");
    let left = LeftoverNote::of(("touch", sandbox.root()));
    let touch = Tool::find("touch").unwrap().noted(left);
    let limits = Limits {
        deadline: Duration::from_millis(200),
        at_deadline: AtDeadline::Kill,
        inherit: &[],
    };
    let run = || touch.run(&[file.as_ref()], &limits);
    let frozen = Frozen::new(&sandbox.disk());
    for count in 0..3 {
        let error = run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
        let error = error.report();
        assert_eq!(count > 0, error.contains("an earlier touch"), "{error}");
        points.add(1);
    }
    drop(frozen);
    eventually(Duration::from_secs(10), "the program to run", || {
        run().is_ok_and(|it| it.status.success())
    });
}

/// A mkfs that creates the first file when it starts, and continues when the second file exists.
const WAITING: &str = "mkdir -p /var/lib/flexvol && mount -t tmpfs none /var/lib/flexvol &&
    mkdir /var/lib/flexvol/bin && program=/var/lib/flexvol/bin/mkfs.ext4 &&
    printf '#!/bin/sh\\ntouch %s/begun\\nuntil [ -e %s/go ]; do sleep 0.1; done\\nexec /usr/sbin/mkfs.ext4 \"$@\"\\n' \"$at\" \"$at\" >$program &&
    chmod 755 $program";

fn hanging(points: &Points) {
    let Node {
        sandbox, driver, ..
    } = Node::new(Backend::Loop);
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "hanging", "ext4", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    let [begun, go] = ["begun", "go"].map(|name| sandbox.path(name));
    let waiting = format!("at={} && {WAITING}", sandbox.root().display());
    let call = thread::scope(|scope| {
        let call = scope.spawn(|| driver.call_where(&waiting, &pod.mount_arguments("rw")));
        eventually(
            Duration::from_secs(20) * patience(),
            "mkfs to begin",
            || begun.exists(),
        );
        let frozen = Frozen::new(&sandbox.disk());
        fs::write(&go, "").unwrap();
        let limit = Instant::now() + Duration::from_secs(60) * patience();
        while !call.is_finished() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(100));
        }
        drop(frozen);
        call.join().unwrap()
    });
    expect_frozen(&call);
    expect_answer(&call);
    points.add(1);
    // The process was not interrupted.
    pod.mount("rw").success();
    let content = fill(pod.dir(), "after");
    assert_eq!(fs::read(pod.dir().join("after")).unwrap(), content);
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    for path in [begun, go] {
        fs::remove_file(path).unwrap();
    }
    baseline.expect(&sandbox, "formatted after the thaw, mounted and deleted");
    points.add(1);
}

fn volume(_: &Points) {
    thread::scope(|scope| {
        for filesystem in ["xfs", "ext4", "btrfs"] {
            scope.spawn(move || growth(filesystem));
        }
    });
}

fn growth(filesystem: &'static str) {
    let Node {
        sandbox, driver, ..
    } = Node::new(Backend::Loop);
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "frozen", filesystem, 300 * MIB);
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    pods.iter().for_each(|pod| drop(pod.mount("rw").success()));
    let content = fill(pods[0].dir(), "before");
    let size = size_of_filesystem(pods[0].dir());
    let expand = pods[1].expand_arguments(400 * MIB, 300 * MIB);

    let frozen = Frozen::new(pods[1].dir());
    let first = driver.call(&expand);
    expect_answer(&first);
    // Without CAP_SYS_RESOURCE the kernel refuses to grow an ext4 before it would wait for the thaw.
    let waits = filesystem != "ext4" || flexvol_testing::has_sys_resource();
    let left = usize::from(waits);
    if waits {
        expect_frozen(&first);
    }
    assert_eq!(processes(&driver), left);
    let again = driver.call(&expand);
    assert_ne!(again.outcome(), Outcome::Success);
    expect_at_once(&again);
    assert_eq!(processes(&driver), left, "a second one was begun");
    let unmounted = pods[0].unmount().success();
    expect_at_once(&unmounted);
    let beside = driver.call(&expand);
    assert_ne!(beside.outcome(), Outcome::Success);
    expect_at_once(&beside);
    assert_eq!(processes(&driver), left, "a second one was begun");
    drop(frozen);

    eventually(
        Duration::from_secs(10),
        "what was left behind to end",
        || processes(&driver) == 0,
    );
    pods[1].unmount().success();
    pods[0].mount("rw").success();
    let grown = driver
        .call(&pods[0].expand_arguments(400 * MIB, 300 * MIB))
        .success();
    assert_eq!(measured(&grown), 400 * MIB);
    assert!(size_of_filesystem(pods[0].dir()) > size + 90 * MIB);
    assert_eq!(fs::read(pods[0].dir().join("before")).unwrap(), content);
    pods[0].unmount().success();
    // On an old kernel mounting another volume makes a mount namespace, which for a moment has a copy of this mount.
    let delete = ["delete", &volume.json("rw")];
    eventually(Duration::from_secs(10), "the volume to be deleted", || {
        driver.call(&delete).outcome() == Outcome::Success
    });
    baseline.expect(&sandbox, "grown after the thaw and deleted");
}

fn pool(_: &Points) {
    let Node {
        sandbox, driver, ..
    } = Node::new(Backend::Loop);
    let baseline = Baseline::of(&sandbox);
    let [idle, mounted, doomed] = ["idle", "mounted", "doomed"]
        .map(|name| PersistentVolume::provision(&driver, name, "xfs", 300 * MIB));
    let pods = [&idle, &mounted].map(|volume| Pod::new(&sandbox, &driver, volume, "one"));
    pods.iter().for_each(|pod| drop(pod.mount("rw").success()));
    let old = fill(pods[0].dir(), "before");
    pods[0].unmount().success();
    // Dirty data that is not yet written when the pool freezes.
    let new = vec![7; 4 << 20];
    fs::write(pods[1].dir().join("new"), &new).unwrap();

    let frozen = Frozen::new(&sandbox.disk());
    let provision = ["provision".to_owned(), request("late", 300 * MIB)];
    let delete = ["delete".to_owned(), doomed.json("rw")];
    let unmount = ["unmount", pods[1].dir().to_str().unwrap()].map(str::to_owned);
    let calls = [
        provision.to_vec(),
        pods[0].mount_arguments("rw"),
        unmount.to_vec(),
        delete.to_vec(),
    ];
    // Twice: a call that finds another one still waiting answers at once instead of waiting too.
    let mut left = None;
    for round in 0..2 {
        thread::scope(|scope| {
            for call in &calls {
                scope.spawn(|| {
                    let call = driver.call(call);
                    call.failure();
                    expect_answer(&call);
                    if round > 0 {
                        expect_frozen(&call);
                        expect_at_once(&call);
                    }
                });
            }
        });
        // Processes that wait where the kernel lets them be killed are gone.
        let now = processes(&driver);
        assert!(now <= calls.len(), "{now} for {} calls", calls.len());
        assert_eq!(*left.get_or_insert(now), now, "a second one was begun");
    }
    drop(frozen);

    eventually(
        Duration::from_secs(20),
        "what was left behind to end",
        || processes(&driver) == 0,
    );
    expect_whole(&sandbox, &driver, &calls);
    assert_eq!(fs::read(pods[0].dir().join("before")).unwrap(), old);
    pods[1].mount("rw").success();
    assert_eq!(fs::read(pods[1].dir().join("new")).unwrap(), new);
    pods.iter().for_each(|pod| drop(pod.unmount().success()));
    for volume in [&idle, &mounted] {
        driver.call(&["delete", &volume.json("rw")]).success();
    }
    baseline.expect(&sandbox, "frozen, thawed and deleted");
}

/// Checks that each call now reaches its goal. An ending process has no executable any more but still exists for a
/// moment, during which a repeated call reports it.
fn expect_whole(sandbox: &Sandbox, driver: &Driver, calls: &[Vec<String>; 4]) {
    let reach = |call: &Vec<String>| {
        let mut last = driver.call(call);
        eventually(Duration::from_secs(20), "nobody to be left behind", || {
            let waits = last.text("errorClass") == "uncertain";
            if waits {
                last = driver.call(call);
            }
            !waits
        });
        last.success()
    };
    let [provisioned, _, _, _] = calls.each_ref().map(reach);
    let late = PersistentVolume::from_reply("late", "xfs", &provisioned);
    assert_eq!(late.image(sandbox).metadata().unwrap().len(), 300 * MIB);
    driver.call(&["delete", &late.json("rw")]).success();
}
