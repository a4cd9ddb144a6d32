//! Processes that a killed driver leaves running.

use crate::{
    callouts::NEEDS,
    node::{Backend, Node},
};
use flexvol_testing::{Points, tests};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

tests! {
    "an mkfs that outlives its driver keeps the device to itself", NEEDS => orphan;
}

/// The driver is killed while mkfs runs and has not yet opened the device by its path.
fn orphan(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.volume("pv");
    let arguments = node.pod(&volume).mount_arguments("rw");
    // Delays the dynamic loader's first access to the disk. The driver is static and has no loader.
    let slow =
        "/usr/bin/strace -f -qq -o /dev/null -e trace=access -e inject=access:delay_enter=1s";
    let slow: Vec<_> = slow.split(' ').collect();
    let parent = |pid: Pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse().ok().map(Pid::from_raw)
    };
    thread::scope(|scope| {
        let call = scope.spawn(|| node.driver.call_through(&slow, &arguments));
        let (driver, mkfs) = eventually(|| {
            let drivers = running(node.driver.executable());
            let all = running(Path::new("/usr/sbin/mkfs.xfs")).into_iter();
            all.map(|mkfs| (parent(mkfs), mkfs))
                .find_map(|(parent, mkfs)| {
                    Some((parent.filter(|pid| drivers.contains(pid))?, mkfs))
                })
        });
        kill(driver, Signal::SIGKILL).unwrap();
        eventually(|| parent(mkfs).filter(|parent| *parent != driver));
        assert_eq!(
            node.sandbox.loops().len(),
            1,
            "mkfs runs, and its loop is free"
        );
        assert!(
            running(Path::new("/usr/sbin/mkfs.xfs")).contains(&mkfs),
            "mkfs was too fast"
        );
        call.join().unwrap();
    });
    node.pod(&volume).mount("rw").success();
    node.pod(&volume).unmount().success();
    node.delete(&volume).success();
}

/// Processes that run this executable.
fn running(executable: &Path) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("exe")).is_ok_and(|runs| runs == executable))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
        .collect()
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came");
        thread::sleep(Duration::from_millis(5));
    }
}
