//! Space on Btrfs for the extents of images: data and metadata cannot use chunks of each other.

use super::{capacity, cut_into_pieces, doctor, install, pool};
use crate::{
    node::{LOOP, MIB, UID, expect_written, write},
    sandbox_with,
    strangers::{Attached, run},
};
use flexvol_testing::{PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, tests};
use nix::fcntl::{FallocateFlags, fallocate};
use rustix::fs::XattrFlags;
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

tests! {
    "btrfs gives images no more data than its metadata can note, however much is free", LOOP => in_metadata;
    "btrfs gives images no data that take what its metadata need, where what is free is in pieces", LOOP
        => in_pieces;
    "btrfs gives images no data for which metadata are free on one disk alone, of which they need two", LOOP
        => on_one_disk;
    "doctor says that a balance of btrfs gives a pool more, and it does", LOOP => balanced;
}

/// Other data was written everywhere and mostly deleted, which leaves the whole disk in chunks of data. Then names
/// filled the metadata.
fn in_metadata(_: &Points) {
    let sandbox = pool("btrfs");
    let driver = install(&sandbox, "");
    let neighbour = PersistentVolume::provision(&driver, "b", "ext4", 64 * MIB);
    let pod = Pod::new(&sandbox, &driver, &neighbour, UID);
    pod.mount("rw").success();
    let sync = || nix::unistd::syncfs(File::open(sandbox.disk()).unwrap()).unwrap();
    let file = |number: usize| sandbox.disk().join(format!("file-{number}"));
    let files = (0..).take_while(|number| fs::write(file(*number), vec![1; 8 << 20]).is_ok());
    let files = files.count();
    for number in (0..=files).filter(|number| number % 10 > 0) {
        fs::remove_file(file(number)).unwrap_or_default();
    }
    sync();
    let target = "y".repeat(1900);
    let link = |number: usize| sandbox.disk().join(format!("link-{number}"));
    let links = (0..).take_while(|number| symlink(&target, link(*number)).is_ok());
    let links = links.count();
    for number in 0..links / 2 {
        fs::remove_file(link(number)).unwrap();
    }
    sync();
    let (room, _) = capacity(&driver);
    let free = nix::sys::statvfs::statvfs(&sandbox.disk()).unwrap();
    let free = free.blocks_available() * free.fragment_size();
    assert!(room > 32 * MIB, "{room} of {free}");
    // Deleted data still takes metadata for a moment.
    let size = room - room % MIB - 8 * MIB;
    let volume = PersistentVolume::provision(&driver, "a", "ext4", size);
    let image = File::options().write(true).open(volume.image(&sandbox));
    cut_into_pieces(&image.unwrap(), size).unwrap();
    write(pod.dir(), "file", 20).unwrap();
    pod.unmount().success();
    pod.mount("rw").success();
    expect_written(pod.dir(), "file", 20);
    pod.unmount().success();
    let warns = || doctor(&sandbox, &driver).contains("writing to volumes may fail");
    assert!(!warns());
    // Nothing can be promised, although much is free.
    let told = doctor(&sandbox, &driver);
    assert!(
        told.contains("little room for metadata") && told.contains("btrfs balance start"),
        "{told}"
    );
    // A request refused while much is still to be written may fit afterwards.
    let mut more = links..;
    let mut filled = || {
        more.by_ref()
            .take_while(|number| symlink(&target, link(*number)).is_ok())
            .for_each(drop);
        sync();
        warns()
    };
    assert!((0..20).any(|_| filled()), "{}", doctor(&sandbox, &driver));
}

fn btrfs(mebibytes: u64) -> Sandbox {
    sandbox_with(PoolFilesystem {
        kind: "btrfs",
        mebibytes,
        quotas: false,
    })
}

/// Other data left holes in all data chunks that are too short for an image's extents, and filled the metadata, while
/// a part of the disk is unallocated.
fn in_pieces(_: &Points) {
    let sandbox = btrfs(4096);
    let driver = install(&sandbox, "");
    let file = |number: usize| sandbox.disk().join(format!("file-{number}"));
    let chunks = Chunks::of(&sandbox.disk());
    let mut files = 0;
    while chunks.number("data/total_bytes") < 3000 * MIB {
        let file = File::create(file(files)).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).unwrap();
        files += 1;
    }
    for number in (0..files).filter(|number| number % 20 > 0) {
        fs::remove_file(file(number)).unwrap();
    }
    chunks.fill_metadata(&sandbox.disk());
    let warns = || doctor(&sandbox, &driver).contains("writing to volumes may fail");
    assert!(!warns());
    let (room, _) = capacity(&driver);
    assert!(room > 32 * MIB, "{room}");
    let _volume = PersistentVolume::provision(&driver, "a", "ext4", room - room % MIB - 8 * MIB);
    assert!(!warns(), "{}", doctor(&sandbox, &driver));
}

/// Other data has nearly the whole disk, and metadata gets the rest.
fn balanced(_: &Points) {
    let sandbox = btrfs(2048);
    let driver = install(&sandbox, "");
    let (disk, advice) = (
        sandbox.disk(),
        "more for volumes: btrfs balance start -dusage=50",
    );
    let told = doctor(&sandbox, &driver);
    assert!(!told.contains(advice), "{told}");
    let file = |number: usize| disk.join(format!("file-{number}"));
    let fills = |number: &usize| {
        let file = File::create(file(*number)).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).is_ok()
    };
    let files = (0..).take_while(fills).count();
    for number in (0..=files).filter(|number| number % 20 > 0) {
        fs::remove_file(file(number)).unwrap();
    }
    Chunks::of(&disk).fill_metadata(&disk);
    let (before, _) = capacity(&driver);
    let told = doctor(&sandbox, &driver);
    assert!(told.contains(advice), "{told}");
    run(
        "btrfs",
        &["balance", "start", "-dusage=50", disk.to_str().unwrap()],
    );
    let (after, _) = capacity(&driver);
    assert!(after > 2 * before, "{before}, then {after}");
    let told = doctor(&sandbox, &driver);
    assert!(!told.contains(advice), "{told}");
}

/// Data is on all disks until the smallest is full. The remaining space cannot hold two copies of metadata.
fn on_one_disk(_: &Points) {
    let sandbox = btrfs(1024);
    let driver = install(&sandbox, "");
    let more = sandbox.path("more");
    File::create(&more).unwrap().set_len(4 << 30).unwrap();
    let device = Attached::new(&more);
    let disk = sandbox.disk();
    let place = disk.to_str().unwrap();
    run("btrfs", &["device", "add", "-f", device.path(), place]);
    let convert = [
        "-f",
        "-dconvert=raid0",
        "-mconvert=raid1",
        "-sconvert=raid1",
    ];
    run(
        "btrfs",
        &[&["balance", "start"], &convert[..], &[place]].concat(),
    );
    let chunks = Chunks::of(&disk);
    let others = File::create(disk.join("others")).unwrap();
    fallocate(&others, FallocateFlags::empty(), 0, 1148 << 20).unwrap();
    chunks.fill_metadata(&disk);
    let (room, _) = capacity(&driver);
    // A 25th of the space in images, and less than 100 MiB are left on the smaller disk.
    let most = 25 * (chunks.free_metadata() + 100 * MIB);
    assert!((32 * MIB..most).contains(&room), "{room} of {most}");
}

/// The kernel's information about the chunks of a Btrfs.
struct Chunks(PathBuf);

impl Chunks {
    fn of(mounted: &Path) -> Chunks {
        let uuid = run("findmnt", &["-n", "-o", "UUID", mounted.to_str().unwrap()]);
        Chunks(
            Path::new("/sys/fs/btrfs")
                .join(uuid.trim())
                .join("allocation"),
        )
    }

    fn number(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        text.trim().parse().unwrap()
    }

    /// Fills all but about 6 MiB of the existing metadata chunks.
    fn fill_metadata(&self, disk: &Path) {
        // An attribute takes a leaf. If much is written at once, the metadata gets a new chunk.
        let mut attributes = 0;
        while let more @ 1.. = self.free_metadata().saturating_sub(6 * MIB) / 22_000 {
            let file = File::create(disk.join(format!("attributes-{attributes}"))).unwrap();
            for _ in 0..more.clamp(20, 500) {
                let name = format!("user.{attributes}");
                rustix::fs::fsetxattr(&file, name, &[b'y'; 15_000], XattrFlags::empty()).unwrap();
                attributes += 1;
            }
            nix::unistd::syncfs(&file).unwrap();
        }
    }

    fn free_metadata(&self) -> u64 {
        let taken = ["used", "pinned", "reserved", "readonly"];
        let taken = taken.map(|kind| self.number(&format!("metadata/bytes_{kind}")));
        let taken = taken.iter().sum::<u64>() + self.number("global_rsv_size");
        self.number("metadata/total_bytes").saturating_sub(taken)
    }
}
