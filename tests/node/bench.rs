//! What the tests of the host crate share: images, loop devices and mounts of their own, without
//! pool or driver.

use flexvol_host::{
    device::{Device, DeviceNumber},
    format, lock,
    mount::{self, Detached, Target},
    uuid::Uuid,
};
use flexvol_sdk::{Filesystem, Handle};
use flexvol_testing::arena;
use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// A directory that is emptied of mounts and removed at the end.
pub struct Bench(Option<TempDir>);

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-")
            .tempdir_in(arena())
            .unwrap();
        Bench(Some(directory))
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.as_ref().unwrap().path().join(name)
    }

    pub fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// A sparse file.
    pub fn image(&self, name: &str, mebibytes: u64) -> PathBuf {
        let path = self.path(name);
        let file = File::create_new(&path).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        path
    }

    /// A loop device over a sparse file with this file system.
    pub fn formatted(&self, name: &str, filesystem: Filesystem, mebibytes: u64) -> Device {
        let device = attach(&self.image(name, mebibytes));
        make(&device, filesystem, false);
        device
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let Some(root) = self.0.take() else { return };
        for mount in flexvol_testing::below(root.path()).iter().rev() {
            // One that a failed test keeps busy goes with the executable's mount namespace.
            let _ = nix::mount::umount2(&mount.point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// A loop device that goes with its last user: `losetup -d` of an open one says just that.
pub fn attach(image: &Path) -> Device {
    let node = run("losetup", ["--find", "--show"].map(OsStr::new), image);
    let minor = node.trim().strip_prefix("/dev/loop").unwrap();
    let number = DeviceNumber {
        major: 7,
        minor: minor.parse().unwrap(),
    };
    let device = Device::open(number);
    run("losetup", ["-d".as_ref()], node.trim().as_ref());
    device.unwrap()
}

/// Makes the image longer, or shorter, and lets its device see it.
pub fn resize(device: &Device, image: &Path, bytes: u64) {
    let file = File::options().write(true).open(image).unwrap();
    file.set_len(bytes).unwrap();
    run("losetup", ["-c".as_ref()], device.path());
}

pub fn make(device: &Device, filesystem: Filesystem, keep_allocation: bool) -> Uuid {
    let uuid = Uuid::random().unwrap();
    format::mkfs(device, filesystem, uuid, keep_allocation, &guard()).unwrap();
    uuid
}

/// The lock of a volume that nobody else has.
pub fn guard() -> lock::Guard {
    let handle = Handle::from_bytes(*Uuid::random().unwrap().as_bytes());
    lock::volume(&handle, Duration::from_secs(1)).unwrap()
}

/// Mounts as a callout does.
pub fn mount(device: &Device, filesystem: Filesystem, directory: &Path, read_only: bool) {
    let target = Target::open(directory).unwrap().unwrap();
    let mount = Detached::new(device, filesystem).unwrap();
    mount.attach(&target, read_only).unwrap();
}

pub fn mounted(directory: &Path) -> Option<mount::Mounted> {
    Target::open(directory).unwrap().unwrap().mounted().unwrap()
}

/// Runs a program that must succeed and returns what it printed.
pub fn run<const N: usize>(program: &str, arguments: [&OsStr; N], last: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(last)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
