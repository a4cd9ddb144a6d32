//! Loop devices: each is found again, is used by its image only, and follows its size.

pub mod beside;

use crate::{
    bench::{Bench, run},
    host_lock::any_volume,
};
use flexvol_host::{
    Device, DeviceNumber, VolumeId,
    loop_device::{self, Inode},
    pool::{Allocation, Image, Pool, Reserve},
};
use flexvol_sdk::{Bytes, ErrorKind};
use flexvol_testing::{Need, Points, tests};
use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

tests! {
    "an image is attached once and goes with its last user", &[Need::Root] => lifecycle;
    "a hint that is wrong in any way changes nothing but time", &[Need::Root] => wrong_hints;
    "an attached image is found whoever else has it open", &[Need::Root] => found_without_hint;
    "an image that is attached under another name is not attached again", &[Need::Root]
        => found_under_another_name;
    "looking for a loop device survives others opening the image", &[Need::Root] => lease_is_broken;
    "32 images attached at once get 32 devices", &[Need::Root] => crowd;
    "a deleted image and its namesake are two volumes", &[Need::Root] => namesakes;
    "a device follows its image when that grows and not when it shrinks", &[Need::Root] => follows;
}

/// A pool in memory. Every image is thin and 16 MiB.
struct Fixture {
    bench: Bench,
    pool: Pool,
}

impl Fixture {
    fn new() -> Self {
        let bench = Bench::new();
        let pool = Pool::open(&bench.path("pool")).unwrap();
        Fixture { bench, pool }
    }

    fn volume(&self) -> (VolumeId, Image) {
        let volume = any_volume();
        self.create(&volume);
        (volume, self.pool.image(&volume).unwrap().unwrap())
    }

    fn create(&self, volume: &VolumeId) {
        let none = Reserve::Percent(0);
        self.pool
            .create(volume, SIZE, "mark", Allocation::Thin, none)
            .unwrap();
    }

    fn path(&self, volume: &VolumeId) -> PathBuf {
        self.bench.path(format!("pool/volumes/{volume}"))
    }
}

const SIZE: Bytes = Bytes(16 << 20);

fn inode_under(number: DeviceNumber) -> Option<Inode> {
    let backing = loop_device::backing(number).unwrap();
    backing.map(|backing| backing.inode)
}

/// Waits until the device is detached: the kernel does that after the last close, and udev may open devices too.
fn eventually_detached(number: DeviceNumber, image: &Image) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while inode_under(number) == Some(image.inode()) {
        assert!(std::time::Instant::now() < end, "{number} stays");
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn lifecycle(_: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    assert!(loop_device::find(&image, None).unwrap().is_none());
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.size().unwrap(), SIZE);
    let backing = loop_device::backing(device.number()).unwrap().unwrap();
    assert_eq!(backing.inode, image.inode());
    assert_eq!(backing.label, volume.to_string());
    assert_eq!(
        fs::metadata(device.path()).unwrap().rdev(),
        device.number().to_raw()
    );

    device
        .writer()
        .unwrap()
        .write_all_at(b"through the device", 4096)
        .unwrap();
    device.sync().unwrap();
    let mut read = [0; 18];
    image.file().read_exact_at(&mut read, 4096).unwrap();
    assert_eq!(&read, b"through the device");
    let backing = Inode {
        device: device.backing().unwrap().metadata().unwrap().dev(),
        number: device.backing().unwrap().metadata().unwrap().ino(),
    };
    assert_eq!(backing, image.inode());

    let hint = Some(device.number().minor);
    for again in [
        loop_device::attach(&image, &volume, hint, Allocation::Thin).unwrap(),
        loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap(),
        loop_device::find(&image, None).unwrap().unwrap(),
    ] {
        assert_eq!(again.number(), device.number());
    }
    let number = device.number();
    loop_device::release(device).unwrap();
    eventually_detached(number, &image);
    assert!(loop_device::find(&image, hint).unwrap().is_none());

    let root = DeviceNumber { major: 1, minor: 3 };
    assert_eq!(loop_device::backing(root).unwrap(), None);
    let absent = DeviceNumber {
        major: 7,
        minor: 1_048_575,
    };
    assert_eq!(loop_device::backing(absent).unwrap(), None);
    assert_eq!(
        Device::open(absent).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

fn wrong_hints(points: &Points) {
    let fixture = Fixture::new();
    let (other_volume, other) = fixture.volume();
    let other = loop_device::attach(&other, &other_volume, None, Allocation::Thin).unwrap();
    let read_only = fixture.bench.image(1);
    let node = run(
        "losetup",
        ["-r", "-f", "--show"].map(AsRef::as_ref),
        &read_only,
    );
    let node = File::open(node.trim()).unwrap();
    let stranger = DeviceNumber::from_raw(node.metadata().unwrap().rdev());

    let (volume, image) = fixture.volume();
    let hints = [other.number().minor, stranger.minor, 1_048_575, u32::MAX];
    for hint in hints {
        assert!(loop_device::find(&image, Some(hint)).unwrap().is_none());
        points.add(1);
    }
    let device = loop_device::attach(
        &image,
        &volume,
        Some(other.number().minor),
        Allocation::Thin,
    )
    .unwrap();
    for hint in hints {
        let found = loop_device::find(&image, Some(hint)).unwrap().unwrap();
        assert_eq!(found.number(), device.number());
        points.add(1);
    }
    assert_ne!(device.number(), other.number());
    run(
        "losetup",
        ["-d".as_ref()],
        format!("/dev/loop{}", stranger.minor).as_ref(),
    );
}

/// The driver must not rely too much or too little on the kernel's hint about other openers.
fn found_without_hint(points: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let path = fixture.path(&volume);
    let open = |write| File::options().read(true).write(write).open(&path).unwrap();
    // Not attached, but open elsewhere.
    for write in [false, true] {
        let _opener = open(write);
        assert!(loop_device::find(&image, None).unwrap().is_none());
        points.add(1);
    }
    // Attached: found through the image that attached it, through another descriptor, and after both are closed.
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    let found = loop_device::find(&image, None).unwrap().unwrap();
    assert_eq!(found.number(), device.number());
    let second = fixture.pool.image(&volume).unwrap().unwrap();
    for image in [&image, &second] {
        let found = loop_device::find(image, None).unwrap().unwrap();
        assert_eq!(found.number(), device.number());
        points.add(1);
    }
    drop((image, second));
    let fresh = fixture.pool.image(&volume).unwrap().unwrap();
    let found = loop_device::find(&fresh, None).unwrap().unwrap();
    assert_eq!(found.number(), device.number());
}

/// In a container whose mount is the image itself, the kernel reports that mount point as the image's name.
fn found_under_another_name(_: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let other = fixture.bench.path("other-name");
    fs::write(&other, "").unwrap();
    run(
        "mount",
        ["--bind".as_ref(), fixture.path(&volume).as_os_str()],
        &other,
    );
    let node = run("losetup", ["-f", "--show"].map(AsRef::as_ref), &other);
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.path(), std::path::Path::new(node.trim()));
    run("losetup", ["-d".as_ref()], node.trim().as_ref());
    let number = device.number();
    drop(device);
    eventually_detached(number, &image);
    run("umount", [], &other);
}

/// When an open breaks the lease, the kernel sends its holder SIGIO, which kills by default.
fn lease_is_broken(points: &Points) {
    const ROUNDS: u64 = 500;
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let path = fixture.path(&volume);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for write in [false, true] {
            let (path, done) = (&path, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    File::options().read(true).write(write).open(path).unwrap();
                }
            });
        }
        for _ in 0..ROUNDS {
            assert!(loop_device::find(&image, None).unwrap().is_none());
        }
        done.store(true, Ordering::Relaxed);
    });
    points.add(ROUNDS);
}

fn crowd(points: &Points) {
    const CROWD: usize = 32;
    let fixture = Fixture::new();
    let volumes: Vec<_> = (0..CROWD).map(|_| fixture.volume()).collect();
    let barrier = std::sync::Barrier::new(CROWD);
    let devices: Vec<Device> = thread::scope(|scope| {
        let attaching: Vec<_> = volumes
            .iter()
            .map(|(volume, image)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    loop_device::attach(image, volume, None, Allocation::Thin).unwrap()
                })
            })
            .collect();
        attaching
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let numbers: HashSet<_> = devices.iter().map(Device::number).collect();
    assert_eq!(numbers.len(), CROWD);
    for (device, (volume, image)) in devices.iter().zip(&volumes) {
        let backing = loop_device::backing(device.number()).unwrap().unwrap();
        assert_eq!(
            (backing.inode, backing.label),
            (image.inode(), volume.to_string())
        );
        points.add(1);
    }
}

fn namesakes(_: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    fixture.pool.remove(&volume).unwrap();
    let found = loop_device::find(&image, None).unwrap().unwrap();
    assert_eq!(found.number(), device.number());
    assert!(fixture.pool.image(&volume).unwrap().is_none());

    fixture.create(&volume);
    let namesake = fixture.pool.image(&volume).unwrap().unwrap();
    let hint = Some(device.number().minor);
    assert!(loop_device::find(&namesake, hint).unwrap().is_none());
    let second = loop_device::attach(&namesake, &volume, hint, Allocation::Thin).unwrap();
    assert_ne!(second.number(), device.number());
    assert_eq!(inode_under(second.number()), Some(namesake.inode()));
    assert_eq!(inode_under(device.number()), Some(image.inode()));
}

fn follows(_: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    let none = Reserve::Percent(0);
    let grown = Bytes(3 * SIZE.0);
    image
        .extend(grown, Allocation::Thin, none, &fixture.pool)
        .unwrap();
    assert_eq!(device.size().unwrap(), SIZE);
    let again = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(again.number(), device.number());
    assert_eq!(device.size().unwrap(), grown);
    // Less than a sector more is not visible.
    image.reopen().unwrap().set_len(grown.0 + 511).unwrap();
    loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.size().unwrap(), grown);
    image.reopen().unwrap().set_len(SIZE.0).unwrap();
    loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.size().unwrap(), grown);
}
