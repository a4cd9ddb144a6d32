//! Foreign changes to a volume that its mark does not know: they are reported, and stay.

use super::{pod_of, says};
use crate::{
    format_guard::digests,
    node::{Backend, LOOP, MIB, Node},
};
use flexvol_testing::{PersistentVolume, Points, json, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Command,
};

tests! {
    "a volume that is not what its mark says is left alone", LOOP => contents;
    "an image that was deleted or is used elsewhere is told", LOOP => images;
    "what somebody made of a volume that was being formatted is left alone", LOOP
        => formatted_by_hand;
}

/// Small enough to be hashed often.
const SMALL: u64 = 32 * MIB;

fn contents(points: &Points) {
    let node = Node::new(Backend::Loop);
    let make = |name| {
        let request = json([
            ("kubernetes.io/fsType", "ext4"),
            ("kubernetes.io/pvOrVolumeName", name),
            ("kubernetes.io/pvc.namespace", "default"),
            ("requestBytes", &SMALL.to_string()),
        ]);
        let call = node.driver.call(&["provision", &request]).success();
        PersistentVolume::from_reply(name, "ext4", &call)
    };
    let formatted = make("formatted");
    node.pod(&formatted).mount("rw").success();
    node.pod(&formatted).unmount().success();
    let mut asked = formatted.clone();
    asked.filesystem = "xfs";
    let dir = node.sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let pod = pod_of("default");
    let mount = |volume: &PersistentVolume| {
        vec![
            "mount".to_owned(),
            dir.to_owned(),
            volume.json_with("rw", &pod),
        ]
    };
    node.refuses(&mount(&asked), &["xfs", "ext4"], points);

    type Spoil = fn(&File);
    let spoils: [(&str, Spoil); 3] = [
        ("random", |image| {
            image.write_all_at(b"somebody's data", 7 << 20).unwrap()
        }),
        ("last", |image| image.write_all_at(&[1], SMALL - 1).unwrap()),
        ("partitions", |image| {
            image
                .write_all_at(&[0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 9], 446)
                .unwrap();
            image.write_all_at(&[0x55, 0xaa], 510).unwrap();
        }),
    ];
    for (name, spoil) in spoils {
        let volume = make(name);
        let path = volume.image(&node.sandbox);
        spoil(&File::options().write(true).open(&path).unwrap());
        let before = digests(&[&path]);
        node.refuses(&mount(&volume), &[], points);
        assert_eq!(digests(&[&path]), before, "{name}");
    }
    // A formatted volume without its superblock or its end is not blank.
    let path = formatted.image(&node.sandbox);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let mut head = [0; 4096];
    image.read_exact_at(&mut head, 0).unwrap();
    image.write_all_at(&[0; 4096], 0).unwrap();
    let before = digests(&[&path]);
    node.refuses(&mount(&formatted), &[], points);
    image.write_all_at(&head, 0).unwrap();
    image.set_len(SMALL / 2).unwrap();
    node.refuses(&mount(&formatted), &[], points);
    image.set_len(SMALL).unwrap();
    assert_ne!(digests(&[&path]), before);
}

fn images(points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.formatted("pv");
    let pod = node.pod(&volume);
    let image = volume.image(&node.sandbox);
    // An administrator mounts the volume by hand.
    let by_hand = node.sandbox.path("by-hand");
    fs::create_dir(&by_hand).unwrap();
    let mounted = Command::new("mount")
        .args(["-o", "loop"])
        .args([&image, &by_hand])
        .status();
    assert!(mounted.unwrap().success());
    node.refuses(&["delete", &volume.json("rw")], &[], points);
    assert!(
        Command::new("umount")
            .arg(&by_hand)
            .status()
            .unwrap()
            .success()
    );

    pod.mount("rw").success();
    node.refuses(&["delete", &volume.json("rw")], &["use"], points);
    let kept = node.sandbox.disk().join("kept");
    fs::hard_link(&image, &kept).unwrap();
    fs::remove_file(&image).unwrap();
    node.refuses(
        &pod.expand_arguments(node.grown(), node.size()),
        &[],
        points,
    );
    let second = node.pod_of(&volume, "two");
    node.refuses(&second.mount_arguments("rw"), &[], points);
    pod.unmount().success();
    fs::rename(&kept, &image).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
}

/// An administrator formats the volume after its mark says that formatting has begun.
fn formatted_by_hand(points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    let failing = "mount --bind /bin/false /usr/sbin/mkfs.xfs";
    node.driver
        .call_where(failing, &pod.mount_arguments("rw"))
        .failure();
    let image = volume.image(&node.sandbox);
    let made = Command::new("mkfs.xfs").arg("-q").arg(&image).status();
    assert!(made.unwrap().success());
    let before = fs::read(&image).unwrap();
    for _ in 0..2 {
        says(&pod.mount("rw"), &["somebody else", "xfs"]);
        assert!(fs::read(&image).unwrap() == before, "it was changed");
        points.add(1);
    }
    let wiped = Command::new("wipefs")
        .args(["-a", "-q"])
        .arg(&image)
        .status();
    assert!(wiped.unwrap().success());
    pod.mount("rw").success();
    pod.unmount().success();
    points.add(1);
}
