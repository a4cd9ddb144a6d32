//! Volumes that lost their end, or whose device LVM cannot see.

use super::{
    GROUP, GROWN, NEEDS, SIZE, group, inventory, linear_over, lvm, make_thin_pool, mappings,
    misses_a_disk, mounts, run, told,
};
use crate::node::{Backend, MIB, Node, fill, size_of_filesystem};
use flexvol_testing::{PersistentVolume, Pod, Points, disks, request, tests};
use std::fs;

tests! {
    "lvm: a volume that lost its end is neither mounted nor made to look whole", NEEDS => cut;
    "lvm: a device that is larger than the metadata knows keeps what it has", NEEDS => forgotten;
    "lvm: a volume whose device LVM cannot see is not removed", NEEDS => unseen;
    "lvm: nothing is changed while a disk is away, and all is as it was when it is back", NEEDS
        => late;
    "lvm: a thin pool promises nothing while another disk of its group is away", NEEDS
        => late_beside_a_thin_pool;
}

/// As after `lvreduce` by hand, or with metadata from before a growth.
fn cut(points: &Points) {
    const CUT: u64 = 200 * MIB;
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let (pod, content) = node.written(&volume);
    let path = super::path(&volume);
    lvm(&[
        "lvreduce",
        "-qq",
        "-f",
        "-y",
        "-L",
        &format!("{CUT}b"),
        &path,
    ]);
    let expand = |callout: &str| {
        let mut arguments = pod.expand_arguments(GROWN, SIZE);
        if callout == "expandvolume" {
            arguments[0] = callout.to_owned();
            arguments.remove(2);
        }
        node.driver.call(&arguments)
    };
    for active in [true, false] {
        for callout in ["expandvolume", "expandfs", "mount"] {
            if !active {
                lvm(&["lvchange", "-qq", "-an", &path]);
            }
            let refused = match callout {
                "mount" => pod.mount("rw"),
                _ => expand(callout),
            };
            let refused = refused.failure();
            assert!(
                refused.contains("320Mi") && refused.contains("200Mi"),
                "{callout}, active {active}: {refused}"
            );
            assert_eq!(told(&volume, "lv_size"), CUT.to_string(), "{callout}");
            points.add(1);
        }
    }
    // Nothing was written where its end was, so restoring the size restores the volume.
    lvm(&["lvextend", "-qq", "-L", &format!("{SIZE}b"), &path]);
    lvm(&["lvchange", "-qq", "-an", &path]);
    expand("expandvolume").success();
    assert_eq!(mappings().len(), 0, "left as it was found");
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    assert!(size_of_filesystem(pod.dir()) > SIZE);
    points.add(2);
}

/// A metadata backup from before a growth was restored while a pod uses the volume.
fn forgotten(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let backup = node.sandbox.path("backup");
    let backup = backup.to_str().unwrap();
    lvm(&["vgcfgbackup", "-qq", "-f", backup, GROUP]);
    node.driver
        .call(&pod.expand_arguments(GROWN, SIZE))
        .success();
    let content = fill(pod.dir(), "file");
    lvm(&["vgcfgrestore", "-qq", "-y", "-f", backup, GROUP]);
    assert_eq!(told(&volume, "lv_size"), SIZE.to_string());
    let other = Pod::new(
        &node.sandbox,
        &node.driver,
        &volume,
        "0b1e55ed-0000-4000-8000-000000000002",
    );
    for call in [
        other.mount("rw"),
        pod.mount("rw"),
        node.driver.call(&pod.expand_arguments(SIZE, SIZE)),
        node.driver.call(&pod.expand_arguments(GROWN, SIZE)),
    ] {
        let refused = call.failure();
        assert!(refused.contains("restore its full size"), "{refused}");
        points.add(1);
    }
    // The pod still has all of its data.
    assert_eq!(size_of_device(), GROWN);
    assert!(size_of_filesystem(pod.dir()) > SIZE);
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    lvm(&[
        "lvextend",
        "-qq",
        "-L",
        &format!("{GROWN}b"),
        &super::path(&volume),
    ]);
    pod.mount("rw").success();
    points.add(2);
}

/// The size of the only device.
fn size_of_device() -> u64 {
    let sectors = fs::read_to_string(mappings()[0].join("size")).unwrap();
    sectors.trim().parse::<u64>().unwrap() * 512
}

/// Attaches the second disk of the group.
fn attach() {
    let (_, table) = linear_over(disks()[2].to_str().unwrap());
    run("dmsetup", &["create", "late", "--table", &table]);
}

fn group_with_a_late_disk() {
    attach();
    group(GROUP, &[disks()[0].clone(), "/dev/mapper/late".into()]);
}

fn late_beside_a_thin_pool(points: &Points) {
    group_with_a_late_disk();
    let first = disks()[0].to_str().unwrap().to_owned();
    let words = ["-L", "800m", "--poolmetadataspare", "n", "-n", "tp0"];
    make_thin_pool(&[&words[..], &[GROUP, &first]].concat());
    let node = Node::on(Backend::ThinLvm, crate::sandbox(), false, "");
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    run("dmsetup", &["remove", "late"]);
    for refused in [
        node.driver.call(&["capacity", "{}"]),
        node.driver.call(&["provision", &request("more", SIZE)]),
        node.expand(&volume, GROWN),
        node.delete(&volume),
    ] {
        misses_a_disk(&refused);
        points.add(1);
    }
    mounts(&pod, &content);
    attach();
    node.driver.call(&["capacity", "{}"]).success();
    node.expand(&volume, GROWN).success();
    node.delete(&volume).success();
    points.add(1);
}

/// LVM records on the other disks that one is missing, and then does not accept it again by itself.
fn late(points: &Points) {
    group_with_a_late_disk();
    let node = Node::on(
        Backend::Lvm,
        crate::sandbox(),
        false,
        "keep_deleted = \"1h\"\n",
    );
    let on_first = node.volume_of("first", "ext4");
    let (first, content) = node.written(&on_first);
    let blank = node.volume_of("blank", "ext4");
    let on_both = PersistentVolume::provision(&node.driver, "both", "ext4", 1900 * MIB);
    let (both, _) = node.written(&on_both);
    // Its storage has grown, but not its file system.
    let mut growth = first.expand_arguments(GROWN, SIZE);
    growth[0] = "expandvolume".to_owned();
    growth.remove(2);
    node.driver.call(&growth).success();
    for volume in [&on_first, &blank, &on_both] {
        lvm(&["lvchange", "-qq", "-an", &super::path(volume)]);
    }
    run("dmsetup", &["remove", "late"]);

    let capacity = || node.driver.call(&["capacity", "{}"]);
    for refused in [
        node.delete(&on_first),
        node.pod(&blank).mount("rw"),
        node.driver.call(&["provision", &request("more", SIZE)]),
        capacity(),
    ] {
        misses_a_disk(&refused);
        points.add(1);
    }
    mounts(&first, &content);
    // The volume is complete. It is not refused only because its mark still says that it grows.
    node.expand(&on_first, GROWN).success();

    attach();
    for pod in [&both, &first, &node.pod(&blank)] {
        pod.mount("rw").success();
        pod.unmount().success();
    }
    capacity().success();
    node.expand(&on_first, GROWN).success();
    node.delete(&on_first).success();
    points.add(1);
}

/// LVM takes a volume for inactive if the kernel does not answer.
fn unseen(points: &Points) {
    const CONTROL: &str = "/dev/mapper/control";
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let before = inventory();
    // LVM recreates a wrong device node, unless it is a mount point.
    run("mount", &["--bind", "/dev/null", CONTROL]);
    let refused = node.delete(&volume).failure();
    let made = node.driver.call(&["provision", &request("other", SIZE)]);
    run("umount", &[CONTROL]);
    assert!(refused.contains("device"), "{refused}");
    made.failure();
    assert_eq!(inventory(), before);
    node.delete(&volume).success();
    assert_eq!(inventory(), Vec::<String>::new());
    assert_eq!(lvm(&["lvs", "--noheadings", GROUP]), "");
    points.add(2);
}
