//! Loop devices beside foreign ones: attached or mounted by others, or without devtmpfs.

use super::{Fixture, SIZE, eventually_detached, inode_under};
use crate::bench::{mount, run};
use flexvol_host::{Device, DeviceNumber, VolumeId, loop_device, mount::unmount, pool::Allocation};
use flexvol_sdk::{ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, leave_mounts, tests};
use nix::mount::MsFlags;
use std::thread;

tests! {
    "a device that somebody else attached is adopted if it fits and refused if not", &[Need::Root, LOSETUP]
        => strangers;
    "a released device goes, at once or with its last mount", &[Need::Root, LOSETUP, E2FS]
        => released;
    "a claim sees mounts, also in other namespaces", &[Need::Root, E2FS] => claims;
    "loop devices work where /dev has no nodes", &[Need::Root] => without_devtmpfs;
}

const LOSETUP: Need = Need::Tool("losetup", "mount");
const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");

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

    // The owner of a device without a backing image is unknown.
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
                leave_mounts().unwrap();
                mount(&device, Filesystem::Ext4, &directory, false);
                assert!(busy());
            })
            .join()
            .unwrap();
    });
    // The namespace ends with its thread; the kernel removes the mount some time later.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while busy() {
        assert!(std::time::Instant::now() < end, "stays busy");
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// As in a container: /dev is a tmpfs, and device nodes in /run cannot be opened.
fn without_devtmpfs(points: &Points) {
    let fixture = Fixture::new();
    let (volume, image) = fixture.volume();
    let empty = |at: &str, flags| {
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("mode=0755")).unwrap();
    };
    thread::scope(|scope| {
        let run = || {
            leave_mounts().unwrap();
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

            // A node with the right name and a wrong number is rejected.
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

            // If /run allows device nodes, they are used.
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
