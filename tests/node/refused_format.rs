//! A mkfs whose file system the node's kernel cannot mount, as when mkfs is newer than the kernel.

use crate::sandbox;
use flexvol_testing::{Baseline, Need, PersistentVolume, Pod, Points, tests};
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt};

tests! {
    "a new volume is mounted once, and its pod gets that mount", &[Need::Root, Need::Tool("strace", "strace"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => once;
    "a new volume that the kernel does not mount is formatted anew by the next mount", &[Need::Root, Need::Tool("mke2fs", "e2fsprogs"), Need::Tool("debugfs", "e2fsprogs"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => refused;
}

fn once(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", false, "");
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", 320 << 20);
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    let log = sandbox.path("calls");
    let strace = ["strace", "-f", "-qq", "-e", "trace=fsmount", "-o"].map(OsString::from);
    let line = [&strace[..], &[log.clone().into()]].concat();
    let call = driver.call_through(&line, &pod.mount_arguments("rw"));
    call.success();
    let calls = fs::read_to_string(&log).unwrap();
    // Before Linux 5.2 this call does not exist.
    assert!(calls.matches("fsmount(").count() <= 1, "{calls}");
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(1);
}

fn refused(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", false, "");
    let before = Baseline::of(&sandbox);
    // mke2fs makes a file system according to its own name.
    let real = sandbox.path("mkfs.ext4");
    fs::copy("/usr/sbin/mke2fs", &real).unwrap();
    let newer = sandbox.path("newer");
    let text = format!(
        "#!/bin/sh\nfor device; do :; done\n{} \"$@\" && debugfs -w -R 'feature FEATURE_I20' \"$device\" >/dev/null 2>&1\n",
        real.display()
    );
    fs::write(&newer, text).unwrap();
    fs::set_permissions(&newer, fs::Permissions::from_mode(0o755)).unwrap();
    let newer = format!("mount --bind {} /usr/sbin/mkfs.ext4", newer.display());

    for next in ["ext4", "xfs"] {
        let made = PersistentVolume::provision(&driver, next, "", 320 << 20);
        let volume = |filesystem| PersistentVolume {
            filesystem,
            ..made.clone()
        };
        let asked = volume("ext4");
        let pod = Pod::new(&sandbox, &driver, &asked, "a");
        // Twice: the second mount formats over the file system of the first.
        for _ in 0..2 {
            let call = driver
                .call_where(&newer, &pod.mount_arguments("rw"))
                .failure();
            assert!(call.contains("formats it anew"), "{call}");
            points.add(1);
        }
        let volume = volume(next);
        let pod = Pod::new(&sandbox, &driver, &volume, "a");
        pod.mount("rw").success();
        fs::write(pod.dir().join("file"), next).unwrap();
        pod.unmount().success();
        pod.mount("ro").success();
        assert_eq!(fs::read_to_string(pod.dir().join("file")).unwrap(), next);
        pod.unmount().success();
        driver.call(&["delete", &volume.json("rw")]).success();
        points.add(1);
    }
    before.expect(&sandbox, "deleted");
}
