//! Thin pools: what they promise, and full ones.

use super::{GROUP, NEEDS, SIZE, flexvol, inventory, lvm};
use crate::node::{MIB, Node, capacity, fill};
use flexvol_testing::{Outcome, PersistentVolume, Points, request, tests};
use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

tests! {
    "lvm: thin volumes are not promised more than their pool has", NEEDS => promises;
    "lvm: a full thin pool fails writes at once, and loses nothing that was synced", NEEDS => full;
    "lvm: a thin pool that was deactivated is asked how full it is, and left as it was found", NEEDS
        => inactive;
}

/// The usage of a pool is known only while it is active, so it is activated for the query.
fn inactive(points: &Points) {
    let node = Node::thin(400 * MIB);
    let path = format!("{GROUP}/tp0");
    let driver = node.install("overcommit = true");
    let is_active = || {
        !lvm(&["lvs", "--noheadings", "-o", "data_percent", &path])
            .trim()
            .is_empty()
    };
    let active = capacity(&driver);
    lvm(&["lvchange", "-qq", "-an", &path]);
    assert!(!is_active());
    assert_eq!(capacity(&driver), active);
    assert!(!is_active(), "left as it was found");
    points.add(1);

    let made = driver.call(&["provision", &request("pv", SIZE)]).success();
    let volume = PersistentVolume::from_reply("pv", "ext4", &made);
    lvm(&["lvchange", "-qq", "-an", GROUP]);
    assert!(!is_active());
    let sizes = [SIZE + 40 * MIB, SIZE].map(|size| size.to_string());
    let dir = node.pod(&volume).dir().display().to_string();
    let words = [
        "expandvolume",
        &volume.json("rw"),
        &dir,
        &sizes[0],
        &sizes[1],
    ];
    driver.call(&words).success();
    assert_eq!(super::told(&volume, "lv_size"), sizes[0]);
    assert!(!is_active(), "left as it was found");
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(2);
}

fn promises(points: &Points) {
    let node = Node::thin(800 * MIB);
    // 5 % stay free.
    assert_eq!(capacity(&node.driver), 760 * MIB);
    let volume = node.volume_of("pv", "ext4");
    assert_eq!(capacity(&node.driver), 440 * MIB);
    let before = inventory();
    let more = node
        .driver
        .call(&["provision", &request("more", 444 * MIB)])
        .failure();
    assert!(
        more.contains("needs 444Mi more") && more.contains("440Mi to give"),
        "{more}"
    );
    assert_eq!(inventory(), before);
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let grown = node
        .driver
        .call(&pod.expand_arguments(SIZE + 444 * MIB, SIZE))
        .failure();
    assert!(grown.contains("444Mi"), "{grown}");
    node.driver
        .call(&pod.expand_arguments(SIZE + 440 * MIB, SIZE))
        .success();
    assert_eq!(capacity(&node.driver), 0);
    points.add(5);

    // With overcommit more can be promised than there is.
    let driver = node.install("overcommit = true");
    let more = driver
        .call(&["provision", &request("more", 700 * MIB)])
        .success();
    let more = PersistentVolume::from_reply("more", "ext4", &more);
    driver.call(&["delete", &more.json("rw")]).success();
    pod.unmount().success();
    node.delete(&volume).success();
    assert_eq!(capacity(&node.driver), 700 * MIB + 60 * MIB);
}

fn full(points: &Points) {
    let node = Node::thin(400 * MIB);
    let doctor = || {
        let output = super::output(
            crate::executable().to_str().unwrap(),
            &[
                "doctor",
                "--output",
                "json",
                "--plugin-dir",
                node.sandbox.plugins().to_str().unwrap(),
            ],
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let synced = fill(pod.dir(), "synced");
    // An administrator overcommits the pool: another volume takes the remaining space.
    lvm(&[
        "lvcreate",
        "-qq",
        "-y",
        "--type",
        "thin",
        "-V",
        "400M",
        "--thinpool",
        "tp0",
        "-n",
        "other",
        GROUP,
    ]);
    let other = File::options()
        .write(true)
        .open(format!("/dev/{GROUP}/other"))
        .unwrap();
    let block = vec![0x5a; 1 << 20];
    let mut written: u64 = 0;
    while written < 390 {
        if other
            .write_all_at(&block, written * MIB)
            .and_then(|()| other.sync_data())
            .is_err()
        {
            break;
        }
        written += 1;
    }
    assert!((200..390).contains(&written), "{written} MiB");
    points.add(1);
    let said = doctor();
    assert!(
        said.contains("thin pool's data is 100.00 % full") && said.contains("lvextend -L"),
        "{said}"
    );

    // A write fails at once, and not after a minute. Existing blocks can be overwritten.
    let started = Instant::now();
    let mut file = File::create(pod.dir().join("lost")).unwrap();
    let lost = (0..100)
        .try_for_each(|_| file.write_all(&block))
        .and_then(|()| file.sync_all());
    assert!(lost.is_err(), "100 MiB were written into a full pool");
    assert!(
        started.elapsed() < Duration::from_secs(50),
        "{:?}",
        started.elapsed()
    );
    drop(file);
    assert!(std::fs::read(pod.dir().join("synced")).unwrap() == synced);
    points.add(2);
    let refused = node
        .driver
        .call(&["provision", &request("more", SIZE)])
        .failure();
    assert!(refused.contains("has 0 to give"), "{refused}");

    // Lost writes are reported once, and the volume is unmounted.
    let unmounted = node.driver.call(&["unmount", pod.dir().to_str().unwrap()]);
    assert!(!pod.dir().join("synced").exists(), "{unmounted}");
    let again = node.driver.call(&["unmount", pod.dir().to_str().unwrap()]);
    assert_eq!(again.outcome(), Outcome::Success);
    drop(other);
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/other")]);
    pod.mount("rw").success();
    assert!(std::fs::read(pod.dir().join("synced")).unwrap() == synced);
    fill(pod.dir(), "more");
    pod.unmount().success();
    node.delete(&volume).success();
    let listed = flexvol(&["list", "--config", &node.configuration()]);
    assert!(!listed.contains("pv"), "{listed}");
}
