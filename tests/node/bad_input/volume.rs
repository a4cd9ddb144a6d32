//! What somebody made of a volume behind its mark: it is told, and left alone.

use super::{MEBI, Place, SIZE, pod_of, says, test};
use crate::format_guard::digests;
use flexvol_testing::{PersistentVolume, Pod, Points, Test, json};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Command,
};

pub const TESTS: &[Test] = &[
    test(
        "a volume that is not what its mark says is left alone",
        contents,
    ),
    test(
        "an image that was deleted or is used elsewhere is told",
        images,
    ),
    test(
        "what somebody made of a volume that was being formatted is left alone",
        formatted_by_hand,
    ),
];

/// Small enough to be hashed often.
const SMALL: u64 = 32 * MEBI;

fn contents(points: &Points) {
    let place = Place::new();
    let make = |name| {
        let request = json([
            ("kubernetes.io/fsType", "ext4"),
            ("kubernetes.io/pvOrVolumeName", name),
            ("kubernetes.io/pvc.namespace", "default"),
            ("requestBytes", &SMALL.to_string()),
        ]);
        let call = place.driver.call(&["provision", &request]).success();
        PersistentVolume::from_reply(name, "ext4", &call)
    };
    let formatted = make("formatted");
    place.pod(&formatted).mount("rw").success();
    place.pod(&formatted).unmount().success();
    let mut asked = formatted.clone();
    asked.filesystem = "xfs";
    let dir = place.sandbox.path("dir");
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
    place.refuses(&mount(&asked), &["xfs", "ext4"], points);

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
        let path = volume.image(&place.sandbox);
        spoil(&File::options().write(true).open(&path).unwrap());
        let before = digests(&[&path]);
        place.refuses(&mount(&volume), &[], points);
        assert_eq!(digests(&[&path]), before, "{name}");
    }
    // A formatted one that lost its superblock, or its end, is no blank one.
    let path = formatted.image(&place.sandbox);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let mut head = [0; 4096];
    image.read_exact_at(&mut head, 0).unwrap();
    image.write_all_at(&[0; 4096], 0).unwrap();
    let before = digests(&[&path]);
    place.refuses(&mount(&formatted), &[], points);
    image.write_all_at(&head, 0).unwrap();
    image.set_len(SMALL / 2).unwrap();
    place.refuses(&mount(&formatted), &[], points);
    image.set_len(SMALL).unwrap();
    assert_ne!(digests(&[&path]), before);
}

fn images(points: &Points) {
    let place = Place::new();
    let volume = place.formatted("pv");
    let pod = place.pod(&volume);
    let image = volume.image(&place.sandbox);
    // A person looks at the volume by hand.
    let by_hand = place.sandbox.path("by-hand");
    fs::create_dir(&by_hand).unwrap();
    let mounted = Command::new("mount")
        .args(["-o", "loop"])
        .args([&image, &by_hand])
        .status();
    assert!(mounted.unwrap().success());
    place.refuses(&["delete", &volume.json("rw")], &[], points);
    assert!(
        Command::new("umount")
            .arg(&by_hand)
            .status()
            .unwrap()
            .success()
    );

    pod.mount("rw").success();
    place.refuses(&["delete", &volume.json("rw")], &["use"], points);
    let kept = place.sandbox.disk().join("kept");
    fs::hard_link(&image, &kept).unwrap();
    fs::remove_file(&image).unwrap();
    place.refuses(&pod.expand_arguments(SIZE + 16 * MEBI, SIZE), &[], points);
    let second = Pod::new(
        &place.sandbox,
        &place.driver,
        &volume,
        "0b1e55ed-0000-4000-8000-000000000002",
    );
    place.refuses(&second.mount_arguments("rw"), &[], points);
    pod.unmount().success();
    fs::rename(&kept, &image).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
}

/// Between the mark that it is being formatted and a file system a person may lend a hand.
fn formatted_by_hand(points: &Points) {
    let place = Place::new();
    let volume = place.volume("pv");
    let pod = place.pod(&volume);
    let failing = "mount --bind /bin/false /usr/sbin/mkfs.xfs";
    place
        .driver
        .call_where(failing, &pod.mount_arguments("rw"))
        .failure();
    let image = volume.image(&place.sandbox);
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
