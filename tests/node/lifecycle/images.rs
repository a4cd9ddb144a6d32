//! Makes and grows file systems in images with tools of the node.

use crate::node::{Backend, LOOP, MIB, Node, fill, measured, size_of_filesystem};
use flexvol_testing::{Call, Outcome, PersistentVolume, Points, has_sys_resource, tests};
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

tests! {
    "every file system whose making was cut at its end is made again", LOOP
        => made_again;
    "a volume kept from growing while mounted grows at its next mount", LOOP
        => grows_at_the_next_mount;
    "a mount does not wait for tools that grow a large ext4, and expandfs does", LOOP
        => large_grows_without_pods;
    "a btrfs grows to the 256 MiB that the kernel resizes one to, and is mounted without", LOOP
        => small_btrfs;
}

/// mkfs makes file systems smaller than the minimum to which the kernel resizes.
fn small_btrfs(points: &Points) {
    let (first, little, enough) = (128 * MIB, 200 * MIB, 256 * MIB);
    let node = Node::new(Backend::Loop);
    let of_volume = |name| PersistentVolume::provision(&node.driver, name, "btrfs", first);
    let expected = |call: Call| assert_eq!(measured(&call.success()), enough);

    let volume = of_volume("grown");
    let pod = node.pod(&volume);
    let grow = || node.driver.call(&pod.expand_arguments(little, first));
    pod.mount("rw").success();
    let shown = size_of_filesystem(pod.dir());
    let arguments = node.expand_volume_arguments(&volume, first, little);
    expected(node.driver.call(&arguments));
    expected(grow());
    assert!(size_of_filesystem(pod.dir()) > shown);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);

    // As an adopted image with such a size.
    let volume = of_volume("odd");
    let (pod, content) = node.written(&volume);
    let grow = |to| node.driver.call(&pod.expand_arguments(to, first));
    let image = File::options()
        .write(true)
        .open(volume.image(&node.sandbox));
    image.unwrap().set_len(little).unwrap();
    pod.mount("rw").success();
    assert_eq!(size_of_filesystem(pod.dir()), shown);
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    let refused = grow(little);
    let message = refused.failure();
    assert!(message.contains("ask for 256Mi or more"), "{message}");
    points.add(1);

    let limited = node.install("largest = \"220Mi\"");
    let refused = limited.call(&pod.expand_arguments(little + MIB, first));
    let message = refused.failure();
    assert!(message.contains("grows to 256Mi at least"), "{message}");
    node.install("");
    expected(grow(little + MIB));
    assert!(size_of_filesystem(pod.dir()) > shown);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);
}

/// Without CAP_SYS_RESOURCE only tools can grow it, and their time depends on its size.
fn large_grows_without_pods(_: &Points) {
    const GIB: u64 = 1 << 30;
    let backend = Backend::SparseLoop;
    let node = Node::on(backend, backend.sandbox(8192), false, "reserve = \"64Mi\"");
    let driver = &node.driver;
    let volume = PersistentVolume::provision(driver, "large", "ext4", 64 * GIB);
    let (pod, content) = node.written(&volume);
    let (new, old) = ((70 * GIB).to_string(), (64 * GIB).to_string());
    let dir = pod.dir().to_str().unwrap().to_owned();
    driver
        .call(&["expandvolume", &volume.json("rw"), &dir, &new, &old])
        .success();
    pod.mount("rw").success();
    let grew = size_of_filesystem(pod.dir()) > 65 * GIB;
    assert_eq!(grew, has_sys_resource(), "too large for its tools");
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    let grown = driver
        .call(&pod.expand_arguments(70 * GIB, 64 * GIB))
        .success();
    assert_eq!(measured(&grown), 70 * GIB);
    pod.mount("rw").success();
    assert!(size_of_filesystem(pod.dir()) > 65 * GIB);
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
}

/// As after a kill between the end of mkfs and the update of the mark: the file system is complete and has the UUID
/// that the driver would use again.
fn made_again(points: &Points) {
    for filesystem in ["xfs", "btrfs", "ext4", "ext3"] {
        let node = Node::new(Backend::Loop);
        let volume = node.volume_of(filesystem, filesystem);
        let pod = node.pod(&volume);
        let tool = format!("mkfs.{filesystem}");
        let (copy, failing) = (node.sandbox.path(&tool), node.sandbox.path("failing"));
        let there = Path::new("/usr/sbin").join(&tool);
        fs::copy(&there, &copy).unwrap();
        let script = format!("#!/bin/sh\n{} \"$@\"\nexit 1\n", copy.display());
        fs::write(&failing, script).unwrap();
        fs::set_permissions(&failing, Permissions::from_mode(0o755)).unwrap();
        let instead = format!("mount --bind {} {}", failing.display(), there.display());
        node.driver
            .call_where(&instead, &pod.mount_arguments("rw"))
            .failure();
        let image = node.blocks(&volume);
        let made = Command::new("blkid")
            .arg("-p")
            .arg(&image)
            .output()
            .unwrap();
        let made = String::from_utf8(made.stdout).unwrap();
        assert!(made.contains(filesystem), "{made}");
        pod.mount("rw").success();
        fill(pod.dir(), "file");
        pod.unmount().success();
        node.delete(&volume).success();
        points.add(1);
    }
}

/// A claim of another pod keeps ext4 from growing without CAP_SYS_RESOURCE. With it, the same calls succeed at
/// once.
fn grows_at_the_next_mount(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.volume_of("ext", "ext4");
    let pods = ["one", "two"].map(|uid| node.pod_of(&volume, uid));
    pods[0].mount("rw").success();
    let grown = node.grow(&pods[0], 400 * MIB);
    assert_eq!(grown.outcome() == Outcome::Success, has_sys_resource());
    pods[1].mount("rw").success();
    for pod in &pods {
        pod.unmount().success();
    }
    pods[1].mount("rw").success();
    let grown = node.grow(&pods[1], 400 * MIB).success();
    assert_eq!(measured(&grown), 400 * MIB);
    pods[1].unmount().success();
    node.expect_sound(&volume);
}
