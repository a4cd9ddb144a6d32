//! Loop devices, with losetup as the stranger and the witness.

use crate::{
    bench::{Bench, mount, run},
    host_lock::any_volume,
};
use flexvol_host::{
    Device, DeviceNumber, VolumeId,
    loop_device::{self, Inode},
    mount::unmount,
    pool::{Allocation, Image, Pool, Reserve},
};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, Test};
use nix::{
    mount::MsFlags,
    sched::{CloneFlags, unshare},
};
use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const LOSETUP: Need = Need::Tool("losetup", "mount");
const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");

pub const TESTS: &[Test] = &[
    Test {
        name: "an image is attached once and goes with its last user",
        needs: &[Need::Root],
        run: lifecycle,
    },
    Test {
        name: "a hint that is wrong in any way changes nothing but time",
        needs: &[Need::Root],
        run: wrong_hints,
    },
    Test {
        name: "an attached image is found whoever else has it open",
        needs: &[Need::Root],
        run: found_without_hint,
    },
    Test {
        name: "looking for a loop device survives others opening the image",
        needs: &[Need::Root],
        run: lease_is_broken,
    },
    Test {
        name: "32 images attached at once get 32 devices",
        needs: &[Need::Root],
        run: crowd,
    },
    Test {
        name: "a deleted image and its namesake are two volumes",
        needs: &[Need::Root],
        run: namesakes,
    },
    Test {
        name: "a device follows its image when that grows and not when it shrinks",
        needs: &[Need::Root],
        run: follows,
    },
    Test {
        name: "a device that somebody else attached is adopted if it fits and refused if not",
        needs: &[Need::Root, LOSETUP],
        run: strangers,
    },
    Test {
        name: "a released device goes, at once or with its last mount",
        needs: &[Need::Root, LOSETUP, E2FS],
        run: released,
    },
    Test {
        name: "a claim sees mounts, also in other namespaces",
        needs: &[Need::Root, E2FS],
        run: claims,
    },
    Test {
        name: "loop devices work where /dev has no nodes",
        needs: &[Need::Root],
        run: without_devtmpfs,
    },
];

/// A pool in memory; every image is thin and 16 MiB.
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

/// The kernel detaches after the last close, not within it, and udev may look at a device too.
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

/// Whether the kernel's answer about other openers is believed too much or too little.
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
    // Attached: seen by the image that attached it, by another one, and when both are closed.
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

/// An open that meets the lease makes the kernel signal its holder, whom SIGIO would kill.
fn lease_is_broken(points: &Points) {
    const ROUNDS: u64 = 2000;
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
    // A few bytes more are no sector.
    image.file().set_len(grown.0 + 511).unwrap();
    loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.size().unwrap(), grown);
    image.file().set_len(SIZE.0).unwrap();
    loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.size().unwrap(), grown);
}

fn strangers(points: &Points) {
    let fixture = Fixture::new();
    let attach = |volume: &VolumeId, options: &[&str]| {
        let output = std::process::Command::new("losetup")
            .args(["-f", "--show"])
            .args(options)
            .arg(fixture.path(volume))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (volume, image) = fixture.volume();
    let node = attach(&volume, &[]);
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    assert_eq!(device.path().to_str(), Some(&*node));
    let backing = loop_device::backing(device.number()).unwrap().unwrap();
    assert_eq!(backing.label, volume.to_string());
    let number = device.number();
    drop(device);
    eventually_detached(number, &image);

    for (options, what) in [
        (&["-o", "1048576"][..], "in part only"),
        (&["--sizelimit", "1048576"], "in part only"),
        (&["-r"], "read-only"),
        (&["-b", "4096"], "with 4096-byte sectors"),
    ] {
        let (volume, image) = fixture.volume();
        let node = attach(&volume, options);
        let error = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(!error.to_string().contains("/dev"), "{error}");
        run("losetup", ["-d".as_ref()], node.as_ref());
        points.add(1);
    }

    let (volume, image) = fixture.volume();
    let nodes = [attach(&volume, &[]), attach(&volume, &[])];
    let error = loop_device::find(&image, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    for node in nodes {
        run("losetup", ["-d".as_ref()], node.as_ref());
    }
}

fn released(_: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let losetup = || {
        run(
            "losetup",
            ["-f", "--show"].map(AsRef::as_ref),
            &fixture.path(&volume),
        );
        loop_device::find(&image, None).unwrap().unwrap()
    };
    let device = losetup();
    let number = device.number();
    loop_device::release(device).unwrap();
    eventually_detached(number, &image);

    let device = losetup();
    let number = device.number();
    crate::bench::make(&device, Filesystem::Ext4, false);
    let directory = fixture.bench.directory("mounted");
    mount(&device, Filesystem::Ext4, &directory, false);
    let still_there = loop_device::release(device).unwrap_err();
    assert_eq!(still_there.kind(), ErrorKind::Busy);
    assert_eq!(
        inode_under(number),
        Some(image.inode()),
        "cut from its mount"
    );
    assert!(unmount(&directory).unwrap());
    eventually_detached(number, &image);

    // Without an image nobody knows whose it is.
    let stranger = losetup();
    let number = stranger.number();
    loop_device::release(Device::open(number).unwrap()).unwrap();
    assert_eq!(inode_under(number), Some(image.inode()));
    loop_device::release(stranger).unwrap();
    eventually_detached(number, &image);
}

fn claims(_: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
    crate::bench::make(&device, Filesystem::Ext4, false);
    let busy = || matches!(device.claim(), Err(error) if error.kind() == ErrorKind::Busy);
    {
        let _claim = device.claim().unwrap();
        assert!(busy());
    }
    let directory = fixture.bench.directory("mounted");
    thread::scope(|scope| {
        scope
            .spawn(|| {
                private_namespace();
                mount(&device, Filesystem::Ext4, &directory, false);
                assert!(busy());
            })
            .join()
            .unwrap();
    });
    // The namespace ended with its thread, and the mount with it, when the kernel gets to it.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while busy() {
        assert!(std::time::Instant::now() < end, "stays busy");
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Gives this thread mounts of its own.
fn private_namespace() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
}

/// As in a container: /dev is a directory in memory, and nodes in /run cannot be opened.
fn without_devtmpfs(points: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let empty = |at: &str, flags| {
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("mode=0755")).unwrap();
    };
    thread::scope(|scope| {
        let run = || {
            private_namespace();
            empty("/dev", MsFlags::MS_NOSUID);
            let device = loop_device::attach(&image, &volume, None, Allocation::Thin).unwrap();
            assert!(
                device.path().starts_with("/dev/flexvol"),
                "{:?}",
                device.path()
            );
            assert_eq!(device.size().unwrap(), SIZE);
            let found = loop_device::find(&image, None).unwrap().unwrap();
            assert_eq!(found.number(), device.number());
            assert_eq!(inode_under(device.number()), Some(image.inode()));
            device.claim().unwrap();
            points.add(1);

            // A node of the right name and the wrong number is not believed.
            let wrong = format!("/dev/loop{}", device.number().minor);
            let null = DeviceNumber {
                major: 7,
                minor: 999,
            };
            nix::sys::stat::mknod(
                &*wrong,
                nix::sys::stat::SFlag::S_IFBLK,
                nix::sys::stat::Mode::S_IRUSR,
                null.to_raw(),
            )
            .unwrap();
            let found = loop_device::find(&image, None).unwrap().unwrap();
            assert_eq!(found.number(), device.number());
            points.add(1);

            // Where /run has no such rule its nodes serve.
            empty("/run/flexvol", MsFlags::MS_NOSUID);
            let found = Device::open(device.number()).unwrap();
            assert!(
                found.path().starts_with("/run/flexvol/dev"),
                "{:?}",
                found.path()
            );
        };
        scope.spawn(run).join().unwrap();
    });
}
