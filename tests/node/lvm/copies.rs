//! Copies of a group and of its disks, which have the same volumes.

use super::{GROUP, GROWN, NEEDS, SIZE, group, lvm, output};
use crate::node::{MIB, Node, fill};
use flexvol_testing::{Call, Points, request, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

tests! {
    "lvm: a copy of a group is no pool before somebody says so", NEEDS => copied_group;
    "lvm: while a disk of the group has a copy beside it, nothing relies on either", NEEDS
        => copied_disk;
}

/// A group as it appears from copied disks: the same tags, but another UUID.
fn copied_group(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let init = || {
        let words = ["pool", "init", "--group", GROUP];
        output(crate::executable().to_str().unwrap(), &words)
    };
    let tags = || lvm(&["vgs", "--noheadings", "-o", "vg_tags", GROUP]);
    let tag = tags().trim().to_owned();
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    lvm(&["vgchange", "-qq", "--uuid", GROUP]);
    let refused = pod.mount("rw").failure();
    assert!(refused.contains("tag of another one"), "{refused}");
    let call = node.driver.call(&["provision", &request("more", SIZE)]);
    let refused = call.failure();
    assert!(refused.contains("tag of another one"), "{refused}");
    // Another node may serve the claim.
    assert_eq!(call.text("errorClass"), "retryable", "{call}");
    points.add(2);

    // With the original beside it, the choice is ambiguous.
    group("original", &flexvol_testing::disks()[2..3]);
    lvm(&["vgchange", "-qq", "--addtag", &tag, "original"]);
    let said = init();
    assert!(!said.status.success(), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("is here too"));
    assert_eq!(tags().trim(), tag);
    lvm(&["vgremove", "-qq", "-y", "original"]);
    let said = init();
    assert!(said.status.success(), "{said:?}");
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(3);
}

/// Copies what makes LVM take one disk for another: the label, and the group's metadata.
fn copy_head(from: &Path, to: &Path) {
    let mut head = vec![0; 2 * usize::try_from(MIB).unwrap()];
    File::open(from)
        .unwrap()
        .read_exact_at(&mut head, 0)
        .unwrap();
    let to = File::options().write(true).open(to).unwrap();
    to.write_all_at(&head, 0).unwrap();
    to.sync_all().unwrap();
}

fn copied_disk(points: &Points) {
    let node = Node::linear();
    let disks = flexvol_testing::disks();
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    // A duplicate disk of another group does not matter.
    group("other", &disks[2..3]);
    copy_head(&disks[2], &disks[3]);
    node.expand(&volume, GROWN).success();
    points.add(1);

    copy_head(Path::new("/dev/zero"), &disks[3]);
    copy_head(&disks[0], &disks[3]);
    let (dir, more) = (pod.dir().to_str().unwrap(), request("more", SIZE));
    let other = flexvol_testing::Pod::new(&node.sandbox, &node.driver, &volume, "other");
    let refused = |what: &str, call: Call| {
        let said = call.failure();
        assert!(said.contains("is there twice"), "{what}: {said}");
        assert_eq!(call.text("errorClass"), "retryable", "{what}");
        points.add(1);
    };
    refused("provision", node.driver.call(&["provision", &more]));
    refused("mount", other.mount("rw"));
    refused("growth", node.expand(&volume, GROWN + 64 * MIB));
    refused("delete", node.delete(&volume));
    let plugins = node.sandbox.plugins();
    let words = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
    let said = output(crate::executable().to_str().unwrap(), &words);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("is there twice") && said.contains("vgimportclone DISKS"),
        "{said}"
    );
    // Unmounting is still possible.
    node.driver.call(&["unmount", dir]).success();
    points.add(2);

    // The copy is detached.
    copy_head(Path::new("/dev/zero"), &disks[3]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);
}
