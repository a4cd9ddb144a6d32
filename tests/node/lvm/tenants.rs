//! Disks of the node that others write as they like: raw disks of pods and of virtual machines.

use super::{GROUP, NEEDS, Node, SIZE, flexvol, lvm, output};
use flexvol_testing::{Points, Test, disks, request};
use std::{fs, os::unix::fs::FileExt};

pub const TESTS: &[Test] = &[
    Test {
        name: "lvm: a tenant's group of the same name takes nothing from the pool",
        needs: NEEDS,
        run: same_name,
    },
    Test {
        name: "lvm: a tenant's disk with newer metadata of the group is not believed",
        needs: NEEDS,
        run: forged,
    },
];

fn same_name(points: &Points) {
    let node = Node::linear();
    let volume = node.provision("pv", "ext4");
    let (pod, content) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let disk = disks()[3].to_str().unwrap().to_owned();
    lvm(&["vgcreate", "-qq", "-y", "--devices", &disk, GROUP, &disk]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    node.expand(&volume, super::GROWN).success();
    pod.unmount().success();
    let other = node.provision("other", "ext4");
    for volume in [&other, &volume] {
        node.delete(volume).success();
    }
    let lists = |disk: &str| lvm(&["lvs", "-qq", "--noheadings", "--devices", disk, GROUP]);
    assert_eq!(lists(&disk), "");
    points.add(1);
}

fn forged(points: &Points) {
    let node = Node::linear();
    let volume = node.provision("pv", "ext4");
    let (pod, content) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let tag = lvm(&["vgs", "--noheadings", "-o", "vg_tags", GROUP]);
    let list = disks();
    let own = list[..2].iter().map(|disk| disk.to_str().unwrap());
    let own = own.collect::<Vec<_>>().join(",");
    let theirs = list[3].to_str().unwrap();

    // The group as it is, and with one more disk, of which the others know nothing.
    let before: Vec<Vec<u8>> = list[..2].iter().map(|disk| head(disk)).collect();
    lvm(&["vgextend", "-qq", "-y", GROUP, theirs]);
    lvm(&["lvremove", "-qq", "-y", &super::path(&volume)]);
    let restore = |heads: &[Vec<u8>]| {
        for (disk, head) in list.iter().zip(heads) {
            let file = fs::File::options().write(true).open(disk).unwrap();
            file.write_all_at(head, 0).unwrap();
            file.sync_all().unwrap();
        }
    };
    restore(&before);
    let refused = |what: &str, said: String| {
        assert!(said.contains("in doubt"), "{what}: {said}");
        assert!(!said.contains("pool init"), "{what}: {said}");
        points.add(1);
    };
    refused("mount", pod.mount("rw").failure());
    let more = request("more", SIZE);
    refused(
        "provision",
        node.driver.call(&["provision", &more]).failure(),
    );
    refused("delete", node.delete(&volume).failure());
    let init = ["pool", "init", "--group", GROUP];
    let said = output(crate::executable().to_str().unwrap(), &init);
    assert!(!said.status.success(), "{said:?}");
    refused("pool init", String::from_utf8(said.stderr).unwrap());
    assert_eq!(
        lvm(&[
            "vgs",
            "--noheadings",
            "-o",
            "vg_tags",
            "--devices",
            &own,
            GROUP
        ]),
        tag
    );

    // Detached.
    lvm(&["pvremove", "-qq", "-ff", "-y", "--devices", theirs, theirs]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
    // Without its tag it is no group to be made a pool anew.
    lvm(&["vgchange", "-qq", "--deltag", tag.trim(), GROUP]);
    let said = output(crate::executable().to_str().unwrap(), &init);
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("lost the tag"), "{said}");
    lvm(&["vgchange", "-qq", "--addtag", tag.trim(), GROUP]);
    flexvol(&init);
    node.delete(&volume).success();
    points.add(1);
}

/// Where LVM has a disk's label and its metadata.
fn head(disk: &std::path::Path) -> Vec<u8> {
    let mut head = vec![0; 1 << 20];
    fs::File::open(disk)
        .unwrap()
        .read_exact_at(&mut head, 0)
        .unwrap();
    head
}
