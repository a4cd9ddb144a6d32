//! Adopts foreign images as volumes, also after a kill, or gives them back unchanged.

pub mod left_alone;
pub mod shared;

use crate::{
    by_hand::{error_of, json_of, persistent_volume},
    sandbox,
};
use flexvol_testing::{Baseline, Driver, Need, Pod, Points, Sandbox, images::Blank, tests};
use std::{
    fs::{self, File},
    os::unix::{
        fs::{MetadataExt, chown},
        process::ExitStatusExt,
    },
    path::PathBuf,
    process::Command,
};

const ALL: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

tests! {
    "adopt: every file system keeps its data and grows", ALL => filesystems;
    "adopt: a file that is not there is no volume of its name", ALL => mistyped;
    "adopt: a blank image needs --format, and its first mount formats it", ALL => blank;
    "adopt: killed at any change it makes, it is completed by a second time", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("strace", "strace")]
        => killed;
    "adopt: an image that cannot be written out in the pool is given back as it was", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("strace", "strace")]
        => unsynced;
}

fn install(sandbox: &Sandbox) -> Driver {
    sandbox.install("flexvol.test/disk", false, "reserve = \"64Mi\"")
}

pub fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Makes an image with a file system that holds one file, without the driver's code.
fn image(sandbox: &Sandbox, name: &str, filesystem: &str) -> PathBuf {
    let path = sandbox.disk().join(name);
    // Not a multiple of a mebibyte.
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

fn filesystems(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox);
    for filesystem in ["xfs", "ext4", "ext3", "btrfs"] {
        let path = image(&sandbox, filesystem, filesystem);
        let inode = fs::metadata(&path).unwrap().ino();
        let arguments = ["adopt", path.to_str().unwrap(), "--name", filesystem];
        let arguments = [&arguments[..], &["--size", "600Mi", "-o", "json"]].concat();
        let volume = persistent_volume(&json_of(&driver, &arguments));
        assert_eq!(volume.filesystem, filesystem);
        assert!(!path.exists());
        let moved = fs::metadata(volume.image(&sandbox)).unwrap();
        assert_eq!((moved.ino(), moved.len()), (inode, 600 << 20));
        assert_eq!((moved.uid(), moved.mode() & 0o777), (0, 0o600));
        let again = persistent_volume(&json_of(&driver, &arguments));
        assert_eq!(again.options, volume.options, "a second time");
        // The name belongs to a volume of another namespace.
        let other = [&arguments[..], &["--namespace", "other"]].concat();
        assert!(error_of(&driver, &other).contains("of this name already"));

        let pod = Pod::new(&sandbox, &driver, &volume, filesystem);
        let _ = pod.mount("rw").success();
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
        let shown = json_of(&driver, &["show", filesystem, "-o", "json"]);
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
            error_of(&driver, &arguments).contains("--format"),
            "{blank:?}"
        );
        assert!(path.exists());
        let arguments = [&arguments[..], &["--format", "-o", "json"]].concat();
        let mut volume = persistent_volume(&json_of(&driver, &arguments));
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

/// Adopting a mistyped path must fail, because the caller would believe that the data is restored.
fn mistyped(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let made = ["create", "made", "--size", "64Mi", "--fs", "ext4"];
    let made = persistent_volume(&json_of(&driver, &[&made[..], &["-o", "json"]].concat()));
    let taken = image(&sandbox, "backup.img", "ext4");
    let taken = ["adopt", taken.to_str().unwrap(), "--name", "taken"];
    let taken = persistent_volume(&json_of(&driver, &[&taken[..], &["-o", "json"]].concat()));
    let wrong = sandbox.disk().join("backup-of-tpyo.img");
    for (name, volume) in [("made", made), ("taken", taken)] {
        let size = || fs::metadata(volume.image(&sandbox)).unwrap().len();
        let before = size();
        let arguments = ["adopt", wrong.to_str().unwrap(), "--name", name];
        let said = error_of(&driver, &[&arguments[..], &["--size", "500Mi"]].concat());
        assert!(said.contains("there is no such image"), "{said}");
        assert!(said.contains("was not made of it"), "{said}");
        assert_eq!(size(), before, "{name}");
        points.add(1);
    }
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
        let volume = persistent_volume(&json_of(&driver, &arguments));
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
    // The syncs of the pool, the old directory, the mark, and the file.
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
    let volume = persistent_volume(&json_of(&driver, &arguments));
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    let _ = pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
    let _ = pod.unmount().success();
}
