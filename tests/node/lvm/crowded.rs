//! A group whose metadata has room for few volumes more, and volumes that are kept there after they were deleted.

use super::{GROUP, NEEDS, lvm, path};
use crate::node::{Backend, MIB, Node};
use flexvol_testing::{Call, Driver, Outcome, PersistentVolume, Points, disks, json, tests};
use std::fs;

tests! {
    "lvm: volumes that are kept leave the group's metadata enough for every delete, and go where they are too many",
        NEEDS => crowded;
    "lvm: a volume in many pieces grows by more, and none grows over more pieces than the group's metadata have room for",
        NEEDS => pieces;
}

const SIZE: u64 = 16 * MIB;

fn kept() -> usize {
    let tags = lvm(&["lvs", "--noheadings", "-o", "lv_tags", GROUP]);
    tags.matches(":deleted=").count()
}

fn provision(driver: &Driver, name: &str) -> Call {
    let size = SIZE.to_string();
    let told = [
        ("kubernetes.io/pvOrVolumeName", name),
        ("kubernetes.io/pvc.namespace", "default"),
        ("requestBytes", &size),
        ("fsType", "ext4"),
    ];
    driver.call(&["provision", &json(told)])
}

/// A group with room for few volumes in its metadata.
fn small_group() {
    let disk = disks()[0].to_str().unwrap().to_owned();
    let small = ["--dataalignment", "4k", "--metadatasize", "32k"];
    lvm(&[&["pvcreate", "-qq", "-y"], &small[..], &[&disk]].concat());
    lvm(&["vgcreate", "-qq", "-y", GROUP, &disk]);
}

/// Text in the group's metadata that is nobody's volume.
fn tag_the_group(text: &str) {
    lvm(&["vgchange", "-qq", "--addtag", text, GROUP]);
}

fn reported(verb: &str, field: &str, what: &str) -> u64 {
    let words = ["--noheadings", "--nosuffix", "--units", "b", "-o", field];
    let said = lvm(&[&[verb][..], &words, &[what]].concat());
    said.trim().parse().unwrap()
}

fn expand(node: &Node, volume: &PersistentVolume, to: u64) -> Call {
    let dir = node.pod(volume).dir().to_str().unwrap().to_owned();
    let (json, [new, old]) = (volume.json("rw"), [to, SIZE].map(|size| size.to_string()));
    node.driver.call(&["expandvolume", &json, &dir, &new, &old])
}

fn pieces(points: &Points) {
    small_group();
    let node = Node::on(Backend::Lvm, crate::sandbox(), false, "");
    let made = ["one", "two"].map(|name| {
        let made = provision(&node.driver, name).success();
        PersistentVolume::from_reply(name, "ext4", &made)
    });
    let names = made.each_ref().map(path);
    for _ in 0..20 {
        for name in &names {
            lvm(&["lvextend", "-qq", "-l", "+1", name]);
        }
    }
    let [one, two] = &made;
    let size = || reported("lvs", "lv_size", &names[0]);
    let had = size();
    assert!(had > 90 * MIB && reported("lvs", "seg_count", &names[0]) > 16);
    expand(&node, one, had + 4 * MIB).success();
    assert!(size() >= had + had / 8, "{} of {had}", size());

    // What the other one had is free in pieces of an extent each, and nothing else is.
    lvm(&[
        "lvcreate", "-qq", "-y", "-an", "-Zn", "-Wn", "-n", "rest", "-l", "100%FREE", GROUP,
    ]);
    node.delete(two).success();
    let free = || reported("vgs", "vg_free", GROUP);
    let taken = || {
        let half = reported("vgs", "vg_mda_size", GROUP) / 2;
        100 - 100 * reported("vgs", "vg_mda_free", GROUP) / half
    };
    for tag in 0.. {
        if taken() > 80 {
            break;
        }
        tag_the_group(&format!("{tag:0>200}"));
    }
    let (had, room) = (size(), free());
    let refused = expand(&node, one, had + room).failure();
    assert!(refused.contains("small pieces"), "{refused}");
    assert_eq!((size(), free()), (had, room));
    assert!(taken() < 87, "{}", taken());
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/rest")]);
    expand(&node, one, had + 32 * MIB).success();
    node.delete(one).success();
    points.add(3);
}

fn crowded(points: &Points) {
    small_group();
    let node = Node::on(
        Backend::Lvm,
        crate::sandbox(),
        false,
        "keep_deleted = \"7d\"",
    );
    let driver = &node.driver;
    // Nobody's volume takes a quarter of it, so that few of ours fill the rest.
    for tag in 0..4 {
        tag_the_group(&format!("{tag:0>1000}"));
    }
    let archived = || {
        fs::read_dir("/etc/lvm/archive")
            .into_iter()
            .flatten()
            .count()
    };
    let before = archived();

    let mut volumes = Vec::new();
    let full = loop {
        let name = format!("pv-{}", volumes.len());
        let made = provision(driver, &name);
        if made.outcome() != Outcome::Success {
            break made.failure();
        }
        let volume = PersistentVolume::from_reply(&name, "ext4", &made);
        node.pod(&volume).mount("rw").success();
        volumes.push(volume);
    };
    assert!(full.contains("own metadata is"), "{full}");
    assert!(volumes.len() > 3, "{}", volumes.len());
    let mut to = SIZE;
    let full = loop {
        to += 4 * MIB;
        let grown = volumes.iter().map(|volume| {
            let arguments = node.pod(volume).expand_arguments(to, to - 4 * MIB);
            driver.call(&arguments)
        });
        let mut refused = grown.filter(|call| call.outcome() != Outcome::Success);
        if let Some(refused) = refused.next() {
            break refused.failure();
        }
        assert!(to < 200 * MIB, "it grows without end");
    };
    assert!(full.contains("own metadata is"), "{full}");
    for volume in &volumes {
        node.pod(volume).unmount().success();
        node.delete(volume).success();
        points.add(1);
    }
    assert_eq!(kept(), volumes.len());
    provision(driver, "more").failure();

    // A third of the metadata has room for six.
    node.install("keep_deleted = \"7d\"\nkeep_at_most = \"20%\"");
    crate::by_hand::said(driver, &["gc"]);
    assert!((1..=6).contains(&kept()), "{}", kept());
    let made = provision(driver, "more").success();
    let volume = PersistentVolume::from_reply("more", "ext4", &made);
    node.pod(&volume).mount("rw").success();
    node.pod(&volume).unmount().success();
    node.delete(&volume).success();
    assert!((1..=6).contains(&kept()), "{}", kept());
    assert_eq!(archived(), before, "copies of the metadata were left");
    points.add(2);
}
