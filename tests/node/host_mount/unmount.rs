//! Unmounting: the order, processes that keep a mount busy, and reports of lost data.

use super::{E2FS, XFS};
use crate::bench::{Bench, mount, mounted, patiently, run, unmount, unused};
use flexvol_host::{
    mount::{self as host_mount, Mounted, Target},
    mountinfo,
};
use flexvol_sdk::{ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, leave_mounts, tests};
use nix::mount::MsFlags;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    sync::mpsc,
    thread,
    time::Duration,
};

tests! {
    "stacked mounts go one by one, the topmost first", &[Need::Root, E2FS] => stacked;
    "whoever only looks at a mount does not keep it", &[Need::Root, E2FS] => looked_at;
    "a mount in use is busy and stays", &[Need::Root, E2FS] => busy;
    "a dead file system is unmounted", &[Need::Root] => dead;
    "data that could not be written is reported and the volume is unmounted", &[Need::Root, XFS, Need::Tool("xfs_io", "xfsprogs")]
        => shut_down;
    "a mount in another mount namespace keeps the device busy", &[Need::Root, E2FS] => elsewhere;
}

fn stacked(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Ext4, 32);
    let other = bench.formatted(Filesystem::Ext3, 32);
    let directory = bench.directory("directory");
    mount(&other, Filesystem::Ext3, &directory, false);
    mount(&device, Filesystem::Ext4, &directory, true);
    mount(&other, Filesystem::Ext3, &directory, true);
    let tops = [(&other, true), (&device, true), (&other, false)];
    for (device, read_only) in tops {
        let found = Mounted {
            devices: vec![device.number()],
            read_only,
        };
        assert_eq!(mounted(&directory), Some(found));
        assert!(unmount(&directory));
    }
    assert_eq!(mounted(&directory), None);
    assert!(!unmount(&directory));
}

fn looked_at(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Ext4, 32);
    let directory = bench.directory("directory");
    mount(&device, Filesystem::Ext4, &directory, false);
    let look = File::open(&directory).unwrap();
    let looker = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        drop(look);
    });
    assert!(host_mount::unmount(&directory).unwrap());
    looker.join().unwrap();
}

fn busy(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Ext4, 32);
    let directory = bench.directory("directory");
    mount(&device, Filesystem::Ext4, &directory, false);
    let target = Target::open(&directory).unwrap().unwrap();
    let file = File::create(directory.join("file")).unwrap();
    assert_eq!(
        host_mount::unmount(&directory).unwrap_err().kind(),
        ErrorKind::Busy
    );
    assert!(mounted(&directory).is_some());
    drop(file);
    // The target that is held here does not count as a user.
    assert!(unmount(&directory));
    assert_eq!(target.mounted().unwrap(), None);
}

/// A FUSE file system whose server closed the connection returns `ENOTCONN` for everything.
fn dead(_: &Points) {
    let bench = Bench::new();
    let directory = bench.directory("directory");
    let server = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap();
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        server.as_raw_fd()
    );
    nix::mount::mount(
        Some("flexvol-test"),
        &directory,
        Some("fuse"),
        MsFlags::empty(),
        Some(data.as_str()),
    )
    .unwrap();
    drop(server);
    let error = fs::read_dir(&directory).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    assert!(mounted(&directory).is_some());
    assert!(unmount(&directory));
    assert!(!unmount(&directory));
}

/// As after an I/O error in its log: the file system has shut down and rejects all operations.
fn shut_down(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Xfs, 300);
    let directory = bench.directory("directory");
    mount(&device, Filesystem::Xfs, &directory, false);
    fs::write(directory.join("file"), "never written").unwrap();
    run(
        "xfs_io",
        ["-x", "-c", "shutdown"].map(OsStr::new),
        &directory,
    );
    let error = patiently(|| match host_mount::unmount(&directory) {
        Err(error) if error.kind() != ErrorKind::Busy => Ok(error),
        result => result.map(|_| panic!("nothing was reported")),
    });
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(error.to_string().contains("not all of its data"), "{error}");
    assert_eq!(mounted(&directory), None);
    assert!(!unmount(&directory));
    unused(&device);
}

fn elsewhere(_: &Points) {
    let bench = Bench::new();
    let device = bench.formatted(Filesystem::Ext4, 32);
    let directory = bench.directory("directory");
    let (node, there) = (device.path(), directory.as_path());
    let (tell, told) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            leave_mounts().unwrap();
            let rw = MsFlags::empty();
            nix::mount::mount(Some(node), there, Some("ext4"), rw, None::<&str>).unwrap();
            tell.send(()).unwrap();
            let _ = finished.recv();
        });
        told.recv().unwrap();
        assert_eq!(mounted(&directory), None);
        assert_eq!(mountinfo::mounts_of(device.number()).unwrap(), []);
        assert_eq!(device.claim().unwrap_err().kind(), ErrorKind::Busy);
        drop(finish);
    });
}
