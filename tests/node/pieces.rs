//! Images with very many extents: examining or unsharing them does not block others from the pool, and what was not
//! examined counts as unknown.

pub mod stopped;

use crate::{
    copied::{copy, settle},
    full::expect_exhausted,
    node::{MIB, UID, expect_written, write},
    promised::{blocks, capacity, doctor, install},
    sandbox_with,
};
use flexvol_testing::{
    Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, request, tests,
};
use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
};
use stopped::Stopped;

tests! {
    "pieces: whoever looks at an image in many pieces keeps nobody from the pool", TRACED
        => looked_at;
    "pieces: what an image loses while others are looked at is promised to nobody", TRACED
        => lost_meanwhile;
    "pieces: of an image in more pieces than are looked at no more is in doubt than a sample of the rest says", &[Need::Root, XFS]
        => unknown;
    "pieces: an image in more pieces than are looked at grows by blocks of its own, also in a full pool", &[Need::Root, XFS]
        => grown;
    "pieces: what an image on btrfs shares is asked once for each extent of the disk, and not for each piece", ON_BTRFS
        => asked_once;
    "pieces: a shared image in many pieces is parted in few steps", TRACED => parted_at_once;
    "pieces: what is copied while a volume gets back what it lost takes nobody's space", TRACED
        => copied_meanwhile;
}

const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
pub const TRACED: &[Need] = &[
    Need::Root,
    XFS,
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("strace", "strace"),
];
const ON_BTRFS: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
    Need::Tool("strace", "strace"),
];

pub fn pool(mebibytes: u64) -> Sandbox {
    sandbox_with(PoolFilesystem {
        kind: "xfs",
        mebibytes,
        quotas: false,
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

fn punch(image: &Path, at: u64, bytes: u64) {
    let file = File::options().write(true).open(image).unwrap();
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, signed(at), signed(bytes)).unwrap();
    file.sync_all().unwrap();
}

/// Makes a file that shares a part of another one.
fn clone(from: &Path, at: u64, bytes: u64, to: &Path) {
    let made = Command::new("xfs_io")
        .args(["-f", "-c"])
        .arg(format!("reflink {} {at} 0 {bytes}", from.display()))
        .arg(to)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    assert_eq!(fs::metadata(to).unwrap().len(), bytes);
}

/// Writes every other block of a fully allocated image. The blocks in between stay unwritten extents.
fn cut(sandbox: &Sandbox, image: &Path) {
    let size = fs::metadata(image).unwrap().len();
    let file = File::options().write(true).open(image).unwrap();
    for at in (0..size).step_by(8192) {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    file.sync_all().unwrap();
    settle(sandbox);
    assert!(blocks(image) >= size);
}

/// Linux 6.1 walks all pieces of an extent to answer for one.
fn asked_once(_: &Points) {
    let sandbox = sandbox_with(PoolFilesystem {
        kind: "btrfs",
        mebibytes: 4096,
        quotas: false,
    });
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", 300 * MIB);
    cut(&sandbox, &volume.image(&sandbox));
    let trace = sandbox.path("trace");
    let traced = trace.to_str().unwrap();
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-e",
        "trace=ioctl",
        "-o",
        traced,
    ];
    let reply = driver.call_through(&strace, &["capacity", "{}"]);
    assert_eq!(reply.success().object().unwrap()["missing"], 0);
    let trace = fs::read_to_string(trace).unwrap();
    let asked = trace.matches("FIEMAP").count();
    let read = trace.matches("BTRFS_IOC_TREE_SEARCH").count();
    assert!((1..=16).contains(&asked) && read > 100, "{asked} of {read}");
}

fn looked_at(points: &Points) {
    let sandbox = pool(4096);
    let driver = install(&sandbox, "");
    let cut_up = PersistentVolume::provision(&driver, "a", "xfs", 800 * MIB);
    let image = cut_up.image(&sandbox);
    cut(&sandbox, &image);
    let other = PersistentVolume::provision(&driver, "b", "xfs", 300 * MIB);
    let (new, old) = ((400 * MIB).to_string(), (300 * MIB).to_string());
    let json = other.json("rw");
    let pod = Pod::new(&sandbox, &driver, &other, UID);
    let dir = pod.dir().to_str().unwrap();
    // More than there would be if the result for an image that is written meanwhile were discarded.
    let asked = request("c", capacity(&driver).0 - 1200 * MIB);
    let grow = ["expandvolume", &json, dir, &new, &old];
    let make = ["provision", &asked];
    for (name, slow) in [("d", &grow[..]), ("e", &make[..])] {
        let stopped = Stopped::at(&sandbox, &driver, "ioctl", 100, slow);
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        file.sync_all().unwrap();
        driver
            .call(&["provision", &request(name, 300 * MIB)])
            .success();
        let reply = stopped.goes_on();
        assert!(reply.contains("\"Success\""), "{reply}");
        points.add(1);
    }
    assert_eq!(
        fs::metadata(other.image(&sandbox)).unwrap().len(),
        400 * MIB
    );
    assert_eq!(capacity(&driver).1, 0);
}

fn lost_meanwhile(_: &Points) {
    let sandbox = pool(4096);
    let driver = install(&sandbox, "");
    let cut_up = PersistentVolume::provision(&driver, "a", "xfs", 800 * MIB);
    let image = cut_up.image(&sandbox);
    cut(&sandbox, &image);
    let room = capacity(&driver).0;
    let asked = request("c", room + 100 * MIB);
    let stopped = Stopped::at(&sandbox, &driver, "ioctl", 150, &["provision", &asked]);
    // A part that the driver has read already.
    punch(&image, 0, 200 * MIB);
    settle(&sandbox);
    let reply = stopped.goes_on();
    assert!(reply.contains("exhausted"), "{reply}");
    let (now, missing) = capacity(&driver);
    assert_eq!(missing, 200 * MIB);
    assert!(now <= room + 8 * MIB, "{room}, then {now}");
    driver
        .call(&["provision", &request("d", now - 100 * MIB)])
        .success();
}

fn unknown(_: &Points) {
    const SIZE: u64 = 3 << 30;
    const SHARED: u64 = 512 * MIB;
    let sandbox = pool(8 << 10);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
    let image = volume.image(&sandbox);
    let known = capacity(&driver).0;
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    cut(&sandbox, &image);
    let changed = || fs::metadata(&image).unwrap().ctime_nsec();
    let before = changed();
    let room = || {
        let reply = driver.call(&["capacity", "{}"]).success();
        let reply = reply.object().unwrap();
        assert!(!reply.contains_key("missing"), "{reply:?}");
        reply["capacity"].as_u64().unwrap()
    };
    // A tenant can fragment an image, but not share it. The estimate for others shrinks only by the error of a sample.
    let cut_up = room();
    assert!(cut_up + SIZE / 64 > known, "{cut_up} of {known}");
    // Behind the part that is read sequentially.
    let copy = sandbox.disk().join("copy");
    clone(&image, SIZE - SHARED, SHARED, &copy);
    settle(&sandbox);
    let room = room();
    assert!(room + SHARED < known, "{room} of {known}");
    // The part that was read counts as not shared.
    assert!(
        room + SIZE / 8 < known && room + SIZE > known,
        "{room} of {known}"
    );
    expect_exhausted(&driver.call(&["provision", &request("b", known - MIB)]));
    driver
        .call(&["provision", &request("b", room - 64 * MIB)])
        .success();
    let said = doctor(&sandbox, &driver);
    assert!(said.contains("it is not known"), "{said}");
    assert!(!said.contains("lack some"), "{said}");
    assert_eq!(changed(), before);
    fs::remove_file(copy).unwrap();
    settle(&sandbox);
    // For a mount nothing is unshared. The mount formats the image, so only its number of blocks is compared.
    let inode = fs::metadata(&image).unwrap().ino();
    pod.mount("rw").success();
    write(pod.dir(), "file", 8).unwrap();
    expect_written(pod.dir(), "file", 8);
    pod.unmount().success();
    let found = fs::metadata(&image).unwrap();
    assert_eq!(found.ino(), inode);
    assert!(found.blocks() * 512 >= SIZE);
}

fn grown(points: &Points) {
    const SIZE: u64 = 3 << 30;
    const MORE: u64 = 8 * MIB;
    let sandbox = pool(8 << 10);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
    let image = volume.image(&sandbox);
    cut(&sandbox, &image);
    let json = volume.json("rw");
    let dir = sandbox.disk();
    let grow = |from: u64| {
        let before = blocks(&image);
        let (new, old) = ((from + MORE).to_string(), from.to_string());
        let dir = dir.to_str().unwrap();
        driver
            .call(&["expandvolume", &json, dir, &new, &old])
            .success();
        settle(&sandbox);
        assert_eq!(fs::metadata(&image).unwrap().len(), from + MORE);
        let gained = blocks(&image) - before;
        assert!(gained >= MORE, "{gained}");
        points.add(1);
    };
    grow(SIZE);
    // Less is free than the fragmented part, which other volumes are not promised.
    let room = nix::sys::statvfs::statvfs(&sandbox.disk()).unwrap();
    let room = room.blocks_available() * room.fragment_size();
    let filler = File::create_new(sandbox.disk().join("filler")).unwrap();
    let filled = signed(room - 200 * MIB);
    fallocate(&filler, FallocateFlags::empty(), 0, filled).unwrap();
    grow(SIZE + MORE);
    // Its only hole is found, wherever it is.
    punch(&image, SIZE - MIB, MIB);
    settle(&sandbox);
    grow(SIZE + 2 * MORE);
}

fn parted_at_once(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", 320 * MIB);
    let image = volume.image(&sandbox);
    cut(&sandbox, &image);
    // A hole, in which there is nothing to unshare.
    punch(&image, 80 * MIB, 8 * MIB);
    copy(&image, &sandbox.disk().join("copy"));
    settle(&sandbox);
    assert_eq!(capacity(&driver).1, 164 * MIB);
    let log = sandbox.path("calls.log");
    let dir = sandbox.disk();
    let (new, old) = ((328 * MIB).to_string(), (320 * MIB).to_string());
    let grown = Command::new("strace")
        .args(["-f", "-e", "trace=fallocate", "-o"])
        .arg(&log)
        .arg(driver.executable())
        .args(["expandvolume", &volume.json("rw"), dir.to_str().unwrap()])
        .args([new, old])
        .output()
        .unwrap();
    assert!(grown.status.success(), "{grown:?}");
    let log = fs::read_to_string(log).unwrap();
    let calls = log
        .lines()
        .filter(|line| line.contains("UNSHARE") || line.contains("0x41"));
    let calls = calls.count();
    assert!((5..=8).contains(&calls), "{calls} of {log}");
    assert_eq!(capacity(&driver).1, 0);
}

fn copied_meanwhile(_: &Points) {
    const SIZE: u64 = 400 * MIB;
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
    let image = volume.image(&sandbox);
    let file = File::options().write(true).open(&image).unwrap();
    for at in (0..SIZE).step_by(1 << 20) {
        file.write_all_at(&[1; 1 << 20], at).unwrap();
    }
    drop(file);
    punch(&image, 0, MIB);
    settle(&sandbox);
    let json = volume.json("rw");
    let dir = sandbox.disk();
    let (new, old) = ((SIZE + MIB).to_string(), SIZE.to_string());
    let grow = ["expandvolume", &json, dir.to_str().unwrap(), &new, &old];
    let stopped = Stopped::at(&sandbox, &driver, "fallocate", 1, &grow);
    copy(&image, &sandbox.disk().join("copy"));
    settle(&sandbox);
    let said = stopped.goes_on();
    assert!(said.contains("was copied meanwhile"), "{said}");
    let missing = capacity(&driver).1;
    assert!(missing >= SIZE - 2 * MIB, "{missing}");
    // Now the image was examined completely.
    driver.call(&grow).success();
    assert_eq!(capacity(&driver).1, 0);
}
