//! What becomes of volumes when the node, kubelet or a disk goes away and comes back.

use crate::{
    lifecycle::{ALL, MIB, fill, measured, shared, size_of_filesystem},
    sandbox,
};
use flexvol_testing::{Call, PersistentVolume, Pod, Points, Sandbox, below, eventually, tests};
use std::{fs, path::PathBuf, time::Duration};

tests! {
    "a volume survives a reboot, its growth half done", ALL => reboot;
    "expandfs finds the volume by its directory after a kubelet restart", ALL => bare_json;
    "a missing data disk is refused, and unmounting works without it", ALL => missing_disk;
    "volumes that swap loop numbers are not mixed up", ALL => swapped_loops;
}

/// What a reboot leaves: marks and images, and nothing in the kernel.
fn lose_power(sandbox: &Sandbox) {
    for mount in below(&sandbox.kubelet_root()).iter().rev() {
        nix::mount::umount2(&mount.point, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
    // A mount that was detached goes after whoever just looks at it.
    eventually(Duration::from_secs(2), "no loops after the reboot", || {
        sandbox.loops().is_empty()
    });
}

fn reboot(_: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let volume = PersistentVolume::provision(&driver, "survivor", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let content = fill(pod.dir());
    // Storage and nothing else, as a power cut in the middle of expandfs leaves it.
    let json = volume.json("rw");
    let new = (500 * MIB).to_string();
    let dir = pod.dir().to_str().unwrap();
    driver
        .call(&["expandvolume", &json, dir, &new, "314572800"])
        .success();
    assert!(size_of_filesystem(pod.dir()) < 300 * MIB);
    lose_power(&sandbox);
    pod.mount("rw").success();
    assert!(
        size_of_filesystem(pod.dir()) > 400 * MIB,
        "grown at the next mount"
    );
    assert_eq!(fs::read(pod.dir().join("before")).unwrap(), content);
    pod.unmount().success();
}

fn bare_json(_: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let volume = PersistentVolume::provision(&driver, "bare", "xfs", 300 * MIB);
    let other = PersistentVolume::provision(&driver, "other", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let bare = r#"{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"bare","kubernetes.io/readwrite":"rw"}"#;
    let dir = pod.dir().to_str().unwrap();
    let sizes = [(400 * MIB).to_string(), (300 * MIB).to_string()];
    let grown = driver
        .call(&["expandfs", bare, "", dir, &sizes[0], &sizes[1]])
        .success();
    assert_eq!(measured(&grown), 400 * MIB);
    let wrong = driver.call(&["expandfs", &other.json("rw"), "", dir, &sizes[0], &sizes[1]]);
    assert!(wrong.failure().contains("another volume"));
    assert_eq!(other.image(&sandbox).metadata().unwrap().len(), 300 * MIB);
    pod.unmount().success();
    let gone = driver.call(&["expandfs", bare, "", dir, &sizes[0], &sizes[1]]);
    assert!(gone.failure().contains("handle"));
}

fn missing_disk(_: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    pods[0].mount("rw").success();
    let (pool, away) = (sandbox.pool(), sandbox.disk().join("away"));
    fs::rename(&pool, &away).unwrap();
    fs::create_dir(&pool).unwrap();
    let calls: [(&str, Call); 3] = [
        ("mount", pods[1].mount("rw")),
        ("delete", driver.call(&["delete", &volume.json("rw")])),
        ("capacity", driver.call(&["capacity", "{}"])),
    ];
    for (callout, call) in calls {
        assert!(
            call.failure().contains("not mounted"),
            "{callout}: {}",
            call.failure()
        );
    }
    pods[0].unmount().success();
    assert_eq!(sandbox.loops(), []);
    fs::remove_dir(&pool).unwrap();
    fs::rename(&away, &pool).unwrap();
    pods[1].mount("rw").success();
    pods[1].unmount().success();
}

fn swapped_loops(_: &Points) {
    let sandbox = sandbox();
    let driver = shared(&sandbox);
    let volumes = ["first", "second"]
        .map(|name| PersistentVolume::provision(&driver, name, "xfs", 300 * MIB));
    let pods = [0, 1].map(|n| Pod::new(&sandbox, &driver, &volumes[n], "one"));
    let device = |dir: &PathBuf| {
        let mounted = below(dir);
        mounted.first().map(|mount| mount.device.clone())
    };
    for pod in &pods {
        pod.mount("rw").success();
        fs::write(
            pod.dir().join("name"),
            pod.dir().file_name().unwrap().as_encoded_bytes(),
        )
        .unwrap();
    }
    let before = pods.each_ref().map(|pod| device(pod.dir()));
    // Others on this machine take loop numbers too, and may get one of these two in between.
    let swapped = (0..50).any(|_| {
        pods.iter().for_each(|pod| drop(pod.unmount().success()));
        pods[1].mount("rw").success();
        pods[0].mount("rw").success();
        before != pods.each_ref().map(|pod| device(pod.dir()))
    });
    assert!(swapped, "the numbers were meant to be swapped");
    for pod in &pods {
        let name = fs::read(pod.dir().join("name")).unwrap();
        assert_eq!(name, pod.dir().file_name().unwrap().as_encoded_bytes());
        pod.unmount().success();
        pod.unmount().success();
    }
    assert_eq!(sandbox.loops(), []);
}
