//! A disk that answers nothing any more, beside one that is well.

use crate::{
    frozen::processes,
    sandbox,
    silent_disk::{Disk, Dying, expect_none_left, run},
};
use flexvol_host::lvm;
use flexvol_sdk::ErrorKind;
use flexvol_testing::{Driver, Need, Points, Sandbox, eventually, patience, tests};
use nix::{
    mount::{MntFlags, umount2},
    sys::stat::minor,
};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Filesystem("fuse"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("timeout", "coreutils"),
];

tests! {
    "what a callout left behind at a dead disk stops no other driver, and no pool that was moved", NEEDS => callout;
    "callouts of a healthy pool leave one process at a dead disk beside it", NEEDS => beside;
    "list, gc and doctor leave no second process at a dead disk", NEEDS => verbs;
    "a verb that is interrupted at a dead disk leaves one process, too", NEEDS => interrupted;
    "flushes of a dead disk leave one process", NEEDS => flushes;
}

/// A disk with a pool `a`, which died before anybody has looked into it.
fn dead(sandbox: &Sandbox) -> Dying {
    let [content, server, directory] =
        ["dead.img", "server", "dead"].map(|name| sandbox.path(name));
    let disk = Disk::new(&content, directory.clone());
    sandbox.make_pool(&directory.join("a"));
    drop(disk);
    let dead = Dying::mount(&content, &server, directory);
    dead.server.die();
    dead
}

fn pool(dead: &Dying) -> PathBuf {
    dead.disk.0.join("a")
}

fn install(sandbox: &Sandbox, name: &str, pools: &[(&str, &Path)]) -> Driver {
    let pools = pools
        .iter()
        .map(|(name, path)| format!("[pools.{name}]\npath = {path:?}\nreserve = \"0%\"\n"));
    let text = format!("backend = \"loop\"\n{}", pools.collect::<String>());
    sandbox.install_with(name, &text)
}

const CAPACITY: [&str; 2] = ["capacity", r#"{"pool":"default"}"#];

fn callout(points: &Points) {
    let sandbox = sandbox();
    let dead = dead(&sandbox);
    let well = sandbox.pool();
    let driver = install(&sandbox, "example.com/disk", &[("default", &pool(&dead))]);
    let other = install(&sandbox, "example.org/fast", &[("default", &well)]);
    for said in ["did not answer", "an earlier call"] {
        let call = driver.call(&CAPACITY);
        assert!(call.failure().contains(said), "{call}");
        assert_eq!(processes(&driver), 1, "{call}");
        points.add(1);
    }
    other.call(&CAPACITY).success();
    let moved = install(&sandbox, "example.com/disk", &[("default", &well)]);
    moved.call(&CAPACITY).success();
    points.add(2);
    drop(dead);
    expect_none_left(&driver);
}

fn beside(points: &Points) {
    let sandbox = sandbox();
    let dead = dead(&sandbox);
    let pools: [(&str, &Path); 2] = [("a", &pool(&dead)), ("default", &sandbox.pool())];
    let driver = install(&sandbox, "example.com/both", &pools);
    for _ in 0..3 {
        let call = driver.call(&CAPACITY).success();
        assert_eq!(processes(&driver), 1, "{call}");
        points.add(1);
    }
    drop(dead);
    expect_none_left(&driver);
    driver.call(&CAPACITY).success();
}

fn verbs(points: &Points) {
    let sandbox = sandbox();
    let dead = dead(&sandbox);
    let pools: [(&str, &Path); 2] = [("a", &pool(&dead)), ("default", &sandbox.pool())];
    let driver = install(&sandbox, "example.com/both", &pools);
    let plugins = sandbox.plugins();
    let doctor = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
    // `doctor` also asks whether the dead pool is beside the other one, and is left there once.
    let calls: [(&[&str], usize); 5] = [
        (&["list"], 1),
        (&["list"], 1),
        (&["gc"], 1),
        (&doctor, 2),
        (&doctor, 2),
    ];
    for (number, (arguments, left)) in calls.into_iter().enumerate() {
        let began = Instant::now();
        let output = verb(&driver, arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("does not answer"), "{arguments:?}: {text}");
        // The first one waits for ten seconds.
        let limit = Duration::from_secs(8) * patience();
        assert!(number == 0 || began.elapsed() < limit, "{arguments:?}");
        assert_eq!(processes(&driver), left, "{arguments:?}");
        points.add(1);
    }
    // What takes its place answers.
    umount2(&dead.disk.0, MntFlags::MNT_DETACH).unwrap();
    fs::create_dir(pool(&dead)).unwrap();
    let init = ["pool", "init", "--replace"];
    run(
        driver.executable().to_str().unwrap(),
        &init,
        &[&pool(&dead)],
    );
    let listed = verb(&driver, &["list"]);
    assert!(listed.status.success(), "{listed:?}");
    drop(dead);
    expect_none_left(&driver);
}

fn interrupted(points: &Points) {
    for signal in ["INT", "TERM", "HUP"] {
        let sandbox = sandbox();
        let dead = dead(&sandbox);
        let pools: [(&str, &Path); 2] = [("a", &pool(&dead)), ("default", &sandbox.pool())];
        let driver = install(&sandbox, "example.com/both", &pools);
        // While it looks into the pool, which takes ten seconds.
        let output = verb_until(&driver, &["list"], signal, 3);
        assert_eq!(output.status.code(), Some(124), "{signal}: {output:?}");
        assert_eq!(processes(&driver), 1, "{signal}");
        let began = Instant::now();
        let output = verb(&driver, &["list"]);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains("does not answer"), "{signal}: {text}");
        assert!(began.elapsed() < Duration::from_secs(8) * patience());
        assert_eq!(processes(&driver), 1, "{signal}");
        points.add(1);
        drop(dead);
        expect_none_left(&driver);
    }
}

fn flushes(points: &Points) {
    let sandbox = sandbox();
    let dead = dead(&sandbox);
    let number = minor(fs::metadata(&dead.disk.0).unwrap().dev());
    let device = [format!("/dev/loop{number}")];
    for count in 0..3 {
        let began = Instant::now();
        let error = lvm::sync(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
        let error = error.report();
        assert_eq!(count > 0, error.contains("an earlier flush"), "{error}");
        assert!(count == 0 || began.elapsed() < Duration::from_secs(8) * patience());
        points.add(1);
    }
    dead.server.revive();
    eventually(Duration::from_secs(10), "the disk to be flushed", || {
        lvm::sync(&device).is_ok()
    });
}

fn verb(driver: &Driver, arguments: &[&str]) -> Output {
    verb_until(driver, arguments, "KILL", 30 * patience())
}

/// Runs a verb, which gets this signal after so many seconds.
fn verb_until(driver: &Driver, arguments: &[&str], signal: &str, seconds: u32) -> Output {
    // What runs the tests may ignore signals.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,HUP", "timeout", "--signal", signal]);
    command.arg(seconds.to_string());
    command.arg(driver.executable()).args(arguments);
    command.output().unwrap()
}
