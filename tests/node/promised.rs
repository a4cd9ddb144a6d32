//! Promised space is really there: a volume of a pool that is not thin keeps its blocks whatever is discarded in it,
//! and lost blocks are its own again.

pub mod beside;
pub mod metadata;

use crate::{
    full::expect_exhausted,
    node::{LOOP, MIB, UID, expect_written, write},
    sandbox_with,
};
use flexvol_testing::{
    Driver, Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, request, tests,
};
use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

tests! {
    "a volume that is not thin keeps its blocks when a pod or a timer discards them", LOOP => kept;
    "what a volume has lost is counted, is nobody else's, and is there at the next mount", LOOP
        => given_back;
    "a pool keeps room for the maps of its images, into however many pieces pods cut these", LOOP => in_pieces;
    "what a volume grows by has blocks, into however many pieces it is cut", LOOP => grown;
    "a device that somebody attached before gives no more blocks back", &[Need::Root, Need::Tool("losetup", "mount")]
        => attached_before;
    "a thin volume gives its blocks back, whoever had its device before", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => thin;
    "a thin volume is at most sixteen times its pool", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => too_large;
}

const SIZE: u64 = 400 * MIB;

pub fn pool(kind: &'static str) -> Sandbox {
    sandbox_with(PoolFilesystem {
        kind,
        mebibytes: 800,
        quotas: false,
    })
}

pub fn install(sandbox: &Sandbox, more: &str) -> Driver {
    sandbox.install(
        "example.com/loop",
        false,
        &format!("reserve = \"0%\"\n{more}"),
    )
}

pub fn blocks(image: &Path) -> u64 {
    fs::metadata(image).unwrap().blocks() * 512
}

/// Discards the free space of the file system. Fails if the device does not support it.
fn trim(dir: &Path) {
    let _ = Command::new("fstrim").arg(dir).output().unwrap();
}

fn options(dir: &Path) -> String {
    let found = Command::new("findmnt")
        .args(["-n", "-o", "OPTIONS"])
        .arg(dir)
        .output()
        .unwrap();
    String::from_utf8(found.stdout).unwrap()
}

fn kept(points: &Points) {
    for filesystem in ["btrfs", "xfs", "ext4"] {
        let sandbox = pool("ext4");
        let driver = install(&sandbox, "");
        let volume = PersistentVolume::provision(&driver, "a", filesystem, SIZE);
        let image = volume.image(&sandbox);
        let pod = Pod::new(&sandbox, &driver, &volume, UID);
        pod.mount("rw").success();
        let found = options(pod.dir());
        assert!(!found.contains("discard=async"), "{found}");
        write(pod.dir(), "kept", 8).unwrap();
        for _ in 0..2 {
            write(pod.dir(), "file", 200).unwrap();
            fs::remove_file(pod.dir().join("file")).unwrap();
            nix::unistd::syncfs(File::open(pod.dir()).unwrap()).unwrap();
            trim(pod.dir());
            nix::unistd::syncfs(File::open(sandbox.disk()).unwrap()).unwrap();
            let has = blocks(&image);
            assert!(has >= SIZE, "{filesystem}: {has} of {SIZE} bytes");
        }
        // The free space that there would be if the blocks had been freed.
        expect_exhausted(&driver.call(&["provision", &request("b", SIZE)]));
        let filler = sandbox.fill_disk(MIB);
        write(pod.dir(), "file", 200).unwrap();
        pod.unmount().success();
        pod.mount("rw").success();
        expect_written(pod.dir(), "file", 200);
        expect_written(pod.dir(), "kept", 8);
        pod.unmount().success();
        fs::remove_file(filler).unwrap();
        points.add(1);
    }
}

/// Punches a hole, as by an earlier driver whose devices discarded.
pub fn lose(image: &Path, at: u64, bytes: u64) {
    let file = File::options().write(true).open(image).unwrap();
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let signed = |number: u64| i64::try_from(number).unwrap();
    fallocate(&file, hole, signed(at), signed(bytes)).unwrap();
    file.sync_all().unwrap();
}

/// The reply of `capacity`: the space that can be promised, and the missing space.
pub fn capacity(driver: &Driver) -> (u64, u64) {
    let reply = driver.call(&["capacity", "{}"]).success();
    let object = reply.object().unwrap();
    let number = |name: &str| object[name].as_u64().unwrap();
    (number("capacity"), number("missing"))
}

pub fn doctor(sandbox: &Sandbox, driver: &Driver) -> String {
    let said = Command::new(driver.executable())
        .args(["doctor", "--name", driver.name(), "--plugin-dir"])
        .arg(sandbox.plugins())
        .output()
        .unwrap();
    String::from_utf8(said.stdout).unwrap()
}

fn given_back(points: &Points) {
    for kind in ["ext4", "xfs", "btrfs"] {
        let sandbox = pool(kind);
        let driver = install(&sandbox, "");
        let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
        let image = volume.image(&sandbox);
        let pod = Pod::new(&sandbox, &driver, &volume, UID);
        pod.mount("rw").success();
        write(pod.dir(), "kept", 8).unwrap();
        pod.unmount().success();
        let (room, missing) = capacity(&driver);
        assert_eq!(missing, 0, "{kind}");
        // An allocation group in the middle, of which only the first blocks are in use.
        lose(&image, 250 * MIB, 40 * MIB);
        let has = blocks(&image);
        assert!(has < SIZE - 39 * MIB, "{kind}: {has}");
        let (now, missing) = capacity(&driver);
        assert!(
            (39 * MIB..=40 * MIB).contains(&missing),
            "{kind}: {missing}"
        );
        assert!(now <= room + 2 * MIB, "{kind}: {room}, then {now}");
        expect_exhausted(&driver.call(&["provision", &request("b", room + 20 * MIB)]));
        let said = doctor(&sandbox, &driver);
        assert!(
            said.contains("volumes that lack some of their storage: 1"),
            "{said}"
        );
        // Other data took the space. The volume can still be mounted for its data.
        let filler = sandbox.fill_disk(8 * MIB);
        pod.mount("rw").success();
        expect_written(pod.dir(), "kept", 8);
        assert!(blocks(&image) < SIZE, "{kind}");
        pod.unmount().success();
        fs::remove_file(filler).unwrap();
        // Btrfs frees deleted blocks when it commits.
        nix::unistd::syncfs(File::open(sandbox.disk()).unwrap()).unwrap();
        pod.mount("rw").success();
        expect_written(pod.dir(), "kept", 8);
        let has = blocks(&image);
        assert!(has >= SIZE, "{kind}: {has}");
        assert_eq!(capacity(&driver).1, 0, "{kind}");
        assert!(!doctor(&sandbox, &driver).contains("lack some"));
        pod.unmount().success();
        points.add(1);
    }
}

/// Isolated writes of 4 KiB into unwritten blocks split extents.
fn in_pieces(points: &Points) {
    for kind in ["xfs", "ext4"] {
        let sandbox = sandbox_with(PoolFilesystem {
            kind,
            mebibytes: 400,
            quotas: false,
        });
        let driver = install(&sandbox, "");
        let (room, _) = capacity(&driver);
        let all = room - room % MIB;
        let volume = PersistentVolume::provision(&driver, "a", "ext4", all);
        let image = File::options().write(true).open(volume.image(&sandbox));
        let image = image.unwrap();
        let space = || {
            nix::unistd::syncfs(&image).unwrap();
            let found = nix::sys::statvfs::statvfs(&sandbox.disk()).unwrap();
            [found.blocks(), found.blocks_available()]
        };
        let [blocks, free] = space();
        assert!(free >= blocks / 110, "{kind}: {free} of {blocks}");
        cut_into_pieces(&image, all).unwrap();
        // None of it came from the file system's reserved blocks.
        let [_, left] = space();
        assert!(left > 0, "{kind}: the maps took {free} blocks");
        assert_eq!(capacity(&driver), (0, 0), "{kind}");
        let warns = || doctor(&sandbox, &driver).contains("writing to volumes may fail");
        assert!(!warns(), "{kind}");
        let filler = sandbox.fill_disk(MIB / 4);
        let [_, left] = space();
        assert!(warns(), "{kind}: {left} blocks are free");
        fs::remove_file(filler).unwrap();
        points.add(1);
    }
}

pub fn cut_into_pieces(image: &File, size: u64) -> io::Result<()> {
    const BLOCK: [u8; 4 << 10] = [1; 4 << 10];
    for at in (0..size).step_by(2 * BLOCK.len()) {
        image.write_all_at(&BLOCK, at)?;
    }
    image.sync_all()
}

fn grown(points: &Points) {
    const BY: u64 = MIB;
    for kind in ["ext4", "xfs"] {
        let sandbox = pool(kind);
        let driver = install(&sandbox, "");
        let volume = PersistentVolume::provision(&driver, "a", "ext4", SIZE);
        let image = File::options().write(true).open(volume.image(&sandbox));
        let image = image.unwrap();
        cut_into_pieces(&image, SIZE).unwrap();
        let pod = Pod::new(&sandbox, &driver, &volume, UID);
        let json = volume.json("rw");
        let (dir, to) = (pod.dir().to_str().unwrap(), (SIZE + BY).to_string());
        let grow = ["expandvolume", &json, dir, &to, &SIZE.to_string()];
        driver.call(&grow).success();
        let end = volume.image(&sandbox).metadata().unwrap().len();
        assert!(end >= SIZE + BY);
        // With nothing free, the writes still succeed.
        nix::unistd::syncfs(&image).unwrap();
        let filler = sandbox.fill_disk(2 * MIB);
        let mut more = File::create(sandbox.disk().join("somebody-more")).unwrap();
        while more.write_all(&[1; 4 << 10]).is_ok() {}
        let written = image.write_all_at(&[2; 1 << 20], end - MIB);
        written.and_then(|()| image.sync_all()).unwrap();
        fs::remove_file(filler).unwrap();
        points.add(1);
    }
}

fn attached_before(_: &Points) {
    let sandbox = pool("ext4");
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "ext4", SIZE);
    let attached = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(volume.image(&sandbox))
        .output()
        .unwrap();
    let device = String::from_utf8(attached.stdout).unwrap();
    let name = device.trim().trim_start_matches("/dev/");
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    assert_eq!(sandbox.loops().len(), 1);
    let limit = format!("/sys/block/{name}/queue/discard_max_bytes");
    assert_eq!(fs::read_to_string(limit).unwrap(), "0\n");
    pod.unmount().success();
}

fn thin(_: &Points) {
    let sandbox = pool("ext4");
    let whole = install(&sandbox, "");
    let volume = PersistentVolume::provision(&whole, "a", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &whole, &volume, UID);
    pod.mount("rw").success();
    pod.unmount().success();
    whole.call(&["delete", &volume.json("rw")]).success();
    let driver = install(&sandbox, "thin = true");
    let volume = PersistentVolume::provision(&driver, "b", "xfs", SIZE);
    let image = volume.image(&sandbox);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    write(pod.dir(), "file", 200).unwrap();
    let written = blocks(&image);
    fs::remove_file(pod.dir().join("file")).unwrap();
    // XFS frees deleted blocks in the background.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        nix::unistd::syncfs(File::open(pod.dir()).unwrap()).unwrap();
        trim(pod.dir());
        let has = blocks(&image);
        if has + 50 * MIB < written {
            break;
        }
        assert!(Instant::now() < end, "{has} after {written}");
        thread::sleep(Duration::from_millis(50));
    }
    let reply = driver.call(&["capacity", "{}"]).success();
    assert!(!reply.object().unwrap().contains_key("missing"), "{reply}");
    pod.unmount().success();
}

/// The size of a file system alone determines its metadata, on disk and in the kernel's memory.
fn too_large(points: &Points) {
    let sandbox = pool("xfs");
    let driver = install(&sandbox, "thin = true");
    let most = 16 * 700 * MIB;
    for size in [1 << 44, 1 << 50, 1 << 62] {
        expect_exhausted(&driver.call(&["provision", &request("a", size)]));
        points.add(1);
    }
    let volume = PersistentVolume::provision(&driver, "a", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    expect_exhausted(&driver.call(&pod.expand_arguments(1 << 44, 300 * MIB)));
    driver
        .call(&pod.expand_arguments(most, 300 * MIB))
        .success();
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(2);
}
