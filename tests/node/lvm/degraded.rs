//! Groups without one of their disks, permanently or for a while: volumes that are complete without it keep working.

use super::{
    GROUP, GROWN, NEEDS, detach, lvm, make_thin_pool, misses_a_disk, mounts, reported, told,
};
use crate::node::Node;
use flexvol_testing::{PersistentVolume, Points, disks, patience, tests};
use std::{fs, os::unix::fs::FileExt, path::Path, thread, time::Duration};

tests! {
    "lvm: a volume on a RAID is mounted while a disk of it is lost, and others with it", NEEDS
        => |points| lost(false, points);
    "lvm: a volume on a RAID is mounted, and others are made, when its lost leg was taken out", NEEDS
        => |points| lost(true, points);
    "lvm: thin volumes are mounted and made when a leg of their pool was taken out", NEEDS => thin;
    "lvm: a disk that LVM misses stops no volume on the others, and no RAID", NEEDS => unlabelled;
    "lvm: a disk that came back and counts as missing stops no volume on the others", NEEDS
        => not_restored;
    "lvm: a volume is mounted when its disk has come back under another number", NEEDS
        => |points| back(&Node::linear(), points);
    "lvm: a thin volume is mounted when a disk of its pool has come back under another number", NEEDS
        => |points| back(&Node::thin(1 << 30), points);
}

/// Mirrors a volume, or a part of one, on both disks.
fn mirror(path: &str) {
    lvm(&["lvconvert", "-qq", "-y", "--type", "raid1", "-m1", path]);
    let synced = || {
        lvm(&[
            "lvs",
            "-a",
            "-qq",
            "--noheadings",
            "-o",
            "sync_percent",
            path,
        ])
    };
    for _ in 0..600 * patience() {
        if synced().trim() == "100.00" {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{}", synced());
}

fn deactivate(volume: &PersistentVolume) {
    lvm(&["lvchange", "-qq", "-an", &super::path(volume)]);
}

fn lost(reduced: bool, points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let other = node.volume_of("other", "ext4");
    let (of_other, in_other) = node.written(&other);
    mirror(&super::path(&volume));
    deactivate(&other);
    detach(&disks()[1]);
    mounts(&pod, &content);
    if reduced {
        lvm(&["vgreduce", "-qq", "-y", "--removemissing", "--force", GROUP]);
    }
    mounts(&pod, &content);
    mounts(&of_other, &in_other);
    if reduced {
        node.expand(&other, GROWN).success();
        node.volume_of("more", "ext4");
        node.delete(&other).success();
    } else {
        misses_a_disk(&node.delete(&other));
    }
    deactivate(&volume);
    mounts(&pod, &content);
    points.add(1);
}

fn thin(points: &Points) {
    let node = Node::thin(1 << 30);
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    // The spare volume would be lost with its disk.
    lvm(&["lvremove", "-qq", "-f", "vg0/lvol0_pmspare"]);
    for part in ["tp0_tdata", "tp0_tmeta"] {
        mirror(&format!("{GROUP}/{part}"));
    }
    detach(&disks()[1]);
    // Without --mirrorsonly, vgreduce removes the pool.
    let words = ["-qq", "-y", "--removemissing", "--mirrorsonly", "--force"];
    lvm(&[&["vgreduce"], &words[..], &[GROUP]].concat());
    mounts(&pod, &content);
    let more = node.volume_of("more", "ext4");
    node.expand(&volume, GROWN).success();
    deactivate(&volume);
    mounts(&pod, &content);
    for volume in [&more, &volume] {
        node.delete(volume).success();
    }
    points.add(1);
}

/// LVM's label was overwritten, but the kernel still uses the disk.
fn unlabelled(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let linear = node.volume_of("linear", "ext4");
    let (of_linear, in_linear) = node.written(&linear);
    mirror(&super::path(&volume));
    deactivate(&linear);
    let list = disks();
    let disk = list[1].to_str().unwrap();
    // A foreign thin pool, with parts that are only on that disk.
    make_thin_pool(&["-L", "64m", "-n", "tp1", GROUP, disk]);
    let file = fs::File::options().write(true).open(disk).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let said = lvm(&["vgs", "-qq", "--noheadings", "-o", "pv_name", GROUP]);
    assert!(said.contains("unknown"), "{said}");
    mounts(&pod, &content);
    mounts(&of_linear, &in_linear);
    for volume in [&linear, &volume] {
        misses_a_disk(&node.delete(volume));
    }
    points.add(1);
}

/// LVM wrote the group's metadata while the disk was missing.
fn not_restored(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    mirror(&super::path(&volume));
    let [other, last] = ["other", "last"].map(|name| node.volume_of(name, "ext4"));
    let (of_other, in_other) = node.written(&other);
    let detached = detach(&disks()[1]);
    lvm(&["lvremove", "-qq", "-f", "-y", &super::path(&last)]);
    detached.attach();
    let said = lvm(&[
        "vgs",
        "-qq",
        "--noheadings",
        "-o",
        "pv_name,pv_missing",
        GROUP,
    ]);
    assert!(
        said.contains("missing") && !said.contains("unknown"),
        "{said}"
    );
    mounts(&pod, &content);
    deactivate(&other);
    mounts(&of_other, &in_other);
    deactivate(&volume);
    mounts(&pod, &content);
    misses_a_disk(&node.delete(&other));
    let missing = said.lines().find(|line| line.contains("missing")).unwrap();
    let disk = missing.split_whitespace().next().unwrap();
    lvm(&["vgextend", "-qq", "--restoremissing", GROUP, disk]);
    node.delete(&other).success();
    points.add(1);
}

fn back(node: &Node, points: &Points) {
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let list = disks();
    let disk: &Path = list[..2].iter().find(|disk| has_data(disk)).unwrap();
    detach(disk).attach();
    assert!(!disk.exists(), "it has its number again");
    mounts(&pod, &content);
    // A thin pool that lost a disk while active may accept no writes before it is repaired (lvmthin(7)).
    if told(&volume, "pool_lv").is_empty() {
        node.expand(&volume, GROWN).success();
        node.delete(&volume).success();
    }
    points.add(1);
}

/// Whether most of the data is on a disk.
fn has_data(disk: &Path) -> bool {
    let used = reported("pvs", "pv_used", disk.to_str().unwrap());
    used.parse::<u64>().unwrap() > super::SIZE / 2
}
