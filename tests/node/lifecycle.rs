//! The life of a volume as kubelet leads it, on a real node's loop devices and file systems.

pub mod attached;

use crate::{lvm::GROWERS, sandbox, sandbox_with};
use flexvol_testing::{
    Baseline, Call, Driver, Hidden, Need, Outcome, PersistentVolume, Pod, Points, PoolFilesystem,
    Sandbox, has_sys_resource, tests,
};
use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

pub const MIB: u64 = 1 << 20;

pub const ALL: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

tests! {
    "every file system is mounted, filled, grown while mounted and unmounted", ALL
        => every_filesystem;
    "every file system whose making was cut at its end is made again", ALL => made_again;
    "pods read only and writable share a volume in any order", ALL => pods_share;
    "two provisions of one name make one volume, and deleting is final", ALL => names;
    "a volume kept from growing while mounted grows at its next mount", ALL
        => grows_at_the_next_mount;
    "a mount does not wait for tools that grow a large ext4, and expandfs does", ALL
        => large_grows_without_pods;
}

/// Without CAP_SYS_RESOURCE only the tools grow it, and they take as long as it is large.
fn large_grows_without_pods(_: &Points) {
    const GIB: u64 = 1 << 30;
    let sandbox = sandbox_with(PoolFilesystem {
        mebibytes: 8192,
        ..PoolFilesystem::default()
    });
    let more = "reserve = \"64Mi\"\nthin = true";
    let driver = sandbox.install("flexvol.test/large", false, more);
    let volume = PersistentVolume::provision(&driver, "large", "ext4", 64 * GIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let content = fill(pod.dir());
    pod.unmount().success();
    let (new, old) = ((70 * GIB).to_string(), (64 * GIB).to_string());
    let dir = pod.dir().to_str().unwrap().to_owned();
    driver
        .call(&["expandvolume", &volume.json("rw"), &dir, &new, &old])
        .success();
    pod.mount("rw").success();
    let grew = size_of_filesystem(pod.dir()) > 65 * GIB;
    assert_eq!(grew, has_sys_resource(), "too large for its tools");
    assert_eq!(fs::read(pod.dir().join("before")).unwrap(), content);
    pod.unmount().success();
    let grown = driver
        .call(&pod.expand_arguments(70 * GIB, 64 * GIB))
        .success();
    assert_eq!(measured(&grown), 70 * GIB);
    pod.mount("rw").success();
    assert!(size_of_filesystem(pod.dir()) > 65 * GIB);
    assert_eq!(fs::read(pod.dir().join("before")).unwrap(), content);
    pod.unmount().success();
}

/// As after a kill between the tool's end and the mark that says so: the file system is whole and has
/// the UUID that the driver wants again.
fn made_again(points: &Points) {
    for filesystem in ["xfs", "btrfs", "ext4", "ext3"] {
        let sandbox = sandbox();
        let driver = shared(&sandbox);
        let volume = PersistentVolume::provision(&driver, filesystem, filesystem, 300 * MIB);
        let pod = Pod::new(&sandbox, &driver, &volume, "one");
        let tool = format!("mkfs.{filesystem}");
        let (copy, failing) = (sandbox.path(&tool), sandbox.path("failing"));
        let there = Path::new("/usr/sbin").join(&tool);
        fs::copy(&there, &copy).unwrap();
        let script = format!("#!/bin/sh\n{} \"$@\"\nexit 1\n", copy.display());
        fs::write(&failing, script).unwrap();
        fs::set_permissions(&failing, Permissions::from_mode(0o755)).unwrap();
        let instead = format!("mount --bind {} {}", failing.display(), there.display());
        driver
            .call_where(&instead, &pod.mount_arguments("rw"))
            .failure();
        let image = volume.image(&sandbox);
        let made = Command::new("blkid")
            .arg("-p")
            .arg(&image)
            .output()
            .unwrap();
        let made = String::from_utf8(made.stdout).unwrap();
        assert!(made.contains(filesystem), "{made}");
        pod.mount("rw").success();
        fill(pod.dir());
        pod.unmount().success();
        driver.call(&["delete", &volume.json("rw")]).success();
        points.add(1);
    }
}

pub fn shared(sandbox: &Sandbox) -> Driver {
    sandbox.install("flexvol.test/shared", false, "reserve = \"64Mi\"")
}

/// Writes a file and returns its content, to be found again.
pub fn fill(dir: &Path) -> Vec<u8> {
    let content: Vec<u8> = (0..8 * MIB).map(|at| (at % 251) as u8).collect();
    let mut file = File::create(dir.join("before")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    content
}

pub fn size_of_filesystem(dir: &Path) -> u64 {
    let found = nix::sys::statvfs::statvfs(dir).unwrap();
    found.blocks() * found.fragment_size()
}

pub fn measured(call: &Call) -> u64 {
    call.object().unwrap()["volumenewsize"].as_u64().unwrap()
}

fn every_filesystem(points: &Points) {
    for filesystem in ["xfs", "btrfs", "ext4", "ext3"] {
        let sandbox = sandbox();
        let driver = shared(&sandbox);
        let baseline = Baseline::of(&sandbox);
        let volume = PersistentVolume::provision(&driver, filesystem, filesystem, 300 * MIB);
        let pod = Pod::new(&sandbox, &driver, &volume, "one");
        pod.mount("rw").success();
        let content = fill(pod.dir());
        let before = size_of_filesystem(pod.dir());
        // Nothing is there that could grow a file system by itself: the driver asks the kernel.
        let hidden = Hidden::tools(GROWERS);
        let grown = driver.call(&pod.expand_arguments(600 * MIB, 300 * MIB));
        drop(hidden);
        if filesystem.starts_with("ext") && !has_sys_resource() {
            let message = grown.failure();
            assert!(message.contains("CAP_SYS_RESOURCE"), "{message}");
            assert!(
                message.contains("300Mi") && message.contains("600Mi"),
                "{message}"
            );
            pod.unmount().success();
            pod.mount("rw").success();
            let grown = driver
                .call(&pod.expand_arguments(600 * MIB, 300 * MIB))
                .success();
            assert_eq!(measured(&grown), 600 * MIB);
        } else {
            assert_eq!(measured(&grown.success()), 600 * MIB);
        }
        assert!(
            size_of_filesystem(pod.dir()) > before + 250 * MIB,
            "{filesystem}"
        );
        assert_eq!(fs::read(pod.dir().join("before")).unwrap(), content);
        pod.mount("rw").success();
        pod.unmount().success();
        pod.unmount().success();
        driver.call(&["delete", &volume.json("rw")]).success();
        driver.call(&["delete", &volume.json("rw")]).success();
        baseline.expect(&sandbox, "the volume was deleted");
        points.add(1);
    }
}

fn pods_share(points: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let volume = PersistentVolume::provision(&driver, "both", "xfs", 300 * MIB);
    let baseline = Baseline::of(&sandbox).without_space();
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    for (first, second) in [("ro", "rw"), ("rw", "ro"), ("ro", "ro"), ("rw", "rw")] {
        pods[0].mount(first).success();
        pods[1].mount(second).success();
        for (pod, mode) in pods.iter().zip([first, second]) {
            let written = fs::write(pod.dir().join(mode), mode);
            assert_eq!(
                written.is_ok(),
                mode == "rw",
                "{first} then {second}: {written:?}"
            );
        }
        let grown = driver
            .call(&pods[1].expand_arguments(300 * MIB, 300 * MIB))
            .success();
        assert_eq!(measured(&grown), 300 * MIB);
        pods[0].unmount().success();
        assert_eq!(
            sandbox.loops().len(),
            1,
            "the second pod still has its volume"
        );
        pods[1].unmount().success();
        baseline.expect(&sandbox, "both pods are gone");
        points.add(1);
    }
    pods[0].mount("ro").success();
    pods[1].mount("rw").success();
    let grown = driver
        .call(&pods[1].expand_arguments(400 * MIB, 300 * MIB))
        .success();
    assert_eq!(measured(&grown), 400 * MIB);
    assert!(
        size_of_filesystem(pods[0].dir()) > 300 * MIB,
        "the read-only pod sees it"
    );
    for pod in &pods {
        pod.unmount().success();
    }
}

fn names(_: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "twice", "xfs", 300 * MIB);
    let again = PersistentVolume::provision(&driver, "twice", "xfs", 300 * MIB);
    assert_eq!(volume.handle(), again.handle());
    let larger = driver.call(&["provision", &flexvol_testing::request("twice", 400 * MIB)]);
    assert!(larger.failure().contains("300Mi") && larger.failure().contains("400Mi"));
    driver.call(&["delete", &volume.json("rw")]).success();
    let gone = Pod::new(&sandbox, &driver, &volume, "one").mount("rw");
    assert!(gone.failure().contains("no such volume"));
    baseline.expect(&sandbox, "the volume was deleted");
    let anew = PersistentVolume::provision(&driver, "twice", "xfs", 300 * MIB);
    assert_ne!(
        volume.handle(),
        anew.handle(),
        "a handle is never used again"
    );
}

/// The claim of another pod keeps ext4 from growing without CAP_SYS_RESOURCE; with it, the same
/// calls succeed at once.
fn grows_at_the_next_mount(_: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let volume = PersistentVolume::provision(&driver, "ext", "ext4", 300 * MIB);
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    pods[0].mount("rw").success();
    let grown = driver.call(&pods[0].expand_arguments(400 * MIB, 300 * MIB));
    assert_eq!(grown.outcome() == Outcome::Success, has_sys_resource());
    pods[1].mount("rw").success();
    for pod in &pods {
        pod.unmount().success();
    }
    pods[1].mount("rw").success();
    let grown = driver
        .call(&pods[1].expand_arguments(400 * MIB, 300 * MIB))
        .success();
    assert_eq!(measured(&grown), 400 * MIB);
    pods[1].unmount().success();
    let fsck = Command::new("e2fsck")
        .args(["-f", "-n"])
        .arg(volume.image(&sandbox))
        .output();
    assert!(fsck.unwrap().status.success());
}
