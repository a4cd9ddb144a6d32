//! Drivers as vendors write them: each takes a volume through its life as kubelet does.

use crate::{executable, sandbox};
use flexvol_testing::{Baseline, Driver, Need, PersistentVolume, Pod, Points, Sandbox, tests};
use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

const MIB: u64 = 1 << 20;

tests! {
    "a block driver of a vendor takes a volume through its life", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => block;
    "a directory driver of a vendor takes a volume through its life", &[Need::Root] => directory;
}

/// Installs the driver of that name in `drivers/`, as a vendor does, over the sandbox's pool.
pub fn install(sandbox: &Sandbox, name: &str) -> Driver {
    let built = executable().with_file_name(name);
    assert!(built.exists(), "build it first: cargo build -p {name}");
    let directory = sandbox.plugins().join(format!("example.com~{name}"));
    fs::create_dir(&directory).unwrap();
    fs::copy(built, directory.join(name)).unwrap();
    symlink(sandbox.pool(), directory.join(".pool")).unwrap();
    Driver::new(&format!("example.com/{name}"), directory.join(name))
}

/// What a driver answers `init`, and its five capabilities in the order of their names.
fn capabilities(driver: &Driver) -> [bool; 5] {
    let init = driver.call(&["init"]).success().object().unwrap();
    let told = init["capabilities"].as_object().unwrap().clone();
    let names = [
        "attach",
        "fsGroup",
        "requiresFSResize",
        "selinuxRelabel",
        "supportsMetrics",
    ];
    assert_eq!(told.len(), names.len());
    names.map(|name| told[name].as_bool().unwrap())
}

fn block(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox, "hello-block");
    assert_eq!(capabilities(&driver), [false, true, true, true, true]);
    let before = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "kept").unwrap();
    let grown = driver.call(&pod.expand_arguments(400 * MIB, 300 * MIB));
    let size = grown.success().object().unwrap()["volumenewsize"].as_u64();
    assert_eq!(size, Some(400 * MIB));
    let found = nix::sys::statvfs::statvfs(pod.dir()).unwrap();
    assert!(found.blocks() * found.fragment_size() > 300 * MIB);
    pod.unmount().success();
    pod.mount("ro").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(&sandbox, "deleted");
    points.add(9);
}

fn directory(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox, "hello-directory");
    assert_eq!(capabilities(&driver), [false, false, true, false, false]);
    let before = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "kept").unwrap();
    let disk = nix::sys::statvfs::statvfs(&sandbox.disk()).unwrap();
    let disk = disk.blocks() * disk.fragment_size();
    let grown = driver.call(&pod.expand_arguments(400 * MIB, 300 * MIB));
    let size = grown.success().object().unwrap()["volumenewsize"].as_u64();
    assert_eq!(size, Some(disk / MIB * MIB), "nothing limits it");
    let refused = driver.call(&pod.expand_arguments(disk + MIB, 300 * MIB));
    assert!(refused.failure().contains("whole file system"), "{refused}");
    assert_eq!(refused.text("errorClass"), "exhausted");
    pod.unmount().success();
    pod.mount("ro").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"kept");
    assert_eq!(fs::metadata(pod.dir()).unwrap().mode() & 0o7777, 0o755);
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(&sandbox, "deleted");
    points.add(10);
}
