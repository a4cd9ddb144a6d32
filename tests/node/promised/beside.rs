//! Pools of one driver in directories of one file system: its free space is promised once.

use super::{blocks, doctor, lose, pool};
use crate::{
    full::expect_exhausted,
    node::{LOOP, MIB, UID, expect_written, write},
};
use flexvol_testing::{
    Driver, Need, Outcome, PersistentVolume, Pod, Points, Sandbox, patience, tests,
};
use nix::mount::{MntFlags, umount2};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{FileExt, PermissionsExt},
    path::PathBuf,
    process::Command,
    thread,
};

tests! {
    "what a pool owes to its images, and to their maps, is promised by no pool beside it", LOOP => owed;
    "pools on one file system do not promise the same to two who ask at once",
        &[Need::Root, Need::Tool("strace", "strace")] => at_once;
    "beside a pool that cannot be read nothing is promised, and doctor names it", LOOP => unread;
    "a pool on another disk, which is damaged, hinders none", &[Need::Root, Need::Tool("debugfs", "e2fsprogs")] => damaged;
}

const SIZE: u64 = 400 * MIB;

/// Installs a driver with the pools `default` and `other`, with these keys.
fn both(sandbox: &Sandbox, keys: &str, keys_of_other: &str) -> Driver {
    let other = sandbox.disk().join("other");
    if !other.exists() {
        sandbox.make_pool(&other);
    }
    let pool = sandbox.pool();
    let text = format!(
        "backend = \"loop\"\n[pools.default]\npath = {pool:?}\n{keys}\n[pools.other]\npath = {other:?}\n{keys_of_other}\n"
    );
    sandbox.install_with("example.com/both", &text)
}

fn request(name: &str, pool: &str, size: u64) -> String {
    format!(
        r#"{{"kubernetes.io/pvOrVolumeName":"{name}","kubernetes.io/pvc.namespace":"default","fsType":"ext4","pool":"{pool}","requestBytes":"{size}"}}"#
    )
}

fn room(driver: &Driver, pool: &str) -> u64 {
    let asked = format!(r#"{{"pool":"{pool}"}}"#);
    let reply = driver.call(&["capacity", &asked]).success();
    reply.object().unwrap()["capacity"].as_u64().unwrap()
}

fn owed(points: &Points) {
    const WHOLE: &str = "reserve = \"0%\"";
    const THIN: &str = "reserve = \"0%\"\nthin = true";
    for kind in ["ext4", "xfs", "btrfs"] {
        let sandbox = pool(kind);
        let driver = both(&sandbox, WHOLE, WHOLE);
        let made = driver.call(&["provision", &request("a", "default", SIZE)]);
        let volume = PersistentVolume::from_reply("a", "ext4", &made.success());
        let image = volume.image(&sandbox);
        let settled = || {
            nix::unistd::syncfs(fs::File::open(sandbox.disk()).unwrap()).unwrap();
            ["default", "other"].map(|pool| room(&driver, pool))
        };
        let [own, beside] = settled();
        assert!(own.abs_diff(beside) <= MIB, "{kind}: {own}, {beside}");
        lose(&image, 250 * MIB, 40 * MIB);
        assert!(blocks(&image) < SIZE - 39 * MIB, "{kind}");
        let [own, now] = settled();
        assert!(own.abs_diff(now) <= MIB, "{kind}: {own}, {now}");
        assert!(now <= beside + 2 * MIB, "{kind}: {beside}, then {now}");
        let more = |size: u64| driver.call(&["provision", &request("b", "other", size)]);
        expect_exhausted(&more(beside + 20 * MIB));
        // A thin pool takes space of the same disk when volumes are written.
        let thin = both(&sandbox, WHOLE, THIN);
        let now = room(&thin, "other");
        assert!(now <= beside + 2 * MIB, "{kind}: {beside}, then {now}");
        let _driver = both(&sandbox, WHOLE, WHOLE);
        let now = room(&thin, "default");
        more(now - now % MIB - 8 * MIB).success();
        points.add(1);
    }
}

fn at_once(points: &Points) {
    let sandbox = pool("ext4");
    let driver = both(&sandbox, "reserve = \"400Mi\"", "reserve = \"400Mi\"");
    let all = room(&driver, "default");
    let size = all - all % MIB - 64 * MIB;
    // Without a common lock both would see the free space before one of them takes it.
    let slow = format!(
        "inject=fallocate:when=1:delay_enter={}",
        500_000 * patience()
    );
    let log = |pool: &str| sandbox.path(pool).to_str().unwrap().to_owned();
    let asked = thread::scope(|scope| {
        let ask = |pool: &'static str| {
            let (driver, slow, log) = (&driver, &slow, log(pool));
            scope.spawn(move || {
                let strace = ["-f", "-qq", "-o", &log, "-e", "trace=fallocate", "-e", slow];
                let strace = [&["/usr/bin/strace"], &strace[..]].concat();
                driver.call_through(&strace, &["provision", &request("a", pool, size)])
            })
        };
        ["default", "other"]
            .map(ask)
            .map(|asks| asks.join().unwrap())
    });
    let made = asked
        .iter()
        .filter(|call| call.outcome() == Outcome::Success);
    assert_eq!(made.count(), 1);
    let refused = asked.iter().find(|call| call.outcome() != Outcome::Success);
    expect_exhausted(refused.unwrap());
    // Each call takes the locks of both pools. The order must not matter.
    let left = room(&driver, "other");
    assert!((48 * MIB..80 * MIB).contains(&left), "{left}");
    let asked: Vec<_> = thread::scope(|scope| {
        let ask = |number: usize| {
            let driver = &driver;
            scope.spawn(move || {
                let pool = ["default", "other"][number % 2];
                driver.call(&[
                    "provision",
                    &request(&format!("more-{number}"), pool, 15 * MIB),
                ])
            })
        };
        let asks: Vec<_> = (0..8).map(ask).collect();
        asks.into_iter().map(|asks| asks.join().unwrap()).collect()
    });
    let made = asked
        .iter()
        .filter(|call| call.outcome() == Outcome::Success);
    // A block map takes a hundredth at most.
    let most = left / (15 * MIB);
    let made = u64::try_from(made.count()).unwrap();
    assert!((most - 1..=most).contains(&made), "{made} in {left}");
    for call in asked
        .iter()
        .filter(|call| call.outcome() != Outcome::Success)
    {
        expect_exhausted(call);
    }
    points.add(10);
}

fn unread(points: &Points) {
    let sandbox = pool("ext4");
    let driver = both(&sandbox, "reserve = \"0%\"", "reserve = \"0%\"");
    let size = 64 * MIB;
    let volumes = ["a", "b"].map(|name| {
        let made = driver.call(&["provision", &request(name, "default", size)]);
        PersistentVolume::from_reply(name, "ext4", &made.success())
    });
    let [kept, doomed] = &volumes;
    let pod = Pod::new(&sandbox, &driver, kept, UID);
    pod.mount("rw").success();
    pod.unmount().success();
    let other = sandbox.disk().join("other");
    let mode = |mode| fs::set_permissions(&other, Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    let json = kept.json("rw");
    let (dir, to) = (pod.dir().to_str().unwrap(), (size + 16 * MIB).to_string());
    let grow = ["expandvolume", &json, dir, &to, &size.to_string()].map(str::to_owned);
    let provision = ["provision".to_owned(), request("c", "default", size)];
    let capacity = ["capacity", r#"{"pool":"default"}"#].map(str::to_owned);
    for call in [&provision, &grow[..], &capacity] {
        let refused = driver.call(call).failure();
        assert!(refused.contains("the pool \"other\""), "{refused}");
        points.add(1);
    }
    // An existing volume can be used and deleted.
    pod.mount("rw").success();
    write(pod.dir(), "file", 8).unwrap();
    pod.unmount().success();
    driver.call(&["delete", &doomed.json("rw")]).success();
    let told = doctor(&sandbox, &driver);
    let line = told.lines().find(|line| line.contains("pool default"));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    assert!(
        line.starts_with("FAIL") && line.contains("\"other\""),
        "{line}"
    );
    mode(0o700);
    pod.mount("rw").success();
    expect_written(pod.dir(), "file", 8);
    for call in [&provision, &grow[..], &capacity] {
        driver.call(call).success();
    }
    pod.unmount().success();
    // A pool on another file system affects nothing, whatever it is.
    let elsewhere = sandbox.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o777)).unwrap();
    let text = format!(
        "backend = \"loop\"\n[pools.default]\npath = {:?}\n[pools.other]\npath = {elsewhere:?}\n",
        sandbox.pool()
    );
    let driver = sandbox.install_with("example.com/both", &text);
    driver.call(&capacity).success();
    points.add(5);
}

/// A mount that is removed on drop.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Errors do not matter: a failed test has reported its own.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn damaged(points: &Points) {
    const BLOCK: u64 = 4096;
    let sandbox = pool("ext4");
    let (image, disk) = (sandbox.path("damaged.img"), sandbox.path("damaged"));
    let file = fs::File::create_new(&image).unwrap();
    file.set_len(64 * MIB).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let ended = Command::new(program).args(arguments).output().unwrap();
        assert!(ended.status.success(), "{program}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    let [image, place] = [&image, &disk].map(|path| path.to_str().unwrap());
    run(
        "mkfs.ext4",
        &["-q", "-F", "-b", "4096", "-O", "metadata_csum", image],
    );
    let root = run("debugfs", &["-R", "bmap <2> 0", image]);
    let root: u64 = root.trim().parse().unwrap();
    file.write_all_at(b"XXXXXXXX", root * BLOCK + 1000).unwrap();
    file.sync_all().unwrap();
    fs::create_dir(&disk).unwrap();
    run("mount", &["-t", "ext4", "-o", "loop", image, place]);
    let _mounted = Mounted(disk.clone());
    let error = fs::read_link(disk.join("pool")).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(nix::errno::Errno::EBADMSG as i32)
    );
    let text = format!(
        "backend = \"loop\"\n[pools.default]\npath = {:?}\n[pools.other]\npath = {:?}\n",
        sandbox.pool(),
        disk.join("pool"),
    );
    let driver = sandbox.install_with("example.com/both", &text);
    driver
        .call(&["capacity", r#"{"pool":"default"}"#])
        .success();
    let made = driver.call(&["provision", &request("a", "default", 64 * MIB)]);
    let volume = PersistentVolume::from_reply("a", "ext4", &made.success());
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(3);
}
