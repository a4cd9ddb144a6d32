//! Adopts images that share blocks with a copy: each gets blocks of its own, or stays unchanged.

use super::done;
use crate::{
    by_hand::{json_of, persistent_volume},
    copied::{copy, settle},
    full::expect_exhausted,
    node::{MIB, UID},
    pieces::{TRACED, pool, stopped::Stopped},
    promised::{capacity, install},
};
use flexvol_testing::{PersistentVolume, Pod, Points, Sandbox, request, tests};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::{
        fs::{FileExt, MetadataExt, chown},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

tests! {
    "adopt: whoever parts a shared image keeps nobody from the pool, nor loses what he needs", TRACED
        => parted_slowly;
    "adopt: killed while it parts a shared image, it is completed by a second time or a mount", TRACED
        => parted_twice;
    "adopt: an image that cannot be parted after all is given back", TRACED => given_back;
    "adopt: an image that can be neither parted nor given back stays a volume, and is completed", TRACED
        => kept;
}

const ADOPTED: u64 = 400 * MIB;

/// Makes an ext4 full of data, all shared with a copy, and returns its content.
fn shared(sandbox: &Sandbox) -> (PathBuf, Vec<u8>) {
    let path = sandbox.disk().join("image");
    let file = File::create_new(&path).unwrap();
    for at in 0..ADOPTED / MIB {
        let block = vec![u8::try_from(at % 251).unwrap() + 1; 1 << 20];
        file.write_all_at(&block, at * MIB).unwrap();
    }
    done(
        Command::new("mkfs.ext4")
            .args(["-qF", "-E", "nodiscard"])
            .arg(&path),
    );
    copy(&path, &sandbox.disk().join("copy"));
    settle(sandbox);
    let content = fs::read(&path).unwrap();
    (path, content)
}

/// Compares the content. A few blocks may differ, because a trial mount writes the superblock.
fn expect_same(image: &Path, content: &[u8]) {
    let found = fs::read(image).unwrap();
    assert_eq!(found.len(), content.len());
    let blocks = found.chunks(4096).zip(content.chunks(4096));
    let other = blocks.filter(|(now, before)| now != before).count();
    assert!(other < 16, "{other} blocks are others");
}

fn parted_slowly(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let (path, content) = shared(&sandbox);
    let room = capacity(&driver).0;
    let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    let stopped = Stopped::at(&sandbox, &driver, "fallocate", 2, &adopt);
    // Other volumes can be provisioned, but not with the space that the adoption needs.
    driver
        .call(&["provision", &request("b", 300 * MIB)])
        .success();
    let left = room - 300 * MIB;
    expect_exhausted(&driver.call(&["provision", &request("c", left - 200 * MIB)]));
    let said = stopped.goes_on();
    let volume = persistent_volume(&serde_json::from_str(&said).unwrap());
    expect_same(&volume.image(&sandbox), &content);
    let (now, missing) = capacity(&driver);
    assert_eq!(missing, 0);
    assert!(now <= room - 680 * MIB, "{room}, then {now}");
}

fn parted_twice(points: &Points) {
    for by_mount in [false, true] {
        let sandbox = pool(2048);
        let driver = install(&sandbox, "");
        let (path, content) = shared(&sandbox);
        let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
        let died = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate"])
            .args(["-e", "inject=fallocate:signal=KILL:when=2"])
            .arg(driver.executable())
            .args(adopt)
            .output()
            .unwrap();
        assert_eq!(died.status.signal(), Some(9), "{died:?}");
        // A kill leaves either the file or a volume. The missing space of a volume is counted.
        if !path.exists() {
            let missing = capacity(&driver).1;
            assert!(missing >= ADOPTED - 128 * MIB, "{missing}");
        }
        let volume = if by_mount && !path.exists() {
            let images = fs::read_dir(sandbox.pool().join("volumes")).unwrap();
            let images: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
            assert_eq!(images.len(), 1, "{images:?}");
            expect_same(&images[0], &content);
            let handle = fs::read_link(sandbox.pool().join("names/a")).unwrap();
            let handle = handle.to_str().unwrap().to_owned();
            let volume = PersistentVolume {
                name: "a".to_owned(),
                filesystem: "ext4",
                options: BTreeMap::from([("handle".to_owned(), handle)]),
            };
            let pod = Pod::new(&sandbox, &driver, &volume, UID);
            pod.mount("rw").success();
            pod.unmount().success();
            volume
        } else {
            let volume = persistent_volume(&json_of(&driver, &adopt));
            expect_same(&volume.image(&sandbox), &content);
            volume
        };
        assert_eq!(capacity(&driver).1, 0);
        // Adopting again returns the same volume.
        let again = persistent_volume(&json_of(&driver, &adopt));
        assert_eq!(again.handle(), volume.handle());
        points.add(1);
    }
}

fn given_back(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let (path, content) = shared(&sandbox);
    let inode = fs::metadata(&path).unwrap().ino();
    let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    // Killed after the file was moved back, while it still belongs to root.
    let died = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate,fchown"])
        .args(["-e", "inject=fallocate:error=ENOSPC:when=2+"])
        .args(["-e", "inject=fchown:error=EIO:signal=KILL:when=2"])
        .arg(driver.executable())
        .args(adopt)
        .output()
        .unwrap();
    assert_eq!(died.status.signal(), Some(9), "{died:?}");
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.ino(), found.uid()), (inode, 0));
    chown(&path, Some(12345), Some(54321)).unwrap();
    let failed = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate"])
        .args(["-e", "inject=fallocate:error=ENOSPC:when=2+"])
        .arg(driver.executable())
        .args(adopt)
        .output()
        .unwrap();
    assert!(!failed.status.success(), "{failed:?}");
    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.ino(), found.uid(), found.gid()),
        (inode, 12345, 54321)
    );
    expect_same(&path, &content);
    assert_eq!(
        fs::read_dir(sandbox.pool().join("volumes"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(capacity(&driver).1, 0);
    let volume = persistent_volume(&json_of(&driver, &adopt));
    expect_same(&volume.image(&sandbox), &content);
    assert_eq!(capacity(&driver).1, 0);
}

fn kept(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let (path, content) = shared(&sandbox);
    chown(&path, Some(12345), Some(54321)).unwrap();
    let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    let failed = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate,renameat2"])
        .args(["-e", "inject=fallocate:error=ENOSPC:when=2+"])
        .args(["-e", "inject=renameat2:error=EIO:when=2"])
        .arg(driver.executable())
        .args(adopt)
        .output()
        .unwrap();
    assert!(!failed.status.success(), "{failed:?}");
    let said = String::from_utf8(failed.stderr).unwrap();
    for part in ["No space left", "is a volume", "Input/output error"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!path.exists());
    let handle = fs::read_link(sandbox.pool().join("names/a")).unwrap();
    let images = fs::read_dir(sandbox.pool().join("volumes")).unwrap();
    let images: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(images.len(), 1, "{images:?}");
    let found = fs::metadata(&images[0]).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode()), (0, 0, 0o100_600));
    let lock = Path::new("/run/flexvol/lock").join(images[0].file_name().unwrap());
    assert!(lock.exists(), "{}", lock.display());
    assert!(capacity(&driver).1 > 0);
    let volume = persistent_volume(&json_of(&driver, &adopt));
    assert_eq!(handle.to_str(), Some(volume.handle()));
    expect_same(&volume.image(&sandbox), &content);
    assert_eq!(capacity(&driver).1, 0);
}
