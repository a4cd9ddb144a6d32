//! Mounts of real file systems.

pub mod unmount;

use crate::bench::{
    Bench, attach, attach_as, make, mount, mounted, patiently, run, unmount, unused,
};
use flexvol_host::{
    Allocation,
    mount::{Detached, Mounted, Target},
    mountinfo,
};
use flexvol_sdk::{ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, tests};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::Path,
};

const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");
const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
const BTRFS: Need = Need::Tool("mkfs.btrfs", "btrfs-progs");

tests! {
    "a detached mount that is dropped leaves nothing", &[Need::Root, E2FS] => dropped;
    "every file system is mounted writable and read-only at once", &[Need::Root, E2FS, XFS, BTRFS]
        => both_ways;
    "a btrfs with another device than its own is refused, and not mounted", &[Need::Root, BTRFS, Need::Tool("btrfs", "btrfs-progs")]
        => other_device;
    "what an ext's superblock asks for harms no node", &[Need::Root, E2FS, Need::Tool("tune2fs", "e2fsprogs")]
        => policies;
    "only a real directory is mounted on", &[Need::Root, E2FS] => targets;
    "mounts are found at any name", &[Need::Root, E2FS] => names;
    "a device without the file system is refused and not mounted", &[Need::Root, E2FS] => wrong;
}

fn dropped(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Ext4, 32);
    let mount = Detached::new(&device, Filesystem::Ext4).unwrap();
    assert_eq!(mountinfo::mounts_of(device.number()).unwrap(), []);
    assert_eq!(device.claim().unwrap_err().kind(), ErrorKind::Busy);
    drop(mount);
    unused(&device);
}

fn other_device(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Btrfs, 300);
    let other = attach(&bench.image(300));
    let directory = bench.directory("mounted");
    mount(&device, Filesystem::Btrfs, &directory, false);
    let add = ["device", "add", "-f"].map(OsStr::new);
    let add = [add[0], add[1], add[2], other.path().as_os_str()];
    run("btrfs", add, &directory);
    let refused = Detached::new(&device, Filesystem::Btrfs).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage);
    let name = other.path().file_name().unwrap().to_str().unwrap();
    assert!(refused.to_string().contains(name), "{refused}");
    let remove = [
        OsStr::new("device"),
        OsStr::new("remove"),
        other.path().as_os_str(),
    ];
    run("btrfs", remove, &directory);
    drop(Detached::new(&device, Filesystem::Btrfs).unwrap());
    unmount(&directory);
    unused(&device);
    unused(&other);
}

fn both_ways(points: &Points) {
    let bench = Bench::new();
    for filesystem in Filesystem::ALL {
        let device = bench.formatted(filesystem, 300);
        let writable = bench.directory(format!("{filesystem}-rw"));
        let read_only = bench.directory(format!("{filesystem}-ro"));
        // Both orders are possible, and neither mount changes the other.
        let mut order = [(&writable, false), (&read_only, true)];
        for _ in 0..2 {
            for (directory, read_only) in order {
                assert_eq!(mounted(directory), None);
                mount(&device, filesystem, directory, read_only);
                let found = Mounted {
                    devices: vec![device.number()],
                    read_only,
                };
                assert_eq!(mounted(directory), Some(found), "{filesystem}");
            }
            fs::write(writable.join("file"), "text").unwrap();
            assert_eq!(fs::read(read_only.join("file")).unwrap(), b"text");
            let refused = fs::write(read_only.join("file"), "other").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
            for options in options_below(&bench.path("")) {
                assert!(
                    options.contains("nosuid") && options.contains("nodev"),
                    "{options}"
                );
            }
            assert_eq!(mountinfo::mounts_of(device.number()).unwrap().len(), 2);
            turn(&read_only, &writable);
            assert!(unmount(&writable) && unmount(&read_only));
            unused(&device);
            order.reverse();
            points.add(2);
        }
    }
}

/// Remounts it writable and read-only, also while a file is open through the other mount.
fn turn(read_only: &Path, writable: &Path) {
    let target = Target::open(read_only).unwrap().unwrap();
    let open = File::options()
        .write(true)
        .open(writable.join("file"))
        .unwrap();
    target.set_read_only(false).unwrap();
    assert!(!mounted(read_only).unwrap().read_only);
    let own = File::options()
        .write(true)
        .open(read_only.join("file"))
        .unwrap();
    let error = target.set_read_only(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(own);
    patiently(|| target.set_read_only(true));
    assert!(mounted(read_only).unwrap().read_only);
    assert!(!mounted(writable).unwrap().read_only);
    target.sync().unwrap();
    drop(open);
}

fn options_below(root: &Path) -> Vec<String> {
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let root = root.to_str().unwrap().trim_end_matches('/');
    let fields = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields[4].starts_with(root))
        .map(|fields| fields[5].to_owned())
        .collect()
}

fn targets(points: &Points) {
    let bench = Bench::new();
    let directory = bench.directory("directory");
    symlink(&directory, bench.path("link")).unwrap();
    fs::write(bench.path("file"), "").unwrap();
    for name in ["link", "file"] {
        for made in [
            Target::open(&bench.path(name)).map(|_| ()),
            Target::create(&bench.path(name)).map(|_| ()),
        ] {
            assert_eq!(made.unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        assert!(!unmount(&bench.path(name)));
        points.add(3);
    }
    for path in ["", ".", "relative", "/", "/x/..", "/run/."] {
        let error = Target::open(path.as_ref()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{path:?}");
        points.add(1);
    }
    // A symbolic link in a parent directory is the caller's choice.
    assert!(Target::open(&bench.path("link/below")).unwrap().is_none());
    assert!(Target::open(&bench.path("none/below")).unwrap().is_none());
    assert!(!unmount(&bench.path("none/below")));
    let error = Target::create(&bench.path("none/below")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let target = Target::create(&bench.path("link/below/")).unwrap();
    assert!(target.is_empty().unwrap());
    assert_eq!(target.mounted().unwrap(), None);
    assert!(
        !Target::open(&directory)
            .unwrap()
            .unwrap()
            .is_empty()
            .unwrap()
    );
    let error = target.set_read_only(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

fn names(points: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Ext4, 32);
    for name in [
        &b"a b"[..],
        b"new\nline",
        b"tab\t",
        b"back\\slash",
        b"\\040",
        b"#hash",
        b"\xff\xfe",
        b"deleted (deleted)",
    ] {
        let name = OsStr::from_bytes(name);
        let directory = bench.directory(name);
        mount(&device, Filesystem::Ext4, &directory, false);
        let found = mountinfo::mounts_of(device.number()).unwrap();
        assert_eq!(found.len(), 1, "{name:?}");
        assert_eq!(found[0].mount_point, directory);
        assert!(unmount(&directory));
        points.add(1);
    }
}

fn policies(points: &Points) {
    let bench = Bench::new();
    let asked = [
        ["-e", "panic"],
        ["-e", "continue"],
        ["-o", "nobarrier,discard"],
        ["-E", "mount_opts=errors=panic"],
        ["-E", "mount_opts=nobarrier"],
    ];
    for (number, asked) in asked.into_iter().enumerate() {
        for filesystem in [Filesystem::Ext3, Filesystem::Ext4] {
            for read_only in [false, true] {
                let image = bench.image(32);
                make(&attach(&image), filesystem, false);
                // The mount must not discard blocks.
                let device = attach_as(&image, Allocation::Full);
                run("tune2fs", asked.map(OsStr::new), device.path());
                let directory = bench.directory(format!("{number}-{filesystem}-{read_only}"));
                mount(&device, filesystem, &directory, read_only);
                let kernel_name = fs::read_link(format!("/sys/dev/block/{}", device.number()));
                let kernel_name = kernel_name.unwrap().file_name().unwrap().to_owned();
                let options = Path::new("/proc/fs/ext4").join(kernel_name).join("options");
                let options = fs::read_to_string(options).unwrap();
                for expected in ["errors=remount-ro", "barrier", "nodiscard"] {
                    assert!(
                        options.lines().any(|option| option == expected),
                        "{asked:?}: no {expected} in {options}"
                    );
                }
                assert!(unmount(&directory));
                points.add(1);
            }
        }
    }
}

fn wrong(_: &Points) {
    let bench = Bench::new();
    let device = attach(&bench.image(32));
    for filesystem in Filesystem::ALL {
        let error = Detached::new(&device, filesystem).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage, "{}", error.report());
        assert!(!error.to_string().contains("/dev"), "{error}");
        unused(&device);
    }
    let device = bench.formatted(Filesystem::Ext4, 32);
    let error = Detached::new(&device, Filesystem::Ext3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{}", error.report());
}
