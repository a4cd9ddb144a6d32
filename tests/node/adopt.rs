//! Images of other origin, taken over as volumes or left alone.

use crate::{
    by_hand::{complaint, persistent_volume, said, said_json},
    sandbox,
};
use flexvol_testing::{
    Baseline, Driver, Need, Pod, Points, Sandbox, Test,
    images::{Blank, KINDS, Origin},
};
use std::{
    fs::{self, File},
    os::unix::{
        fs::{FileExt, MetadataExt, chown, symlink},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

const ALL: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

const MORE: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("btrfstune", "btrfs-progs"),
    Need::Tool("losetup", "mount"),
];

pub const TESTS: &[Test] = &[
    Test {
        name: "adopt: every file system keeps its data and grows",
        needs: ALL,
        run: filesystems,
    },
    Test {
        name: "adopt: what is not a whole file system is left as it is",
        needs: ALL,
        run: refused_content,
    },
    Test {
        name: "adopt: a file system with other data behind it is left as it is",
        needs: MORE,
        run: data_behind,
    },
    Test {
        name: "adopt: a file system that cannot be mounted, or not written, is left as it is",
        needs: MORE,
        run: unmountable,
    },
    Test {
        name: "adopt: an ext4 that asks something of every mount is left as it is",
        needs: MORE,
        run: demanding,
    },
    Test {
        name: "adopt: a blank image needs --format, and its first mount formats it",
        needs: ALL,
        run: blank,
    },
    Test {
        name: "adopt: killed at any change it makes, it is completed by a second time",
        needs: &[
            Need::Root,
            Need::Tool("mkfs.xfs", "xfsprogs"),
            Need::Tool("strace", "strace"),
        ],
        run: killed,
    },
    Test {
        name: "adopt: an image that cannot be written out in the pool is given back as it was",
        needs: &[
            Need::Root,
            Need::Tool("mkfs.xfs", "xfsprogs"),
            Need::Tool("strace", "strace"),
        ],
        run: unsynced,
    },
    Test {
        name: "adopt: an image in use, a copy and whatever is no plain file are refused",
        needs: ALL,
        run: refused_files,
    },
];

fn install(sandbox: &Sandbox) -> Driver {
    sandbox.install("flexvol.test/disk", false, "reserve = \"64Mi\"")
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// An image with a file system that holds one file, made without any of the driver's code.
fn image(sandbox: &Sandbox, name: &str, filesystem: &str) -> PathBuf {
    let path = sandbox.disk().join(name);
    // Not a whole number of mebibytes.
    let size = (400 << 20) + 8192;
    File::create_new(&path).unwrap().set_len(size).unwrap();
    let quiet = if filesystem == "ext3" || filesystem == "ext4" {
        "-qF"
    } else {
        "-q"
    };
    done(
        Command::new(format!("mkfs.{filesystem}"))
            .arg(quiet)
            .arg(&path),
    );
    let dir = sandbox.path(&format!("made-{name}"));
    fs::create_dir(&dir).unwrap();
    done(
        Command::new("mount")
            .args(["-o", "loop"])
            .arg(&path)
            .arg(&dir),
    );
    fs::write(dir.join("file"), "kept").unwrap();
    done(Command::new("umount").arg(&dir));
    path
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

/// When the file was last written, and when its owner or mode was: what takes less time to compare
/// than all of it.
fn changed_at(path: &Path) -> [(i64, i64); 2] {
    let metadata = fs::metadata(path).unwrap();
    [
        (metadata.mtime(), metadata.mtime_nsec()),
        (metadata.ctime(), metadata.ctime_nsec()),
    ]
}

fn filesystems(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox);
    for filesystem in ["xfs", "ext4", "ext3", "btrfs"] {
        let path = image(&sandbox, filesystem, filesystem);
        let inode = fs::metadata(&path).unwrap().ino();
        let arguments = ["adopt", path.to_str().unwrap(), "--name", filesystem];
        let arguments = [&arguments[..], &["--size", "600Mi", "-o", "json"]].concat();
        let volume = persistent_volume(&said_json(&driver, &arguments));
        assert_eq!(volume.filesystem, filesystem);
        assert!(!path.exists());
        let moved = fs::metadata(volume.image(&sandbox)).unwrap();
        assert_eq!((moved.ino(), moved.len()), (inode, 600 << 20));
        assert_eq!((moved.uid(), moved.mode() & 0o777), (0, 0o600));
        let again = persistent_volume(&said_json(&driver, &arguments));
        assert_eq!(again.options, volume.options, "a second time");
        // A wrong file, and the name of a volume of somebody else.
        let other = [&arguments[..], &["--namespace", "other"]].concat();
        assert!(complaint(&driver, &other).contains("of this name already"));

        let pod = Pod::new(&sandbox, &driver, &volume, filesystem);
        let _ = pod.mount("rw").success();
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
        let shown = said_json(&driver, &["show", filesystem, "-o", "json"]);
        let spans = shown["filesystem"].as_u64().unwrap();
        assert!(spans > 590 << 20, "{filesystem} did not follow: {shown}");
        let _ = pod.unmount().success();
        let _ = driver
            .call(&["delete".to_owned(), volume.json("rw")])
            .success();
        points.add(1);
    }
    before.without_space().expect(&sandbox, "deleted");
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
        let sum = sha256(&path);
        let why = complaint(&driver, &arguments);
        assert!(
            why.contains("left as it is") || why.contains("is missing"),
            "{}: {why}",
            kind.name
        );
        assert_eq!(sha256(&path), sum, "{} was changed", kind.name);
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

/// Why an image is not taken over: in words that have all these parts, and without a change of it.
fn left_alone(driver: &Driver, path: &Path, name: &str, parts: &[&str]) -> String {
    let before = changed_at(path);
    let arguments = ["adopt", path.to_str().unwrap(), "--name", name];
    let why = complaint(driver, &arguments);
    for part in parts.iter().chain(&["left as it is"]) {
        assert!(why.contains(part), "{name}: {why}");
    }
    assert_eq!(changed_at(path), before, "{name} was changed");
    why
}

/// Gives the command that the words have in brackets; then the image is taken over, and deleted.
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
    let volume = persistent_volume(&said_json(driver, &arguments));
    let _ = driver
        .call(&["delete".to_owned(), volume.json("rw")])
        .success();
}

/// The file system ends long before the image does, and somebody else uses the rest. Once that is zero,
/// written or never, the image is taken over.
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

/// Its superblock describes a whole file system, and only the kernel knows that it is of no use.
fn unmountable(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox);
    for (name, filesystem, reason) in [
        ("journal", "ext4", "cannot mount"),
        // Some kernels mount it, for reading.
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

/// What the message says to do is all that there is to do.
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

/// Makes the image an ext4 with its journal on another device, which is gone afterwards.
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

fn blank(points: &Points) {
    let sandbox = sandbox();
    let pool = "reserve = \"64Mi\"\nfilesystem = \"ext4\"";
    let driver = sandbox.install("flexvol.test/disk", false, pool);
    for (number, blank) in Blank::ALL.into_iter().enumerate() {
        let path = sandbox.disk().join(format!("blank-{number}"));
        blank.write(&path, 3 << 20);
        let name = format!("blank-{number}");
        let arguments = ["adopt", path.to_str().unwrap(), "--name", &name];
        assert!(
            complaint(&driver, &arguments).contains("--format"),
            "{blank:?}"
        );
        assert!(path.exists());
        let arguments = [&arguments[..], &["--format", "-o", "json"]].concat();
        let mut volume = persistent_volume(&said_json(&driver, &arguments));
        volume.filesystem = "ext4";
        let size = fs::metadata(volume.image(&sandbox)).unwrap().len();
        assert!(size > 3 << 20, "too small for any file system");
        let pod = Pod::new(&sandbox, &driver, &volume, "a");
        let _ = pod.mount("rw").success();
        let _ = pod.unmount().success();
        let _ = driver
            .call(&["delete".to_owned(), volume.json("rw")])
            .success();
        points.add(1);
    }
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
        let text = complaint(&driver, &arguments);
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
    done(Command::new("umount").arg(&dir));

    let copy = sandbox.disk().join("copy");
    fs::copy(&path, &copy).unwrap();
    said(
        &driver,
        &["adopt", path.to_str().unwrap(), "--name", "data"],
    );
    refused(&copy, "same UUID");
    let taken = ["adopt", copy.to_str().unwrap(), "--name", "data"];
    let why = complaint(&driver, &taken);
    assert!(why.contains("of this name already"), "{why}");
    let shown = said_json(&driver, &["show", "data", "-o", "json"]);
    let volume = sandbox
        .pool()
        .join("volumes")
        .join(shown["id"].as_str().unwrap());
    refused(&volume, "is a volume of the pool already");
    // The name is told first, and not instead of what is wrong with the image.
    let nothing = sandbox.disk().join("data.img");
    fs::create_dir(&nothing).unwrap();
    let taken = ["adopt", nothing.to_str().unwrap(), "--name", "data"];
    let why = complaint(&driver, &taken);
    assert!(
        why.contains("of this name already") && why.contains("is not a plain file"),
        "{why}"
    );
    assert_eq!(
        said_json(&driver, &["list", "-o", "json"])["volumes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

fn killed(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox).without_space();
    for (call, nth) in [
        ("ioctl", 4),
        // While the file system is mounted.
        ("fstatfs", 1),
        ("symlinkat", 1),
        ("fchown", 1),
        ("fchmod", 1),
        ("fsetxattr", 1),
        ("renameat2", 1),
        ("fsync", 2),
        ("fsync", 3),
        ("fsync", 4),
        ("ftruncate", 1),
    ] {
        let path = image(&sandbox, &format!("{call}-{nth}"), "xfs");
        let arguments = [
            "adopt",
            path.to_str().unwrap(),
            "--name",
            "data",
            "-o",
            "json",
        ];
        let inject = format!("inject={call}:signal=KILL:when={nth}");
        let trace = format!("trace={call}");
        let died = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", &trace, "-e", &inject])
            .arg(driver.executable())
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(died.status.signal(), Some(9), "{call} {nth}: {died:?}");
        let volume = persistent_volume(&said_json(&driver, &arguments));
        let pod = Pod::new(&sandbox, &driver, &volume, "a");
        let _ = pod.mount("rw").success();
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
        let _ = pod.unmount().success();
        let _ = driver
            .call(&["delete".to_owned(), volume.json("rw")])
            .success();
        before.expect(&sandbox, &format!("killed at {call} {nth}"));
        points.add(1);
    }
}

fn unsynced(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let path = image(&sandbox, "image", "xfs");
    chown(&path, Some(12345), Some(54321)).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    let arguments = ["adopt", path.to_str().unwrap(), "--name", "data"];
    let arguments = [&arguments[..], &["-o", "json"]].concat();
    // What is the pool's, the old directory's, the mark's, and the file's.
    for (call, when) in [
        ("fsync", "7"),
        ("fsync", "7+"),
        ("fsync", "6"),
        ("fsync", "6+"),
        ("fsync", "5"),
        ("fsync", "4"),
        ("fsync", "3"),
        ("fsync", "2"),
        ("renameat2", "1"),
    ] {
        let failed = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}")])
            .args(["-e", &format!("inject={call}:error=EIO:when={when}")])
            .arg(driver.executable())
            .args(&arguments)
            .output()
            .unwrap();
        assert!(!failed.status.success(), "{call} {when}: {failed:?}");
        let found = fs::metadata(&path).unwrap();
        assert_eq!(
            (found.ino(), found.uid(), found.gid()),
            (inode, 12345, 54321),
            "{call} {when}"
        );
        let marked = rustix::fs::getxattr(&path, "trusted.flexvol", &mut [0_u8; 4096]);
        assert_eq!(marked, Err(rustix::io::Errno::NODATA), "{call} {when}");
        let volumes = fs::read_dir(sandbox.pool().join("volumes")).unwrap();
        assert_eq!(volumes.count(), 0, "{call} {when}");
        points.add(1);
    }
    let volume = persistent_volume(&said_json(&driver, &arguments));
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    let _ = pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
    let _ = pod.unmount().success();
}
