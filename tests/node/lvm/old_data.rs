//! Logical volumes with old content: it is wiped, an unfinished volume is made again, or the data is adopted.

use super::{GROUP, GROWN, NEEDS, SIZE, flexvol, lvm, output, run, thin_pool};
use crate::node::{MIB, Node, fill, size_of_filesystem};
use flexvol_testing::{PersistentVolume, Pod, Points, json, tests, volume_id};
use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, symlink},
    thread,
};

tests! {
    "lvm: a new volume on old data is wiped, and one with anything new is not formatted", NEEDS
        => old_data;
    "lvm: what was committed and not finished is begun again, or removed by gc", NEEDS
        => unfinished;
    "lvm: a logical volume with a file system is taken over, with its data", NEEDS => adopted;
}

fn old_data(points: &Points) {
    let node = Node::linear();
    // Earlier content of the same blocks: a file system, and data wherever one can begin.
    lvm(&[
        "lvcreate", "-qq", "-y", "-l", "100%FREE", "-n", "old", GROUP,
    ]);
    let old = format!("/dev/{GROUP}/old");
    let device = File::options().write(true).open(&old).unwrap();
    let noise = vec![0xa5; 64 << 10];
    for at in (0..8).chain((8..400).step_by(16)) {
        device.write_all_at(&noise, at * MIB).unwrap();
    }
    drop(device);
    run("mkfs.ext4", &["-q", "-F", "-b", "4096", &old]);
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/old")]);
    for filesystem in ["xfs", "ext4", "btrfs"] {
        let volume = node.volume_of(filesystem, filesystem);
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        assert!(
            fs::read_dir(pod.dir())
                .unwrap()
                .flatten()
                .all(|it| it.file_name() == "lost+found")
        );
        fill(pod.dir(), "file");
        pod.unmount().success();
        node.delete(&volume).success();
        points.add(1);
    }

    let volume = node.volume_of("pv", "xfs");
    let path = format!("/dev/{GROUP}/flexvol-{}", volume.id());
    let somebodys = b"somebody's data";
    let write = |data: &[u8], at| {
        let device = File::options().write(true).open(&path).unwrap();
        device.write_all_at(data, at).unwrap();
        device.sync_all().unwrap();
    };
    let pod = node.pod(&volume);
    for at in [0, 65600, 3 * MIB, SIZE - MIB, SIZE - 512] {
        write(somebodys, at);
        let refused = pod.mount("rw").failure();
        assert!(refused.contains("should be blank"), "{at}: {refused}");
        write(&vec![0; somebodys.len()], at);
        points.add(1);
    }
    // The refused volume is unchanged.
    pod.mount("rw").success();
    pod.unmount().success();
    node.delete(&volume).success();
}

fn unfinished(points: &Points) {
    let node = Node::linear();
    let first = node.volume_of("first", "ext4");
    let pool = fs::read_dir("/run/flexvol/names")
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let config = node.configuration();
    let make = |handle: &str, size: &str| {
        let name = format!("flexvol-{}", volume_id(handle));
        lvm(&[
            "lvcreate",
            "-qq",
            "-y",
            "-Wn",
            "-Zn",
            "-L",
            size,
            "-n",
            &name,
            "--addtag",
            "flexvol-unfinished",
            GROUP,
        ]);
        let device = File::options()
            .write(true)
            .open(format!("/dev/{GROUP}/{name}"))
            .unwrap();
        device.write_all_at(&[0xa5; 8192], 0).unwrap();
        device.sync_all().unwrap();
    };
    for (name, digit, size) in [("same", "a", "320M"), ("other", "b", "64M")] {
        let handle = digit.repeat(32);
        make(&handle, size);
        symlink(&handle, pool.join(name)).unwrap();
        assert!(!flexvol(&["list", "--config", &config]).contains(name));
        let volume = node.volume_of(name, "ext4");
        assert_eq!(volume.handle(), handle);
        assert_eq!(super::told(&volume, "lv_size"), SIZE.to_string());
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        pod.unmount().success();
        node.delete(&volume).success();
        points.add(1);
    }
    // It is not provisioned again, because its claim was deleted.
    let handle = "d".repeat(32);
    make(&handle, "64M");
    symlink(&handle, pool.join("gone")).unwrap();
    let claim = json([
        ("kubernetes.io/pvOrVolumeName", "gone"),
        ("kubernetes.io/pvc.namespace", "default"),
    ]);
    node.driver.call(&["delete", &claim]).success();
    assert_eq!(lvm(&["lvs", "--noheadings", GROUP]).lines().count(), 1);
    points.add(1);
    // After a reboot the claim of an unfinished volume is unknown.
    let orphan = "c".repeat(32);
    make(&orphan, "64M");
    let orphan = volume_id(&orphan);
    let would = flexvol(&["gc", "--dry-run", "--config", &config]);
    assert!(
        would.contains(&format!("would remove the storage of volume {orphan}")),
        "{would}"
    );
    let removed = flexvol(&["gc", "--config", &config]);
    assert!(removed.contains(&orphan), "{removed}");
    assert!(flexvol(&["gc", "--config", &config]).contains("nothing was left behind"));
    assert_eq!(lvm(&["lvs", "--noheadings", GROUP]).lines().count(), 1);
    node.delete(&first).success();
}

fn adopted(points: &Points) {
    let node = Node::linear();
    let config = node.configuration();
    let adopt = |what: &str, name: &str, more: &[&str]| {
        let words = [
            &[
                "adopt", what, "--name", name, "--output", "json", "--config", &config,
            ],
            more,
        ]
        .concat();
        output(crate::executable().to_str().unwrap(), &words)
    };
    lvm(&[
        "lvcreate", "-qq", "-y", "-L", "330M", "-n", "by-hand", GROUP,
    ]);
    let (path, device) = (format!("{GROUP}/by-hand"), format!("/dev/{GROUP}/by-hand"));
    let refused = adopt(&device, "pv", &[]);
    assert!(!refused.status.success(), "{refused:?}");
    let refused_as = |name: &str, why: &str| {
        let refused = adopt(&path, name, &["--format"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{said}");
        points.add(1);
    };
    // The file system ends within a block of the device, and foreign data follows.
    let spans = 100_001 << 10;
    run("mkfs.ext4", &["-q", "-b", "1024", &device, "100001"]);
    let write = |at: u64, bytes: &[u8]| {
        let disk = File::options().write(true).open(&device).unwrap();
        disk.write_all_at(bytes, at).unwrap();
        disk.sync_all().unwrap();
    };
    for at in [spans, 332 * MIB - 1] {
        // The byte before it belongs to the file system.
        write(at - 1, b"xx");
        refused_as("pv", "behind that lies other data");
        write(at - 1, &[0; 2]);
    }
    // Unlike a mount, an open file descriptor does not claim the device, and can write at any time.
    for writes in [false, true] {
        let program = File::options().read(true).write(writes).open(&device);
        refused_as("pv", "a program has it open");
        drop(program.unwrap());
    }
    run("mkfs.ext4", &["-q", "-b", "4096", &device]);
    let place = node.sandbox.path("place");
    fs::create_dir(&place).unwrap();
    run("mount", &[&device, place.to_str().unwrap()]);
    let content = fill(&place, "file");
    refused_as("pv", "it is mounted");
    run("umount", &[place.to_str().unwrap()]);
    lvm(&["lvchange", "-qq", "-an", &path]);
    points.add(2);

    let size = GROWN.to_string();
    let made = adopt(&path, "pv", &["--size", &size]);
    assert!(made.status.success(), "{made:?}");
    assert!(!adopt("other/by-hand", "pv2", &[]).status.success());
    let again = adopt(&path, "pv", &["--size", &size]);
    assert!(again.status.success(), "{again:?}");
    let shown = flexvol(&["show", "pv", "-o", "json", "--config", &config]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let handle = shown["handle"].as_str().unwrap();
    let volume = PersistentVolume {
        name: "pv".to_owned(),
        filesystem: "ext4",
        options: [("handle", handle), ("pool", "default")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    };
    let pod = Pod::new(&node.sandbox, &node.driver, &volume, "uid");
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    assert!(size_of_filesystem(pod.dir()) > GROWN - 64 * MIB);
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(3);

    // Adopted under two names at once, it becomes one volume.
    lvm(&[
        "lvcreate", "-qq", "-y", "-L", "330M", "-n", "by-hand", GROUP,
    ]);
    run("mkfs.ext4", &["-q", "-b", "4096", &device]);
    let taken = thread::scope(|scope| {
        let adopt = &adopt;
        let both = ["one", "two"].map(|name| scope.spawn(|| adopt(&path, name, &[])));
        both.map(|thread| thread.join().unwrap())
    });
    let succeeded = taken.iter().filter(|output| output.status.success());
    assert_eq!(succeeded.count(), 1, "{taken:?}");
    let tags = lvm(&["lvs", "--noheadings", "-o", "lv_tags", GROUP]);
    assert_eq!(tags.matches("flexvol=").count(), 1, "{tags}");
    points.add(1);

    // A part of another volume cannot be adopted.
    thin_pool("64M");
    let refused = adopt(&format!("{GROUP}/tp0"), "pv3", &["--format"]);
    assert!(!refused.status.success(), "{refused:?}");
}
