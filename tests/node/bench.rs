//! Images, loop devices and mounts for tests of the host crate, without a driver.

use crate::host_lock::any_volume;
use flexvol_host::{
    VolumeId,
    block::{device::Device, probe::Proof},
    fs::{
        format::{self, MkfsTarget},
        grow::Resizing,
    },
    lock, loop_device,
    mount::{self, Detached, Target},
    pool::{Allocation, Pool},
    uuid::Uuid,
};
use flexvol_sdk::{ErrorKind, Filesystem, Result};
use flexvol_testing::arena;
use std::{
    ffi::OsStr,
    fs::File,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A directory whose mounts and files are removed on drop.
pub struct Bench(Option<TempDir>);

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-")
            .tempdir_in(arena())
            .unwrap();
        let pool = directory.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        Pool::init(&pool).unwrap();
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

    /// Returns a path for a new image in the bench's pool.
    pub fn image_name(&self) -> PathBuf {
        self.path("pool/volumes").join(any_volume().to_string())
    }

    /// Makes a sparse image in the bench's pool.
    pub fn image(&self, mebibytes: u64) -> PathBuf {
        let path = self.image_name();
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .unwrap();
        file.set_len(mebibytes << 20).unwrap();
        path
    }

    /// Makes a loop device on a sparse file with this file system.
    pub fn formatted(&self, filesystem: Filesystem, mebibytes: u64) -> Device {
        let device = attach(&self.image(mebibytes));
        make(&device, filesystem, false);
        device
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let Some(root) = self.0.take() else { return };
        for mount in flexvol_testing::below(root.path()).iter().rev() {
            // A mount that a failed test keeps busy goes with the executable's mount namespace.
            let _ = nix::mount::umount2(&mount.point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// Makes a loop device on an image of the pool, as a callout does.
pub fn attach(image: &Path) -> Device {
    attach_as(image, Allocation::Thin)
}

pub fn attach_as(image: &Path, allocation: Allocation) -> Device {
    let pool = Pool::open(image.parent().unwrap().parent().unwrap()).unwrap();
    let name = image.file_name().unwrap().to_str().unwrap();
    let volume = VolumeId::parse(name).unwrap();
    let image = pool.image(&volume).unwrap().unwrap();
    loop_device::attach(&image, &volume, None, allocation).unwrap()
}

/// The same device, opened by its number like a disk, so that its backing image is unknown.
pub fn bare(device: &Device) -> Device {
    Device::open(device.number()).unwrap()
}

/// Changes the size of the image and of its device.
pub fn resize(device: &Device, image: &Path, bytes: u64) {
    let file = File::options().write(true).open(image).unwrap();
    file.set_len(bytes).unwrap();
    run("losetup", ["-c".as_ref()], device.path());
}

pub fn make(device: &Device, filesystem: Filesystem, keep_allocation: bool) -> Uuid {
    let uuid = Uuid::random().unwrap();
    let target = MkfsTarget {
        keep_allocation,
        proof: Proof::Whole,
    };
    patiently(|| format::mkfs(device, filesystem, uuid, target, &guard()));
    uuid
}

/// Locks a new volume.
pub fn guard() -> lock::Guard {
    lock::volume(&any_volume(), Duration::from_secs(1)).unwrap()
}

/// A caller that records that the tools were started.
pub struct Begun;

impl Resizing for Begun {
    fn was_begun(&self) -> bool {
        true
    }

    fn begin(&self) -> Result<()> {
        Ok(())
    }
}

/// Repeats an operation for two seconds while it is busy. A program that another test starts at the same time
/// has this test's descriptors between fork and exec.
pub fn patiently<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result.unwrap(),
        }
    }
}

/// Unmounts. Returns whether anything was mounted.
pub fn unmount(directory: &Path) -> bool {
    patiently(|| mount::unmount(directory))
}

/// Checks that no process in any mount namespace uses the device.
pub fn unused(device: &Device) {
    patiently(|| device.claim());
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

/// Runs a program that must succeed and returns its output.
pub fn run<const N: usize>(program: &str, arguments: [&OsStr; N], last: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(last)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
