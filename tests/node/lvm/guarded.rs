//! Foreign changes to a group and its devices lose no data and affect no other volume.

use super::{GROUP, GROWN, NEEDS, SIZE, in_time, inventory, lvm, output, run, told};
use crate::{
    node::{MIB, Node, fill, size_of_filesystem},
    wrapper::Wrapper,
};
use flexvol_testing::{PersistentVolume, Points, request, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

tests! {
    "lvm: no callout waits for a stopped thin pool", NEEDS => stopped_pool;
    "lvm: a volume with somebody's snapshot is not deleted, nor grown under its pod", NEEDS
        => snapshots;
    "lvm: a device that lies on a volume is named where it is in the way", NEEDS => held;
    "lvm: a volume that cannot be made leaves nothing, however often it is tried", NEEDS => failing;
    "lvm: a mark that cannot be read is in nobody's way but its own volume's", NEEDS => unreadable;
    "lvm: a blank volume that grows over old data is blank", NEEDS => grown_blank;
    "lvm: a group whose metadata is nearly full gets no more volumes, and keeps those it has", NEEDS
        => full_metadata;
}

/// The group's metadata is full of tags.
fn full_metadata(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let lv = format!("{GROUP}/flexvol-{}", volume.id());
    let doctor = || {
        let plugins = node.sandbox.plugins();
        let words = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
        let said = output(crate::executable().to_str().unwrap(), &words);
        String::from_utf8(said.stdout).unwrap()
    };
    let mut tags = 0;
    // Each tag takes a kilobyte of the metadata, which has half a megabyte.
    let mut fill = |more: usize| {
        let words: Vec<String> = (tags..tags + more)
            .flat_map(|tag| ["--addtag".to_owned(), format!("{tag:0>1000}")])
            .collect();
        tags += more;
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.extend(["-qq", GROUP]);
        lvm(&[&["vgchange"], &words[..]].concat());
    };
    assert!(!doctor().contains("own metadata"));
    fill(300);
    let said = doctor();
    assert!(
        said.contains("own metadata is") && said.contains("--metadatasize 16m"),
        "{said}"
    );
    let other = node.volume_of("other", "xfs");
    node.delete(&other).success();
    points.add(2);
    fill(160);
    let before = inventory();
    let refused = node
        .driver
        .call(&["provision", &request("more", SIZE)])
        .failure();
    assert!(
        refused.contains("own metadata is") && refused.contains("--metadatasize 16m"),
        "{refused}"
    );
    let capacity = node.driver.call(&["capacity", "{}"]).success();
    assert_eq!(capacity.object().unwrap()["capacity"], 0);
    assert_eq!(inventory(), before);
    // An existing volume can still be formatted, grown and deleted.
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    node.expand(&volume, GROWN).success();
    points.add(3);
    // With still less space no volume grows, and no mark says that a growth has begun.
    fill(40);
    let (before, tags) = (inventory(), told(&volume, "lv_tags"));
    for callout in ["expandfs", "expandvolume"] {
        let mut arguments = pod.expand_arguments(GROWN + 64 * MIB, GROWN);
        if callout == "expandvolume" {
            arguments[0] = callout.to_owned();
            arguments.remove(2);
        }
        let refused = node.driver.call(&arguments).failure();
        assert!(
            refused.contains("own metadata is") && refused.contains("formatted and deleted"),
            "{refused}"
        );
        assert_eq!(
            (inventory(), told(&volume, "lv_tags")),
            (before.clone(), tags.clone())
        );
        points.add(1);
    }
    pod.unmount().success();
    node.delete(&volume).success();
    assert!(!output("lvm", &["lvs", &lv]).status.success());
    points.add(1);
}

/// Whether the kernel has suspended the pool.
fn is_stopped() -> bool {
    fs::read_dir("/sys/block").unwrap().flatten().any(|entry| {
        let read = |file: &str| fs::read_to_string(entry.path().join(file));
        read("dm/name").is_ok_and(|name| name.trim() == format!("{GROUP}-tp0-tpool"))
            && read("dm/suspended").unwrap().trim() == "1"
    })
}

/// With the pool the kernel suspends all its volumes, and none of them shows it.
fn stopped_pool(points: &Points) {
    let node = Node::thin(1000 * MIB);
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    let dir = pod.dir().to_str().unwrap().to_owned();
    let json = volume.json("rw");
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    for arguments in [
        pod.expand_arguments(GROWN, SIZE),
        vec!["unmount".to_owned(), dir.clone()],
        pod.mount_arguments("rw"),
        vec!["unmount".to_owned(), dir.clone()],
        vec!["delete".to_owned(), json.clone()],
    ] {
        if pod.dir().join("file").exists() {
            fs::write(pod.dir().join("dirty"), "not synced").unwrap();
        }
        let device = format!("{GROUP}-tp0-tpool");
        run("dmsetup", &["suspend", "--nolockfs", &device]);
        assert!(is_stopped());
        in_time(&node, &arguments);
        assert!(!is_stopped(), "{arguments:?}");
        if let Ok(found) = fs::read(pod.dir().join("file")) {
            assert!(found == content, "{arguments:?}");
        }
        points.add(1);
    }
}

fn snapshots(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let path = format!("{GROUP}/flexvol-{}", volume.id());
    lvm(&[
        "lvcreate", "-qq", "-y", "-s", "-n", "backup", "-L", "32M", &path,
    ]);
    let before = inventory();
    for _ in 0..2 {
        let refused = node.delete(&volume).failure();
        assert!(refused.contains("snapshots"), "{refused}");
        assert_eq!(
            inventory(),
            before,
            "who reads the snapshot lost its device"
        );
        assert!(Path::new(&format!("/dev/{GROUP}/backup")).exists());
        points.add(1);
    }
    // It is a volume as before.
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    let call = node.expand(&volume, GROWN);
    let refused = call.failure();
    assert!(refused.contains("snapshots"), "{refused}");
    assert_eq!(call.text("errorClass"), "retryable", "{call}");
    points.add(1);
    // Also with a configuration that deactivates unmounted volumes.
    let idle = node.install("deactivate = true\n");
    idle.call(&["unmount", pod.dir().to_str().unwrap()])
        .success();
    assert_eq!(inventory(), before, "unmounted");
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/backup")]);
    node.delete(&volume).success();
    points.add(1);
}

/// udev and mdadm assemble a RAID of a volume whose content looks like a member.
fn held(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let device = format!("/dev/{}", super::path(&volume));
    let table = format!("0 2048 linear {device} 0");
    run("dmsetup", &["create", "on-top", "--table", &table]);
    let minor = run(
        "dmsetup",
        &["info", "-c", "--noheadings", "-o", "minor", "on-top"],
    );
    let names = |said: String| {
        let words = format!("dm-{} lies on it", minor.trim());
        assert!(said.contains(&words), "{said}");
        points.add(1);
    };
    names(pod.mount("rw").failure());
    names(node.delete(&volume).failure());
    run("dmsetup", &["remove", "on-top"]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    let used = node.delete(&volume).failure();
    assert!(used.contains("still mounted"), "{used}");
    pod.unmount().success();
    node.delete(&volume).success();
}

fn failing(points: &Points) {
    let node = Node::linear();
    let program = Wrapper::of("lvm", "case \"$*\" in *deltag*) exit 5;; esac");
    for _ in 0..3 {
        node.driver
            .call(&["provision", &request("pv", SIZE)])
            .failure();
        assert_eq!(lvm(&["lvs", "--noheadings", GROUP]).trim(), "");
        points.add(1);
    }
    drop(program);
    let volume = node.volume_of("pv", "ext4");
    node.delete(&volume).success();
}

fn unreadable(points: &Points) {
    let node = Node::linear();
    let other = node.volume_of("other", "ext4");
    let id = told(&other, "lv_tags");
    let newer = format!("flexvol=9:handle={}:name=newer", "a".repeat(32));
    let copied = id.replace("name=other", "name=copied");
    for (digit, tags) in [
        ("a", vec![newer.as_str()]),
        ("b", vec!["flexvol=1:name=two", "flexvol=1:name=marks"]),
        ("c", vec![copied.as_str()]),
    ] {
        let name = format!("flexvol-{}", digit.repeat(32));
        let mut words = vec!["lvcreate", "-qq", "-y", "-L", "8M", "-n", &name];
        words.extend(tags.iter().flat_map(|tag| ["--addtag", tag]));
        words.push(GROUP);
        lvm(&words);
    }
    for name in ["pv", "copied"] {
        let volume = node.volume_of(name, "ext4");
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        pod.unmount().success();
        node.delete(&volume).success();
        points.add(1);
    }
    for name in ["newer", "two"] {
        node.driver
            .call(&["provision", &request(name, SIZE)])
            .failure();
        points.add(1);
    }
    node.delete(&other).success();
}

fn grown_blank(points: &Points) {
    let node = Node::linear();
    lvm(&[
        "lvcreate", "-qq", "-y", "-l", "100%FREE", "-n", "old", GROUP,
    ]);
    let old = File::options()
        .write(true)
        .open(format!("/dev/{GROUP}/old"))
        .unwrap();
    let noise = vec![0xa5; 1 << 20];
    for at in 0..600 {
        old.write_all_at(&noise, at * MIB).unwrap();
    }
    old.sync_all().unwrap();
    drop(old);
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/old")]);

    let volume = node.volume_of("pv", "xfs");
    node.expand_volume(&volume, GROWN).success();
    assert!(!told(&volume, "lv_tags").contains("grown-from"));
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    assert!(size_of_filesystem(pod.dir()) > SIZE);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);

    // Interrupted after the storage grew. Its end is not the one that was wiped above.
    let volume = node.volume_of("pv", "xfs");
    let path = format!("{GROUP}/flexvol-{}", volume.id());
    let tag = format!("flexvol-grown-from={SIZE}");
    lvm(&["lvchange", "-qq", "--addtag", &tag, &path]);
    lvm(&[
        "lvextend",
        "-qq",
        "-y",
        "-L",
        &format!("{}b", GROWN + 32 * MIB),
        &path,
    ]);
    pod_mounts(&node, &volume);
    node.delete(&volume).success();
    points.add(1);

    // Grown by hand, so the content of the new part is unknown.
    let volume = node.volume_of("pv", "xfs");
    let path = format!("{GROUP}/flexvol-{}", volume.id());
    lvm(&[
        "lvextend",
        "-qq",
        "-y",
        "-L",
        &format!("{}b", GROWN + 64 * MIB),
        &path,
    ]);
    let refused = node.pod(&volume).mount("rw").failure();
    assert!(refused.contains("should be blank"), "{refused}");
    node.delete(&volume).success();
    points.add(1);
}

fn pod_mounts(node: &Node, volume: &PersistentVolume) {
    let pod = node.pod(volume);
    pod.mount("rw").success();
    assert!(!told(volume, "lv_tags").contains("grown-from"));
    pod.unmount().success();
}
