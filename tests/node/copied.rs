//! Copies that share blocks with a volume (`cp` makes them on xfs, snapshots on btrfs). The volume keeps the
//! space that it was promised.

use crate::{
    adopt::done,
    by_hand::{error_of, json_of},
    full::expect_exhausted,
    node::{MIB, UID, expect_written, write},
    promised::{blocks, capacity, doctor, install, pool},
};
use flexvol_testing::{Need, PersistentVolume, Pod, Points, Sandbox, request, tests};
use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

tests! {
    "what a copy of an image shares is counted as missing, and is the volume's own at the next mount", NEEDS
        => parted;
    "what a snapshot on btrfs shares is counted as missing, and pods get the volume", &[Need::Root, Need::Tool("mkfs.btrfs", "btrfs-progs"), E2FS]
        => snapshot;
    "adopt: an image of which the pool cannot hold the whole is left as it is", NEEDS => too_large;
    "adopt: all of an image has blocks of its own, unless the pool is thin", NEEDS => whole;
}

const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");
const NEEDS: &[Need] = &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs"), E2FS];
const SIZE: u64 = 300 * MIB;

/// Copies as `cp` does by default since coreutils 9.
pub fn copy(from: &Path, to: &Path) {
    done(Command::new("cp").arg("--reflink=always").arg(from).arg(to));
}

pub fn settle(sandbox: &Sandbox) {
    nix::unistd::syncfs(File::open(sandbox.disk()).unwrap()).unwrap();
}

fn parted(_: &Points) {
    let sandbox = pool("xfs");
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "ext4", SIZE);
    let image = volume.image(&sandbox);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    write(pod.dir(), "file", 100).unwrap();
    pod.unmount().success();
    let (room, missing) = capacity(&driver);
    assert_eq!(missing, 0);
    let backup = sandbox.disk().join("backup");
    copy(&image, &backup);
    let content = fs::read(&backup).unwrap();
    let (now, missing) = capacity(&driver);
    assert!((100 * MIB..=SIZE).contains(&missing), "{missing}");
    // A hundredth of the free space is reserved for the images' block maps.
    assert!(now <= room - 99 * MIB, "{room}, then {now}");
    expect_exhausted(&driver.call(&["provision", &request("b", now + 20 * MIB)]));
    assert!(doctor(&sandbox, &driver).contains("volumes that lack some of their storage: 1"));

    // Other data took the space. A volume without it can still be mounted for its data.
    let filler = sandbox.fill_disk(8 * MIB);
    pod.mount("rw").success();
    expect_written(pod.dir(), "file", 100);
    pod.unmount().success();
    assert!(capacity(&driver).1 > 50 * MIB);
    fs::remove_file(filler).unwrap();
    settle(&sandbox);

    pod.mount("rw").success();
    assert_eq!(capacity(&driver).1, 0);
    assert!(!doctor(&sandbox, &driver).contains("lack some"));
    let _ = sandbox.fill_disk(MIB);
    expect_written(pod.dir(), "file", 100);
    write(pod.dir(), "file", 100).unwrap();
    pod.unmount().success();
    assert!(
        fs::read(&backup).unwrap() == content,
        "the copy is as it was"
    );
}

fn snapshot(_: &Points) {
    let sandbox = pool("btrfs");
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "ext4", SIZE);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    write(pod.dir(), "file", 100).unwrap();
    pod.unmount().success();
    assert_eq!(capacity(&driver).1, 0);
    let snapshot = sandbox.disk().join("snapshot");
    let btrfs = |arguments: &[&str]| done(Command::new("btrfs").arg("subvolume").args(arguments));
    let (disk, taken) = (sandbox.disk(), snapshot.to_str().unwrap());
    btrfs(&["snapshot", disk.to_str().unwrap(), taken]);
    assert_eq!(capacity(&driver).1, SIZE);
    pod.mount("rw").success();
    expect_written(pod.dir(), "file", 100);
    assert!(doctor(&sandbox, &driver).contains("volumes that lack some of their storage: 1"));
    pod.unmount().success();
    btrfs(&["delete", "--commit-after", taken]);
    done(
        Command::new("btrfs")
            .args(["subvolume", "sync"])
            .arg(sandbox.disk()),
    );
    pod.mount("rw").success();
    assert_eq!(capacity(&driver).1, 0);
    pod.unmount().success();
}

fn sparse(sandbox: &Sandbox, name: &str, mebibytes: u64) -> std::path::PathBuf {
    let path = sandbox.disk().join(name);
    let file = File::create_new(&path).unwrap();
    file.set_len(mebibytes * MIB).unwrap();
    done(Command::new("mkfs.ext4").arg("-qF").arg(&path));
    path
}

fn too_large(points: &Points) {
    for kind in ["ext4", "xfs"] {
        let sandbox = pool(kind);
        let driver = install(&sandbox, "");
        let path = sparse(&sandbox, "image", 5 << 10);
        let has = blocks(&path);
        let why = error_of(&driver, &["adopt", path.to_str().unwrap(), "--name", "a"]);
        assert!(why.contains("the pool has"), "{kind}: {why}");
        assert_eq!(blocks(&path), has, "{kind}");
        assert_eq!(capacity(&driver).1, 0, "{kind}");
        points.add(1);
    }
}

fn whole(points: &Points) {
    for kind in ["ext4", "xfs"] {
        for settings in ["", "thin = true"] {
            let sandbox = pool(kind);
            let driver = install(&sandbox, settings);
            let path = sparse(&sandbox, "image", 200);
            if kind == "xfs" {
                copy(&path, &sandbox.disk().join("copy"));
            }
            let arguments = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
            let volume = crate::by_hand::persistent_volume(&json_of(&driver, &arguments));
            let has = blocks(&volume.image(&sandbox));
            if settings.is_empty() {
                assert!(has >= 200 * MIB, "{kind}: {has}");
                assert_eq!(capacity(&driver).1, 0, "{kind}");
            } else {
                assert!(has < 100 * MIB, "{kind}: {has}");
            }
            points.add(1);
        }
    }
}
