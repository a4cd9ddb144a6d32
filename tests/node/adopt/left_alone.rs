//! Images that are refused, and stay unchanged.

use super::{ALL, done, image, install};
use crate::{
    by_hand::{error_of, json_of, persistent_volume, stdout_of},
    format_guard::digests,
    sandbox,
};
use flexvol_testing::{
    Baseline, Driver, Need, Points, Sandbox,
    images::{KINDS, Origin},
    tests,
};
use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

tests! {
    "adopt: what is not a whole file system is left as it is", ALL => refused_content;
    "adopt: a file system with other data behind it is left as it is", MORE => data_behind;
    "adopt: a file system that cannot be mounted, or not written, is left as it is", MORE
        => unmountable;
    "adopt: an ext4 that asks something of every mount is left as it is", MORE => demanding;
    "adopt: an image in use, a copy and whatever is no plain file are refused", MORE
        => refused_files;
}

const MORE: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("btrfstune", "btrfs-progs"),
    Need::Tool("losetup", "mount"),
];

/// Times of the last write and of the last change of owner or mode. They are faster to compare than the
/// content.
fn changed_at(path: &Path) -> [(i64, i64); 2] {
    let metadata = fs::metadata(path).unwrap();
    [
        (metadata.mtime(), metadata.mtime_nsec()),
        (metadata.ctime(), metadata.ctime_nsec()),
    ]
}

fn refused_content(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox);
    for (number, kind) in KINDS.iter().enumerate() {
        let content = kind.make(&sandbox.path(&format!("scratch-{number}")));
        let path = sandbox.disk().join(format!("image-{number}"));
        content.write(&path, false);
        let arguments = [
            "adopt",
            path.to_str().unwrap(),
            "--name",
            "taken",
            "--format",
        ];
        let whole = matches!(kind.origin, Origin::Tool(tool)
            if ["mkfs.xfs", "mkfs.ext3", "mkfs.ext4", "mkfs.btrfs"].contains(&tool));
        if whole {
            continue;
        }
        let sum = digests(&[&path]);
        let why = error_of(&driver, &arguments);
        assert!(
            why.contains("left as it is") || why.contains("is missing"),
            "{}: {why}",
            kind.name
        );
        assert_eq!(digests(&[&path]), sum, "{} was changed", kind.name);
        fs::remove_file(&path).unwrap();
        points.add(1);
    }
    for entry in fs::read_dir(sandbox.disk()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
    before.expect(&sandbox, "after refusals");
}

/// Checks that an image is refused with a message that has all these parts, and stays unchanged.
fn left_alone(driver: &Driver, path: &Path, name: &str, parts: &[&str]) -> String {
    let before = changed_at(path);
    let arguments = ["adopt", path.to_str().unwrap(), "--name", name];
    let why = error_of(driver, &arguments);
    for part in parts.iter().chain(&["left as it is"]) {
        assert!(why.contains(part), "{name}: {why}");
    }
    assert_eq!(changed_at(path), before, "{name} was changed");
    why
}

/// Runs the command that the message has in parentheses. Then the image can be adopted and deleted.
fn adopted_as_told(driver: &Driver, path: &Path, name: &str, why: &str) {
    let command = why.split_once('(').unwrap().1.split_once(')').unwrap().0;
    let mut words = command.split(' ');
    let mut change = Command::new(words.next().unwrap());
    done(change.args(words).arg(path));
    let arguments = [
        "adopt",
        path.to_str().unwrap(),
        "--name",
        name,
        "-o",
        "json",
    ];
    let volume = persistent_volume(&json_of(driver, &arguments));
    let _ = driver
        .call(&["delete".to_owned(), volume.json("rw")])
        .success();
}

/// The file system ends long before the image does, and other data is behind it. The image is adopted once that
/// part is zero, whether by writing or never written.
fn data_behind(points: &Points) {
    const SPANS: u64 = 150 << 20;
    const SIZE: u64 = 200 << 20;
    let sandbox = sandbox();
    let driver = install(&sandbox);
    for filesystem in ["ext4", "xfs", "btrfs"] {
        for at in [SPANS, SIZE - 1] {
            let path = sandbox.disk().join(filesystem);
            let file = File::create_new(&path).unwrap();
            file.set_len(SPANS).unwrap();
            let quiet = if filesystem == "ext4" { "-qF" } else { "-q" };
            let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
            if filesystem == "xfs" {
                mkfs.arg("--unsupported");
            }
            done(mkfs.arg(quiet).arg(&path));
            file.set_len(SIZE).unwrap();
            file.write_all_at(b"x", at).unwrap();
            drop(file);
            let name = format!("{filesystem}-{at}");
            let why = left_alone(&driver, &path, &name, &["has 200Mi", "the first 150Mi"]);
            points.add(1);

            adopted_as_told(&driver, &path, &name, &why);
            points.add(1);
        }
    }
}

/// The superblock describes a complete file system, but the kernel cannot mount it.
fn unmountable(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox);
    for (name, filesystem, reason) in [
        ("journal", "ext4", "cannot mount"),
        // Some kernels mount it read-only.
        ("seed", "btrfs", ""),
        ("read-only", "ext4", "can only be read"),
    ] {
        let path = image(&sandbox, name, filesystem);
        match name {
            "journal" => journal_elsewhere(&sandbox, &path),
            "seed" => done(Command::new("btrfstune").args(["-S", "1"]).arg(&path)),
            _ => done(Command::new("tune2fs").args(["-O", name]).arg(&path)),
        }
        left_alone(&driver, &path, name, &[reason]);
        fs::remove_file(&path).unwrap();
        before.expect(&sandbox, name);
        points.add(1);
    }
}

/// The instructions in the message suffice.
fn demanding(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    for (name, options, reason) in [
        ("options", &["-E", "mount_opts=noload"][..], "mount options"),
        ("mmp", &["-O", "mmp", "-E", "mmp_update_interval=1"], "wait"),
    ] {
        let path = image(&sandbox, name, "ext4");
        done(Command::new("tune2fs").args(options).arg(&path));
        let why = left_alone(&driver, &path, name, &[reason]);
        adopted_as_told(&driver, &path, name, &why);
        points.add(1);
    }
}

/// Makes the image an ext4 with its journal on another device, which is removed afterwards.
fn journal_elsewhere(sandbox: &Sandbox, path: &Path) {
    let file = sandbox.path("journal");
    File::create_new(&file).unwrap().set_len(16 << 20).unwrap();
    let attached = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(attached.status.success(), "{attached:?}");
    let device = String::from_utf8(attached.stdout).unwrap();
    let device = device.trim();
    let quiet = ["-qF", "-b", "4096"];
    let mut journal = Command::new("mke2fs");
    done(journal.args(quiet).args(["-O", "journal_dev", device]));
    let mut filesystem = Command::new("mkfs.ext4");
    let place = format!("device={device}");
    done(filesystem.args(quiet).args(["-J", &place]).arg(path));
    done(Command::new("losetup").args(["--detach", device]));
}

/// Opens the loop device of an image.
fn looked_at(image: &Path) -> File {
    let listed = Command::new("losetup")
        .args(["--noheadings", "--output", "NAME", "--associated"])
        .arg(image)
        .output()
        .unwrap();
    File::open(String::from_utf8(listed.stdout).unwrap().trim()).unwrap()
}

fn refused_files(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let refused = |path: &Path, why: &str| {
        let arguments = [
            "adopt",
            path.to_str().unwrap(),
            "--name",
            "other",
            "--format",
        ];
        let text = error_of(&driver, &arguments);
        assert!(text.contains(why), "{}: {text}", path.display());
        points.add(1);
    };
    let path = image(&sandbox, "image", "ext4");
    let missing = sandbox.disk().join("missing");
    refused(&missing, "there is no such image");
    refused(&sandbox.disk(), "is not a plain file");
    let link = sandbox.disk().join("link");
    symlink(&path, &link).unwrap();
    refused(&link, "is a symbolic link");
    fs::hard_link(&path, sandbox.disk().join("hard")).unwrap();
    refused(&path, "has a second name");
    fs::remove_file(sandbox.disk().join("hard")).unwrap();
    let elsewhere = sandbox.path("elsewhere");
    fs::write(&elsewhere, [0; 4096]).unwrap();
    refused(&elsewhere, "lies on another file system");
    let open = File::open(&path).unwrap();
    refused(&path, "is in use");
    drop(open);
    let dir = sandbox.path("made-image");
    done(
        Command::new("mount")
            .args(["-o", "loop"])
            .arg(&path)
            .arg(&dir),
    );
    refused(&path, "is in use");

    let copy = sandbox.disk().join("copy");
    fs::copy(&path, &copy).unwrap();
    // The device stays open for a moment, as when udev probes it.
    let looked_at = looked_at(&path);
    done(Command::new("umount").arg(&dir));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            drop(looked_at);
        });
        stdout_of(
            &driver,
            &["adopt", path.to_str().unwrap(), "--name", "data"],
        );
    });
    refused(&copy, "same UUID");
    let taken = ["adopt", copy.to_str().unwrap(), "--name", "data"];
    let why = error_of(&driver, &taken);
    assert!(why.contains("of this name already"), "{why}");
    let shown = json_of(&driver, &["show", "data", "-o", "json"]);
    let volume = sandbox
        .pool()
        .join("volumes")
        .join(shown["id"].as_str().unwrap());
    refused(&volume, "is a volume of the pool already");
    // The message must have the name in addition to the fault of the image.
    let nothing = sandbox.disk().join("data.img");
    fs::create_dir(&nothing).unwrap();
    let taken = ["adopt", nothing.to_str().unwrap(), "--name", "data"];
    let why = error_of(&driver, &taken);
    assert!(
        why.contains("of this name already") && why.contains("is not a plain file"),
        "{why}"
    );
    assert_eq!(
        json_of(&driver, &["list", "-o", "json"])["volumes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}
