//! Probes of real devices: blank, not blank, and unreadable.

use crate::bench::{Bench, attach, bare, make, mount, resize, run};
use flexvol_host::{
    block::{
        device::Device,
        probe::{self, Content, Proof},
    },
    pool::Pool,
};
use flexvol_sdk::{Bytes, Filesystem};
use flexvol_testing::{Need, Points, tests};
use std::{ffi::OsStr, fs::File, os::unix::fs::FileExt, path::Path};

const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");
const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
const BTRFS: Need = Need::Tool("mkfs.btrfs", "btrfs-progs");

tests! {
    "a device that cannot be read is never blank", &[Need::Root] => unreadable;
    "a device on a disk that died is never blank", &[Need::Root, XFS, Need::Tool("xfs_io", "xfsprogs")]
        => dead_disk;
    "what was written behind or above the device is seen", &[Need::Root] => caches;
    "wiped ends prove that nothing begins on a device, and nothing about its middle", &[Need::Root]
        => ends;
    "file systems that volumes may not hold are named", &[Need::Root, E2FS, XFS, BTRFS] => named;
    "a file system is what its superblock says, whatever its files hold", &[Need::Root, XFS]
        => tenants;
}

fn writable(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Some kernels return zeros behind the end of a truncated image, so the probe checks its length.
fn unreadable(points: &Points) {
    let bench = Bench::new();
    for left in [0, 4096, 1 << 20, (8 << 20) - 4096, (8 << 20) - 1] {
        let path = bench.image(8);
        let device = attach(&path);
        writable(&path).set_len(left).unwrap();
        assert_eq!(probe::thorough(&device), Content::Unreadable, "{left}");
        assert_eq!(probe::quick(&device), Content::Unreadable, "{left}");
        points.add(2);
    }
    let path = bench.image(1);
    let device = attach(&path);
    resize(&device, &path, 0);
    assert_eq!(probe::quick(&device), Content::Unreadable);
    assert_eq!(probe::thorough(&device), Content::Unreadable);
}

/// The disk of the pool shuts down, and every read of the volume is an I/O error.
fn dead_disk(points: &Points) {
    let bench = Bench::new();
    let disk = bench.formatted(Filesystem::Xfs, 300);
    let directory = bench.directory("disk");
    mount(&disk, Filesystem::Xfs, &directory, false);
    let pool = directory.join("pool");
    std::fs::create_dir(&pool).unwrap();
    Pool::init(&pool).unwrap();
    let name = bench.image_name();
    let path = pool.join("volumes").join(name.file_name().unwrap());
    let image = File::create_new(&path).unwrap();
    image.set_len(8 << 20).unwrap();
    let device = attach(&path);
    for content in [Content::Blank, Content::Unreadable] {
        for device in [&device, &bare(&device)] {
            assert_eq!(probe::quick(device), content);
            assert_eq!(probe::thorough(device), content);
            points.add(2);
        }
        if content == Content::Blank {
            run(
                "xfs_io",
                ["-x", "-c", "shutdown"].map(OsStr::new),
                &directory,
            );
        }
    }
}

fn ends(points: &Points) {
    let bench = Bench::new();
    for mib in [1, 8, 9, 32] {
        let path = bench.image(mib);
        let device = attach(&path);
        let size = mib << 20;
        let file = device.writer().unwrap();
        let noise = vec![0xa5; usize::try_from(size).unwrap()];
        file.write_all_at(&noise, 0).unwrap();
        let foreign = Content::Foreign(probe::UNKNOWN);
        assert_eq!(probe::prove(&device, Proof::Ends), foreign, "{mib}");
        probe::wipe_ends(&device).unwrap();
        assert_eq!(probe::prove(&device, Proof::Ends), Content::Blank, "{mib}");
        let has_middle = size > 8 << 20;
        assert_eq!(probe::thorough(&device) == foreign, has_middle, "{mib}");
        let edges = [0, 4095, (4 << 20) - 1, size - (4 << 20).min(size), size - 1];
        for at in edges.into_iter().filter(|at| *at < size) {
            file.write_all_at(&[1], at).unwrap();
            assert_eq!(
                probe::prove(&device, Proof::Ends),
                foreign,
                "{at} of {size}"
            );
            file.write_all_at(&[0], at).unwrap();
            points.add(1);
        }
        assert_eq!(probe::prove(&device, Proof::Ends), Content::Blank, "{mib}");
    }
}

fn read_through_cache(device: &Device, at: u64) -> u8 {
    let mut byte = [0];
    device.file().read_exact_at(&mut byte, at).unwrap();
    byte[0]
}

fn caches(points: &Points) {
    let bench = Bench::new();
    for at in [0, 100_000, 5 << 20, (8 << 20) - 1] {
        for probed in [true, false] {
            let path = bench.image(8);
            let device = attach(&path);
            let probe = |device: &Device| match probed {
                true => probe::thorough(device),
                false => probe::thorough(&bare(device)),
            };
            assert_eq!(probe(&device), Content::Blank);
            // The device's cache has zeros when the image is written behind it.
            assert_eq!(read_through_cache(&device, at), 0);
            writable(&path).write_all_at(b"x", at).unwrap();
            assert_eq!(
                read_through_cache(&device, at),
                0,
                "the cache is no danger here"
            );
            assert_eq!(
                probe(&device),
                Content::Foreign(probe::UNKNOWN),
                "behind, {at}"
            );

            // The device's cache is dirty, and the image has no data yet.
            let path = bench.image(8);
            let device = attach(&path);
            let writer = device.writer().unwrap();
            writer.write_all_at(b"x", at).unwrap();
            assert_eq!(
                probe(&device),
                Content::Foreign(probe::UNKNOWN),
                "above, {at}"
            );
            points.add(2);
        }
    }
    // The probe restores the descriptor's flags: unaligned reads still work.
    let device = attach(&bench.image(8));
    assert_eq!(probe::quick(&device), Content::Blank);
    assert_eq!(read_through_cache(&device, 1), 0);
}

fn named(points: &Points) {
    let bench = Bench::new();
    let made = |program: &str, arguments: [&str; 2], kind| {
        let device = attach(&bench.image(320));
        run(program, arguments.map(OsStr::new), device.path());
        assert_eq!(probe::quick(&device), Content::Foreign(kind));
        assert_eq!(probe::thorough(&device), Content::Foreign(kind));
        points.add(1);
    };
    made("mkfs.ext2", ["-q", "-F"], "ext2");
    made("mkfs.ext4", ["-q", "-Ojournal_dev"], "ext journal device");
    made("mkswap", ["-L", "name"], "swap");

    let path = bench.image(320);
    let device = attach(&path);
    make(&device, Filesystem::Xfs, false);
    // `sb_inprogress`, as an interrupted mkfs.xfs leaves it.
    writable(&path).write_all_at(&[1], 126).unwrap();
    let half_made = Content::Foreign("half-made xfs");
    assert_eq!(probe::quick(&device), half_made);
    assert_eq!(probe::thorough(&device), half_made);

    let pair = [attach(&bench.image(320)), attach(&bench.image(320))];
    run(
        "mkfs.btrfs",
        ["-q".as_ref(), pair[0].path().as_os_str()],
        pair[1].path(),
    );
    for device in &pair {
        let kind = Content::Foreign("btrfs over several devices");
        assert_eq!(probe::quick(device), kind);
    }
    points.add(3);
}

fn tenants(_: &Points) {
    let bench = Bench::new();
    let path = bench.image(320);
    let device = attach(&path);
    make(&device, Filesystem::Xfs, false);
    // Any block of the file system may contain bytes of a tenant.
    let image = writable(&path);
    image.write_all_at(b"CD001", 0x8001).unwrap();
    image.write_all_at(b"_BHRfS_M", 0x10040).unwrap();
    for content in [probe::quick(&device), probe::thorough(&device)] {
        match content {
            Content::Formatted(found) => assert_eq!(found.size, Bytes(320 << 20)),
            other => panic!("{other:?}"),
        }
    }
}
