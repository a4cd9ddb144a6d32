//! Administrators change a group while volumes are in use and callouts change it.

use super::{GROUP, GROWN, NEEDS, SIZE, inventory, lvm, told};
use crate::{node::Node, wrapper::Wrapper};
use flexvol_testing::{Points, disks, eventually, request, tests};
use std::{fs, process::Command, time::Duration};

tests! {
    "lvm: a volume that is being moved to another disk is mounted, and grows afterwards", NEEDS
        => moved;
    "lvm: a disk that comes into the group during a change is used", NEEDS => joined;
}

fn moved(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    // pvmove ends at its first poll at the earliest.
    let from = told(&volume, "devices");
    let (from, _) = from.split_once('(').unwrap();
    let mut moving = Command::new("lvm")
        .args(["pvmove", "-qq", "-i", "600", from])
        .spawn()
        .unwrap();
    let is_moved =
        || lvm(&["lvs", "-a", "--noheadings", "-o", "lv_name", GROUP]).contains("pvmove0");
    eventually(Duration::from_secs(60), "LVM moves the volume", is_moved);
    super::mounts(&pod, &content);
    pod.mount("rw").success();
    let before = inventory();
    let refused = node.expand(&volume, GROWN).failure();
    assert!(refused.contains("pvmove --abort"), "{refused}");
    assert_eq!(inventory(), before);
    let other = node.volume_of("other", "ext4");
    node.delete(&other).success();
    points.add(3);
    lvm(&["pvmove", "-qq", "--abort"]);
    moving.kill().unwrap();
    moving.wait().unwrap();
    node.expand(&volume, GROWN).success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);
}

fn joined(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let disk = disks()[2].to_str().unwrap().to_owned();
    let armed = node.sandbox.root().join("armed");
    // If a returning disk has no extents in use, LVM accepts it by itself.
    let before = format!(
        "case $1 in lvcreate|lvextend|lvchange|lvremove) if rm {0} 2>/dev/null; then\n\
         lvm vgextend -qq -y {GROUP} {disk} && lvm lvcreate -qq -y -Wn -Zn -n mine -l 4 {GROUP} {disk}\nfi;; esac",
        armed.display()
    );
    let _program = Wrapper::of("lvm", &before);
    let joins = |change: &dyn Fn()| {
        fs::write(&armed, "").unwrap();
        change();
        assert!(!armed.exists());
        let missing = lvm(&["vgs", "--noheadings", "-o", "vg_missing_pv_count", GROUP]);
        assert_eq!(missing.trim(), "0");
        node.delete(&node.volume_of("other", "ext4")).success();
        lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/mine")]);
        lvm(&["vgreduce", "-qq", GROUP, &disk]);
        lvm(&["pvremove", "-qq", &disk]);
        points.add(1);
    };
    // LVM makes nothing while it misses a disk. The next call succeeds.
    joins(&|| drop(node.driver.call(&["provision", &request("new", SIZE)])));
    node.volume_of("new", "ext4");
    joins(&|| drop(node.expand(&volume, GROWN)));
    node.expand(&volume, GROWN).success();
    super::mounts(&pod, &content);
    joins(&|| drop(node.delete(&volume).success()));
}
