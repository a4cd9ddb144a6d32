//! A pool that runs out in the middle of a volume's life: each step says so, leaves nothing behind, and
//! succeeds by its repetition once there is room again.

use crate::{dir, sandbox_with};
use flexvol_testing::{
    Baseline, Call, Driver, Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, request,
    tests,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

tests! {
    "a pool of files that is full refuses each step, which succeeds once there is room", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => |points| files("", points);
    "a thin pool of files that is full fails each step, which succeeds once there is room", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => |points| files("thin = true", points);
    "dir on btrfs: a full pool refuses each step, which succeeds once there is room", dir::BTRFS
        => |points| directories("btrfs", points);
    "dir on xfs: a full pool refuses each step, which succeeds once there is room", dir::XFS
        => |points| directories("xfs", points);
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 304 * MIB;
const GROWN: u64 = 352 * MIB;
const POD: &str = "0b1e55ed-0000-4000-8000-000000000001";

/// A failure that says that there is no room, in its class and in words.
#[track_caller]
pub fn expect_exhausted(call: &Call) {
    let message = call.failure();
    assert_eq!(call.text("errorClass"), "exhausted", "{message}");
}

/// Writes a file durably.
pub fn write(dir: &Path, name: &str, mebibytes: usize) -> io::Result<()> {
    let mut file = File::create(dir.join(name))?;
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    for _ in 0..mebibytes {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Whether a file that was written so is there.
#[track_caller]
pub fn expect_written(dir: &Path, name: &str, mebibytes: usize) {
    let found = fs::read(dir.join(name)).unwrap();
    assert_eq!(found.len(), mebibytes << 20, "{name}");
    let is_right = |(at, byte): (usize, &u8)| usize::from(*byte) == at % (1 << 20) % 251;
    assert!(found.iter().enumerate().all(is_right), "{name}");
}

fn provision(driver: &Driver) -> Call {
    driver.call(&["provision", &request("pv", SIZE)])
}

/// Calls while somebody else's file fills the disk, and again when it is gone.
fn refused_once(sandbox: &Sandbox, call: &dyn Fn() -> Call) -> Call {
    let before = Baseline::of(sandbox).without_space();
    let filler = sandbox.fill_disk(MIB);
    let full = Baseline::of(sandbox).without_space();
    expect_exhausted(&call());
    full.expect(sandbox, "refused");
    fs::remove_file(filler).unwrap();
    before.expect(sandbox, "there is room again");
    call().success()
}

fn files(more: &str, points: &Points) {
    let sandbox = sandbox_with(PoolFilesystem {
        mebibytes: 1024,
        ..PoolFilesystem::default()
    });
    let driver = sandbox.install(
        "example.com/loop",
        false,
        &format!("reserve = \"0%\"\n{more}"),
    );
    let before = Baseline::of(&sandbox);
    let made = refused_once(&sandbox, &|| provision(&driver));
    let volume = PersistentVolume::from_reply("pv", "xfs", &made);
    let pod = Pod::new(&sandbox, &driver, &volume, POD);
    if more.is_empty() {
        // What was promised is there, whatever others take.
        let filler = sandbox.fill_disk(MIB);
        pod.mount("rw").success();
        write(pod.dir(), "synced", 8).unwrap();
        write(pod.dir(), "more", 150).unwrap();
        fs::remove_file(filler).unwrap();
    } else {
        refused_once(&sandbox, &|| pod.mount("rw"));
        write(pod.dir(), "synced", 8).unwrap();
        let filler = sandbox.fill_disk(MIB);
        assert!(write(pod.dir(), "lost", 32).is_err(), "nothing is full");
        expect_written(pod.dir(), "synced", 8);
        fs::remove_file(filler).unwrap();
        // It may say that something could not be written; then it has said so.
        let _ = pod.unmount();
        pod.unmount().success();
        pod.mount("rw").success();
        write(pod.dir(), "more", 150).unwrap();
    }
    points.add(3);
    refused_once(&sandbox, &|| {
        driver.call(&pod.expand_arguments(GROWN, SIZE))
    });
    points.add(1);
    expect_written(pod.dir(), "synced", 8);
    expect_written(pod.dir(), "more", 150);
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(&sandbox, "deleted");
}

fn directories(kind: &'static str, points: &Points) {
    let sandbox = sandbox_with(PoolFilesystem {
        kind,
        mebibytes: 1024,
        quotas: true,
    });
    let driver = dir::install(&sandbox, "dir", "");
    let before = Baseline::of(&sandbox);
    let made = refused_once(&sandbox, &|| provision(&driver));
    let volume = PersistentVolume::from_reply("pv", "", &made);
    let pod = Pod::new(&sandbox, &driver, &volume, POD);
    // Nothing is written to mount it.
    let filler = sandbox.fill_disk(MIB);
    pod.mount("rw").success();
    assert!(write(pod.dir(), "lost", 64).is_err(), "nothing is full");
    fs::remove_file(filler).unwrap();
    write(pod.dir(), "synced", 64).unwrap();
    points.add(3);
    refused_once(&sandbox, &|| {
        driver.call(&pod.expand_arguments(GROWN, SIZE))
    });
    points.add(1);
    expect_written(pod.dir(), "synced", 64);
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(&sandbox, "deleted");
}
