//! Btrfs writes overwritten blocks elsewhere: that space is part of what the pool promises.

use crate::{
    by_hand::{error_of, json_of, persistent_volume},
    dir,
    full::expect_exhausted,
    node::{self, Backend, MIB, Node, UID, expect_written, write},
    promised::{blocks, capacity, doctor, install, pool},
};
use flexvol_testing::{Need, PersistentVolume, Pod, Points, request, tests};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

tests! {
    "adopt on btrfs: an image that is copy-on-write is left as it is, and its copy in place is a volume", LOOP
        => adopted;
    "an image on btrfs that became copy-on-write is counted as missing until it is copied", LOOP
        => found;
    "a pool in a btrfs directory that is compressed, or must not be, has volumes in place", LOOP
        => compressed;
    "dir on btrfs: what a snapshot shares is promised to nobody else, and can be overwritten", dir::BTRFS
        => snapshot;
}

const LOOP: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("chattr", "e2fsprogs"),
    Need::Tool("strace", "strace"),
];
const SIZE: u64 = 300 * MIB;

fn sh(script: &str, directory: &Path) {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(directory);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

fn settle(directory: &Path) {
    nix::unistd::syncfs(File::open(directory).unwrap()).unwrap();
}

/// Makes an ext4 of which every block was written.
fn copy_on_write(directory: &Path) -> PathBuf {
    sh(
        "head -c 300M /dev/urandom > image; mkfs.ext4 -qF -E nodiscard image; sync image",
        directory,
    );
    directory.join("image")
}

fn adopted(points: &Points) {
    let sandbox = pool("btrfs");
    let disk = sandbox.disk();
    let driver = install(&sandbox, "");
    let path = copy_on_write(&disk);
    let adopt = |name: &str| {
        let path = disk.join(name).to_str().unwrap().to_owned();
        ["adopt", &path, "--name", "a", "-o", "json"].map(str::to_owned)
    };
    let refused = adopt("image");
    let refused: Vec<_> = refused.iter().map(String::as_str).collect();
    let has = blocks(&path);
    let why = error_of(&driver, &refused);
    assert!(why.contains("copy-on-write"), "{why}");
    assert_eq!(blocks(&path), has);
    assert_eq!(capacity(&driver).1, 0);
    points.add(1);

    // The commands of the message.
    for step in [
        "touch NEW",
        "chattr +C NEW",
        "cp --reflink=never --preserve=all IMAGE NEW",
    ] {
        assert!(why.contains(step), "{why}");
        sh(&step.replace("IMAGE", "image").replace("NEW", "new"), &disk);
    }
    fs::remove_file(&path).unwrap();
    settle(&disk);
    // A file that shares the blocks keeps overwritten ones, even without copy-on-write.
    sh(
        "mkdir c; chattr +C c; cp --reflink=always new c/shared",
        &disk,
    );
    let shared = adopt("c/shared");
    let shared: Vec<_> = shared.iter().map(String::as_str).collect();
    // It must be refused before it is moved: the rename would fail with another message.
    let refused = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=renameat2"])
        .args(["-e", "inject=renameat2:error=EIO"])
        .arg(driver.executable())
        .args(&shared)
        .output()
        .unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("shares blocks"), "{why}");
    fs::remove_file(disk.join("c/shared")).unwrap();
    settle(&disk);
    let whole = adopt("new");
    let whole: Vec<_> = whole.iter().map(String::as_str).collect();
    let volume = persistent_volume(&json_of(&driver, &whole));
    // A second `adopt` reports the present state.
    let copy = format!(
        "cp --reflink=always '{}' c/copy",
        volume.image(&sandbox).display()
    );
    sh(&copy, &disk);
    settle(&disk);
    let why = error_of(&driver, &whole);
    assert!(why.contains("shares blocks"), "{why}");
    fs::remove_file(disk.join("c/copy")).unwrap();
    settle(&disk);
    let again = persistent_volume(&json_of(&driver, &whole));
    assert_eq!(again.handle(), volume.handle());
    let (room, missing) = capacity(&driver);
    assert_eq!(missing, 0);
    points.add(2);

    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    write(pod.dir(), "file", 200).unwrap();
    let _ = sandbox.fill_disk(MIB);
    assert!(room > MIB);
    for _ in 0..3 {
        write(pod.dir(), "file", 200).unwrap();
    }
    expect_written(pod.dir(), "file", 200);
    pod.unmount().success();
    points.add(1);

    let sandbox = pool("btrfs");
    let driver = install(&sandbox, "thin = true");
    let path = copy_on_write(&sandbox.disk());
    let thin = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    let volume = persistent_volume(&json_of(&driver, &thin));
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    pod.unmount().success();
    points.add(1);
}

fn compressed(points: &Points) {
    for flag in ["+c", "+m"] {
        let sandbox = pool("btrfs");
        let driver = install(&sandbox, "");
        let first = PersistentVolume::provision(&driver, "a", "ext4", SIZE).image(&sandbox);
        sh(&format!("chattr {flag} ."), first.parent().unwrap());
        let volume = PersistentVolume::provision(&driver, "b", "ext4", SIZE);
        let pod = Pod::new(&sandbox, &driver, &volume, UID);
        pod.mount("rw").success();
        sh("head -c 100M /dev/zero > file; sync file", pod.dir());
        pod.unmount().success();
        assert_eq!(blocks(&volume.image(&sandbox)), SIZE);
        assert_eq!(capacity(&driver).1, 0);
        points.add(1);
    }
}

fn found(points: &Points) {
    let sandbox = pool("btrfs");
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "ext4", SIZE);
    let image = volume.image(&sandbox);
    let name = image.file_name().unwrap().to_str().unwrap();
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    write(pod.dir(), "file", 100).unwrap();
    pod.unmount().success();
    let (room, missing) = capacity(&driver);
    assert_eq!(missing, 0);
    // As `rsync` copies it to another disk.
    let directory = image.parent().unwrap();
    sh(
        &format!("cp --reflink=never --preserve=all {name} x; sync x; mv x {name}"),
        directory,
    );
    settle(directory);
    let (now, missing) = capacity(&driver);
    assert_eq!(missing, SIZE);
    assert!(now <= room - SIZE + 8 * MIB, "{room}, then {now}");
    expect_exhausted(&driver.call(&["provision", &request("b", now + 20 * MIB)]));
    points.add(1);

    // The volume can be used nevertheless.
    pod.mount("rw").success();
    expect_written(pod.dir(), "file", 100);
    pod.unmount().success();
    assert_eq!(capacity(&driver).1, SIZE);
    let said = doctor(&sandbox, &driver);
    assert!(said.contains("copy-on-write: 1"), "{said}");
    points.add(1);

    let line = said.lines().find_map(|line| line.split_once(": cd "));
    let script = format!("cd {}", line.expect(&said).1.replace("IMAGE", name));
    sh(&script, Path::new("/"));
    settle(directory);
    assert_eq!(capacity(&driver).1, 0);
    assert!(!doctor(&sandbox, &driver).contains("lack some"));
    pod.mount("rw").success();
    let _ = sandbox.fill_disk(MIB);
    expect_written(pod.dir(), "file", 100);
    for _ in 0..3 {
        write(pod.dir(), "file", 200).unwrap();
    }
    pod.unmount().success();
    points.add(1);
}

fn snapshot(points: &Points) {
    const WRITTEN: usize = 200;
    let backend = Backend::Dir("btrfs");
    let Node {
        sandbox, driver, ..
    } = Node::on(backend, backend.sandbox(1200), false, "");
    let disk = sandbox.disk();
    let room = || {
        settle(&disk);
        node::capacity(&driver)
    };
    let volume = PersistentVolume::provision(&driver, "a", "", SIZE);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    // In small extents, because an extent counts as a whole while any part of it is referenced.
    let dd = "dd if=/dev/zero of=file bs=1M conv=notrunc oflag=sync status=none count";
    let overwrite = format!("{dd}={WRITTEN}");
    sh(&overwrite, pod.dir());
    let before = room();
    let taken = disk.join("snapshot");
    let shown = volume.root(&sandbox).display().to_string();
    sh(
        &format!("btrfs subvolume snapshot -r {shown} {}", taken.display()),
        &disk,
    );
    let now = room();
    let owed = WRITTEN as u64 * MIB;
    assert!(now + owed <= before + 8 * MIB, "{before}, then {now}");
    points.add(1);

    let other = PersistentVolume::provision(&driver, "b", "", now);
    let second = Pod::new(
        &sandbox,
        &driver,
        &other,
        "0b1e55ed-0000-4000-8000-000000000002",
    );
    second.mount("rw").success();
    let mebibytes = usize::try_from(now / MIB).unwrap() - 8;
    write(second.dir(), "file", mebibytes).unwrap();
    assert!(!doctor(&sandbox, &driver).contains("more than is free"));
    sh(&overwrite, pod.dir());
    points.add(1);

    // Other data took the space, and a second snapshot keeps the rest.
    sh(
        &format!("btrfs subvolume snapshot -r {shown} {}2", taken.display()),
        &disk,
    );
    let filler = sandbox.fill_disk(8 * MIB);
    assert_eq!(room(), 0);
    let said = doctor(&sandbox, &driver);
    assert!(said.contains("more than is free"), "{said}");
    fs::remove_file(filler).unwrap();
    points.add(1);
    pod.unmount().success();
    second.unmount().success();
}
