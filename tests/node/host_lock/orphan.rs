//! A process that a killed driver left keeps the volume's lock. Foreign locks do not.

use super::{LONG, SHORT, any_volume, file_of};
use flexvol_host::{
    exec::{AtDeadline, Limits, Tool},
    lock,
};
use flexvol_sdk::ErrorKind;
use flexvol_testing::{Need, Points, leave_mounts, tests};
use nix::{
    mount::{MsFlags, mount},
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

tests! {
    "a killed driver's child still holds the volume's lock", &[Need::Root] => orphan;
    "a killed driver's child that closes what it inherits still holds the volume's lock", &[Need::Root, Need::Tool("bash", "bash")]
        => closing_orphan;
    "a lock is not broken for what others lock", &[Need::Root, Need::Tool("flock", "util-linux")]
        => strangers_inode;
    "a killed driver's child holds the lock also while the driver is not waited for", &[Need::Root, Need::Tool("flock", "util-linux")]
        => zombie;
}

/// Longer than the grace period for a process that ends.
const BEYOND_GRACE: Duration = Duration::from_secs(5);

fn orphan(_: &Points) {
    let volume = any_volume();
    let guard = lock::volume(&volume, SHORT).unwrap();
    let limits = Limits {
        deadline: SHORT,
        at_deadline: AtDeadline::Leave,
        inherit: &[guard.as_fd()],
    };
    let error = Tool::find("sleep")
        .unwrap()
        .run(&["1".as_ref()], &limits)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // Closes the descriptors, as a kill does.
    drop(guard);
    assert_eq!(
        lock::volume(&volume, SHORT).unwrap_err().kind(),
        ErrorKind::Busy
    );
    lock::volume(&volume, LONG).unwrap().retire().unwrap();
}

/// As lvm does: it closes inherited descriptors.
fn closing_orphan(points: &Points) {
    let script = |rest: &str| {
        format!(
            "for fd in /proc/$$/fd/*; do n=${{fd##*/}}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; {rest}"
        )
    };
    let volume = any_volume();
    let guard = lock::volume(&volume, SHORT).unwrap();
    let hold = [guard.as_fd()];
    let run = |rest: &str, deadline, at_deadline| {
        let limits = Limits {
            deadline,
            at_deadline,
            inherit: &hold,
        };
        let script = script(rest);
        Tool::find("bash")
            .unwrap()
            .closing_inherited_fds()
            .run(&["-c".as_ref(), script.as_ref()], &limits)
    };
    for (rest, code) in [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 137)] {
        let output = run(rest, LONG, AtDeadline::Kill).unwrap();
        assert_eq!(output.status.code(), Some(code), "{rest}");
        points.add(1);
    }
    let error = run("exec sleep 60", SHORT, AtDeadline::Kill).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let error = run("exec sleep 1", SHORT, AtDeadline::Leave).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(guard);
    assert_eq!(
        lock::volume(&volume, SHORT).unwrap_err().kind(),
        ErrorKind::Busy
    );
    // Sooner than the orphan that had to be killed would have released the lock.
    lock::volume(&volume, LONG).unwrap().retire().unwrap();
}

/// A process that has ended and is not reaped. A child of it holds the file's lock.
struct Ended {
    process: Child,
    holder: Pid,
}

impl Ended {
    fn on(path: &Path) -> Self {
        let mut process = Command::new("flock")
            .arg("--no-fork")
            .arg(path)
            .args(["sh", "-c", "sleep 60 & echo $!"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let holder = Pid::from_raw(line.trim().parse().unwrap());
        let stat = format!("/proc/{}/stat", process.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            thread::sleep(Duration::from_millis(5));
        }
        Ended { process, holder }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        kill(self.holder, Signal::SIGKILL).unwrap();
        self.process.wait().unwrap();
    }
}

/// A user can create a file with the same inode number on another file system.
fn strangers_inode(_: &Points) {
    let elsewhere = || {
        leave_mounts().unwrap();
        let volume = any_volume();
        lock::volume(&volume, SHORT).unwrap();
        let inode = fs::metadata(file_of(&volume)).unwrap().ino();
        let place = tempfile::tempdir().unwrap();
        let options = Some("size=1m");
        mount(
            Some("none"),
            place.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        )
        .unwrap();
        let names = (0..=inode).map(|number| place.path().join(number.to_string()));
        let file = names
            .map(|name| (fs::write(&name, "").unwrap(), name).1)
            .find(|name| fs::metadata(name).unwrap().ino() == inode)
            .unwrap();
        // Of locks that were taken on one CPU, /proc/locks lists the latest first.
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).unwrap();
        let mut one = CpuSet::new();
        let processor = (0..CpuSet::count()).find(|&number| allowed.is_set(number).unwrap());
        one.set(processor.unwrap()).unwrap();
        sched_setaffinity(this, &one).unwrap();
        let guard = lock::volume(&volume, SHORT).unwrap();
        let ended = Ended::on(&file);
        let error = lock::to_unmount(&volume, BEYOND_GRACE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
        let error = lock::volume(&volume, BEYOND_GRACE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
        drop(ended);
        guard.retire().unwrap();
    };
    thread::scope(|scope| scope.spawn(elsewhere).join()).unwrap();
}

fn zombie(_: &Points) {
    let volume = any_volume();
    drop(lock::volume(&volume, SHORT).unwrap());
    let ended = Ended::on(&file_of(&volume));
    assert_eq!(lock::holder(&volume).unwrap(), Some(lock::Holder::Unknown));
    let error = lock::to_unmount(&volume, BEYOND_GRACE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
    drop(ended);
    lock::volume(&volume, LONG).unwrap().retire().unwrap();
    assert_eq!(lock::holder(&volume).unwrap(), None);
}
