//! A group whose metadata has room for few volumes more, and volumes that are kept there after they were deleted.

use super::{GROUP, NEEDS, lvm};
use crate::node::{Backend, MIB, Node};
use flexvol_testing::{Call, Driver, Outcome, PersistentVolume, Points, disks, json, tests};
use std::fs;

tests! {
    "lvm: volumes that are kept leave the group's metadata enough for every delete, and go where they are too many",
        NEEDS => crowded;
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

fn crowded(points: &Points) {
    let disk = disks()[0].to_str().unwrap().to_owned();
    let small = ["--dataalignment", "4k", "--metadatasize", "32k"];
    lvm(&[&["pvcreate", "-qq", "-y"], &small[..], &[&disk]].concat());
    lvm(&["vgcreate", "-qq", "-y", GROUP, &disk]);
    let node = Node::on(
        Backend::Lvm,
        crate::sandbox(),
        false,
        "keep_deleted = \"7d\"",
    );
    let driver = &node.driver;
    // Nobody's volume takes a quarter of it, so that few of ours fill the rest.
    for tag in 0..4 {
        lvm(&[
            "vgchange",
            "-qq",
            "--addtag",
            &format!("{tag:0>1000}"),
            GROUP,
        ]);
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
