//! Growth of real file systems.

use crate::bench::{Begun, Bench, attach, guard, make, mount, patiently, resize, run, unmount};
use crate::node::MIB;
use flexvol_host::{
    block::{
        device::Device,
        probe::{self, Content, Proof},
    },
    fs::{
        format::{self, MkfsTarget},
        grow,
    },
    mount::Detached,
    uuid::Uuid,
};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, has_sys_resource, tests};
use std::{
    fs::{self, File},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
};

const E2FS: Need = Need::Tool("resize2fs", "e2fsprogs");
const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
const BTRFS: Need = Need::Tool("mkfs.btrfs", "btrfs-progs");

tests! {
    "xfs and btrfs grow mounted and detached, and keep their data", &[Need::Root, XFS, BTRFS]
        => online;
    "an xfs is told its size again and mends its secondary superblocks", &[Need::Root, XFS]
        => told_again;
    "what is too little for an allocation group is slack", &[Need::Root, XFS, E2FS] => slack;
    "ext3 and ext4 grow mounted, or the missing capability is named and they grow offline", &[Need::Root, E2FS]
        => ext;
    "ext3 and ext4 grow offline as far as resize2fs moves nothing", &[Need::Root, E2FS] => far;
    "a file system whose device was cut is left alone", &[Need::Root, E2FS] => cut;
    "mkfs makes what was asked for and keeps what was allocated", &[Need::Root, E2FS, XFS, BTRFS]
        => formats;
}

fn fill(directory: &Path) -> Vec<u8> {
    let text: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
    let file = File::create(directory.join("file")).unwrap();
    file.write_all_at(&text, 0).unwrap();
    file.sync_all().unwrap();
    text
}

fn online(points: &Points) {
    let bench = Bench::new();
    for filesystem in [Filesystem::Xfs, Filesystem::Btrfs] {
        let image = bench.image(300);
        let device = attach(&image);
        make(&device, filesystem, false);
        let directory = bench.directory(filesystem.as_str());
        mount(&device, filesystem, &directory, false);
        let text = fill(&directory);
        resize(&device, &image, 700 * MIB);
        let root = File::open(&directory).unwrap();
        let before = grow::measure(root.as_fd(), &device, filesystem).unwrap();
        assert!(!before.fills(Bytes(700 * MIB)));
        let after = grow::online(root.as_fd(), &device, filesystem).unwrap();
        assert!(after.fills(Bytes(700 * MIB)), "{after:?}");
        drop(root);
        assert_eq!(fs::read(directory.join("file")).unwrap(), text);
        assert!(unmount(&directory));

        // The mount of the second growth is detached.
        resize(&device, &image, 1100 * MIB);
        let detached = Detached::new(&device, filesystem).unwrap();
        let after = grow::online(detached.file(), &device, filesystem).unwrap();
        assert!(after.fills(Bytes(1100 * MIB)), "{after:?}");
        drop(detached);
        mount(&device, filesystem, &directory, true);
        assert_eq!(fs::read(directory.join("file")).unwrap(), text);
        assert!(unmount(&directory));
        points.add(2);
    }
}

/// The size of the whole file system in blocks, according to the superblock of an allocation group.
fn claimed_blocks(image: &File, group: u64, group_blocks: u64) -> u64 {
    let mut bytes = [0; 16];
    let at = group * group_blocks * 4096;
    image.read_exact_at(&mut bytes, at).unwrap();
    assert_eq!(&bytes[..4], b"XFSB");
    u64::from_be_bytes(*bytes[8..].first_chunk().unwrap())
}

fn told_again(points: &Points) {
    let bench = Bench::new();
    let path = bench.image(400);
    let device = attach(&path);
    make(&device, Filesystem::Xfs, false);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let mut primary = [0; 512];
    image.read_exact_at(&mut primary, 0).unwrap();
    let group_blocks = u64::from(u32::from_be_bytes(*primary[84..].first_chunk().unwrap()));
    let blocks = claimed_blocks(&image, 0, group_blocks);
    // As after an interruption: a secondary superblock has the size before the growth. (Its checksum is
    // wrong too, which the kernel does not check before it writes.)
    let old = (blocks - 1000).to_be_bytes();
    image.write_all_at(&old, group_blocks * 4096 + 8).unwrap();
    assert_eq!(claimed_blocks(&image, 1, group_blocks), blocks - 1000);
    // Buffered reads of the device must not hide what was written to its image.
    assert!(matches!(probe::quick(&device), Content::Formatted(_)));
    let detached = Detached::new(&device, Filesystem::Xfs).unwrap();
    let after = grow::online(detached.file(), &device, Filesystem::Xfs).unwrap();
    assert_eq!(after.size, Bytes(blocks * 4096));
    drop(detached);
    device.sync().unwrap();
    for group in 0..4 {
        assert_eq!(
            claimed_blocks(&image, group, group_blocks),
            blocks,
            "{group}"
        );
        points.add(1);
    }
}

fn slack(points: &Points) {
    let bench = Bench::new();
    let image = bench.image(320);
    let device = attach(&image);
    make(&device, Filesystem::Xfs, false);
    for more in [512, 4096, 40 << 10, 200 << 10] {
        resize(&device, &image, 320 * MIB + more);
        let detached = Detached::new(&device, Filesystem::Xfs).unwrap();
        let after = grow::online(detached.file(), &device, Filesystem::Xfs).unwrap();
        assert!(after.fills(Bytes(320 * MIB + more)), "{more}: {after:?}");
        points.add(1);
    }
    for more in [4096, 64 << 10, 200 << 10, 2 * MIB, 3 * MIB] {
        let image = bench.image(128);
        let device = attach(&image);
        make(&device, Filesystem::Ext4, false);
        resize(&device, &image, 128 * MIB + more);
        patiently(|| grow::offline(&device, Filesystem::Ext4, &Begun, &guard()));
        points.add(1);
    }
    // Within its last block group ext4 uses the device to its end.
    let image = bench.image(200);
    let device = attach(&image);
    make(&device, Filesystem::Ext4, false);
    let size = || {
        let found = grow::measure_unmounted(device.file()).unwrap();
        found.unwrap().0.size
    };
    resize(&device, &image, 201 * MIB);
    patiently(|| grow::offline(&device, Filesystem::Ext4, &Begun, &guard()));
    assert_eq!(size(), Bytes(201 * MIB));
    resize(&device, &image, 202 * MIB);
    let detached = Detached::new(&device, Filesystem::Ext4).unwrap();
    match grow::online(detached.file(), &device, Filesystem::Ext4) {
        Ok(_) => assert_eq!(size(), Bytes(202 * MIB)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::CapabilityMissing),
    }
    points.add(2);
}

fn ext(points: &Points) {
    let bench = Bench::new();
    for filesystem in [Filesystem::Ext3, Filesystem::Ext4] {
        let image = bench.image(64);
        let device = attach(&image);
        make(&device, filesystem, false);
        let directory = bench.directory(filesystem.as_str());
        mount(&device, filesystem, &directory, false);
        let text = fill(&directory);
        resize(&device, &image, 300 * MIB);
        let root = File::open(&directory).unwrap();
        let error = grow::offline(&device, filesystem, &Begun, &guard()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let grown = grow::online(root.as_fd(), &device, filesystem);
        drop(root);
        assert!(unmount(&directory));
        match grown {
            Ok(after) => assert!(has_sys_resource() && after.fills(Bytes(300 * MIB))),
            Err(error) => {
                assert!(!has_sys_resource(), "{}", error.report());
                assert_eq!(error.kind(), ErrorKind::CapabilityMissing);
                assert!(error.to_string().contains("CAP_SYS_RESOURCE"), "{error}");
                patiently(|| grow::offline(&device, filesystem, &Begun, &guard()));
            }
        }
        mount(&device, filesystem, &directory, false);
        let root = File::open(&directory).unwrap();
        let after = grow::measure(root.as_fd(), &device, filesystem).unwrap();
        assert!(after.fills(Bytes(300 * MIB)), "{after:?}");
        // It is as large as its device already, so the kernel is not asked and cannot refuse.
        grow::online(root.as_fd(), &device, filesystem).unwrap();
        drop(root);
        assert_eq!(fs::read(directory.join("file")).unwrap(), text);
        assert!(unmount(&directory));
        run("e2fsck", ["-f".as_ref(), "-n".as_ref()], device.path());
        points.add(2);
    }
}

/// A factor of 1,024, for which mke2fs reserves space. Beyond it `resize2fs` fails half-way while it moves blocks.
fn far(points: &Points) {
    const GIB: u64 = 1 << 30;
    let bench = Bench::new();
    for filesystem in [Filesystem::Ext3, Filesystem::Ext4] {
        let image = bench.image(16);
        let device = attach(&image);
        make(&device, filesystem, false);
        let directory = bench.directory(format!("far-{filesystem}"));
        mount(&device, filesystem, &directory, false);
        let text = fill(&directory);
        assert!(unmount(&directory));
        for too_far in [17 * GIB, 20 * GIB, 1024 * GIB] {
            resize(&device, &image, too_far);
            let error = grow::offline(&device, filesystem, &Begun, &guard()).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::SizeNotReached,
                "{}",
                error.report()
            );
            run("e2fsck", ["-f".as_ref(), "-n".as_ref()], device.path());
            points.add(1);
        }
        resize(&device, &image, 16 * GIB);
        patiently(|| grow::offline(&device, filesystem, &Begun, &guard()));
        run("e2fsck", ["-f".as_ref(), "-n".as_ref()], device.path());
        mount(&device, filesystem, &directory, true);
        assert_eq!(fs::read(directory.join("file")).unwrap(), text);
        assert!(unmount(&directory));
        points.add(1);
    }
}

fn cut(points: &Points) {
    let bench = Bench::new();
    let path = bench.image(64);
    let device = attach(&path);
    make(&device, Filesystem::Ext4, false);
    resize(&device, &path, 48 * MIB);
    let before = fs::read(&path).unwrap();
    let error = grow::offline(&device, Filesystem::Ext4, &Begun, &guard()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("64Mi") && error.to_string().contains("48Mi"));
    assert!(Detached::new(&device, Filesystem::Ext4).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
    match probe::thorough(&device) {
        Content::Formatted(found) => assert_eq!(found.size, Bytes(64 * MIB)),
        other => panic!("{other:?}"),
    }
    for filesystem in [Filesystem::Xfs, Filesystem::Btrfs] {
        let error = grow::offline(&device, filesystem, &Begun, &guard()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        points.add(1);
    }
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

fn preallocated(bench: &Bench, mebibytes: u64) -> (std::path::PathBuf, Device) {
    let path = bench.image(mebibytes);
    let file = File::options().write(true).open(&path).unwrap();
    let length = i64::try_from(mebibytes << 20).unwrap();
    nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, length).unwrap();
    let device = attach(&path);
    (path, device)
}

fn formats(points: &Points) {
    let bench = Bench::new();
    for filesystem in Filesystem::ALL {
        let minimum = format::minimum(filesystem).0 >> 20;
        let (path, device) = preallocated(&bench, minimum);
        assert_eq!(probe::thorough(&device), Content::Blank);
        let before = allocated(&path);
        let uuid = make(&device, filesystem, true);
        assert_eq!(allocated(&path), before, "{filesystem}");
        match probe::thorough(&device) {
            Content::Formatted(found) => {
                assert_eq!((found.filesystem, found.uuid), (filesystem, uuid));
                assert_eq!((found.size, found.block), (Bytes(minimum * MIB), 4096));
            }
            other => panic!("{filesystem}: {other:?}"),
        }
        let detached = Detached::new(&device, filesystem).unwrap();
        let fresh = Uuid::random().unwrap();
        let target = MkfsTarget {
            keep_allocation: true,
            proof: Proof::Whole,
        };
        let error = format::mkfs(&device, filesystem, fresh, target, &guard()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        drop(detached);
        let small = attach(&bench.image(minimum - 1));
        let error = format::mkfs(&small, filesystem, fresh, target, &guard()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        points.add(4);
    }
}
