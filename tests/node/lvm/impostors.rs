//! Devices on a tenant's disk that claim to be the group's, by name or by UUIDs, which every container reads in sysfs.

use super::{GROUP, NEEDS, SIZE, detach, lvm, output};
use crate::node::{Backend, Node};
use flexvol_testing::{Points, disks, tests};
use std::{fs, os::unix::fs::FileExt, path::Path};

tests! {
    "lvm: a device on a tenant's disk that has a volume's UUIDs is not taken for the volume", NEEDS
        => |points| impersonated("evil", &["vg_uuid", "lv_uuid"], points);
    "lvm: a device on a tenant's disk that has a volume's UUIDs and names is not taken for the volume", NEEDS
        => |points| impersonated(GROUP, &["vg_uuid", "lv_uuid"], points);
    "lvm: a device on a tenant's disk that has a volume's names keeps it from nobody", NEEDS
        => |points| impersonated(GROUP, &[], points);
    "lvm: devices on a tenant's disk that are a thin pool's by their UUIDs are not taken for the pool", NEEDS
        => |points| impersonated_pool("evil", true, points);
    "lvm: devices on a tenant's disk that are a thin pool's by their names keep it from nobody", NEEDS
        => |points| impersonated_pool(GROUP, false, points);
    "lvm: a device with a volume's UUIDs on a tenant's disk that was detached keeps it from nobody", NEEDS
        => detached;
    "lvm: a copy of the group that is in use keeps nobody from another volume", NEEDS => copied;
}

/// Another volume in a group with the pool's UUID. Somebody may have copied the pool for its sake.
const OTHER: &str = "data";

/// Makes a group on a disk, as if on another node, with a volume that has the name of one of the pool's and these of
/// its UUIDs. The node activates it.
fn impersonate(group: &str, disk: &str, name: &str, uuids: &[(&str, String)]) {
    let on = |verb: &str, words: &[&str]| lvm(&[&[verb, "-qq", "--devices", disk], words].concat());
    on("vgcreate", &["-y", group, disk]);
    let size = format!("{SIZE}b");
    let words = ["-y", "-an", "-Zn", "-Wn", "-L", &size, "-n", name, group];
    on("lvcreate", &words);
    let words = ["-y", "-an", "-Zn", "-Wn", "-l1", "-n", OTHER, group];
    on("lvcreate", &words);
    let own: Vec<_> = uuids
        .iter()
        .map(|(field, wanted)| (*field, name, wanted.clone()))
        .collect();
    forge(group, disk, &own);
}

/// Gives a group on a disk, and volumes in it, UUIDs of others. The node activates the volumes.
fn forge(group: &str, disk: &str, uuids: &[(&str, &str, String)]) {
    let on = |verb: &str, words: &[&str]| lvm(&[&[verb, "-qq", "--devices", disk], words].concat());
    let file = std::env::temp_dir().join("impersonated");
    let path = file.to_str().unwrap();
    on("vgcfgbackup", &["-f", path, group]);
    let mut text = fs::read_to_string(&file).unwrap();
    for (field, name, wanted) in uuids {
        let volume = format!("{group}/{name}");
        let own = on("lvs", &["--noheadings", "-o", field, &volume]);
        text = text.replace(own.trim(), wanted);
    }
    let (before, after) = text.split_once("seqno = ").unwrap();
    let (_, after) = after.split_once('\n').unwrap();
    fs::write(&file, format!("{before}seqno = 500\n{after}")).unwrap();
    on("vgcfgrestore", &["-y", "--force", "-f", path, group]);
    on("vgchange", &["-ay", group]);
}

/// Whether devices are on top of a disk.
fn is_held(disk: &Path) -> bool {
    let name = disk.file_name().unwrap().to_str().unwrap();
    let mut holders = fs::read_dir(format!("/sys/block/{name}/holders")).unwrap();
    holders.next().is_some()
}

/// Makes a thin pool with the name of ours on a disk, with a volume.
fn pool_on(disk: &str, group: &str) {
    let on = |verb: &str, words: &[&str]| lvm(&[&[verb, "-qq", "--devices", disk], words].concat());
    on("vgcreate", &["-y", group, disk]);
    let pool = ["-y", "--type", "thin-pool", "-L", "64m", "-n", "tp0", group];
    on("lvcreate", &pool);
    let path = format!("{group}/tp0");
    on(
        "lvcreate",
        &["-y", "-V", "32m", "-n", OTHER, "--thinpool", &path],
    );
}

fn impersonated_pool(group: &str, has_uuids: bool, points: &Points) {
    let node = Node::thin(1 << 30);
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let mut uuids = vec![("vg_uuid", "tp0", super::told(&volume, "vg_uuid"))];
    for part in ["tp0", "tp0_tdata", "tp0_tmeta"] {
        let path = format!("{GROUP}/{part}");
        let uuid = lvm(&["lvs", "-qq", "--noheadings", "-o", "lv_uuid", &path]);
        uuids.push(("lv_uuid", part, uuid.trim().to_owned()));
    }
    let list = disks();
    let disk = list[3].to_str().unwrap();
    pool_on(disk, group);
    if has_uuids {
        lvm(&["vgchange", "-qq", "--devices", disk, "-an", group]);
        forge(group, disk, &uuids);
        unlabel(&list[3]);
    }
    assert!(is_held(&list[3]));

    pod.mount("rw").success();
    assert!(!is_held(&list[3]));
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    node.expand(&volume, super::GROWN).success();
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);
}

/// Removes LVM's label from a disk. Its active devices stay.
fn unlabel(disk: &Path) {
    let file = fs::File::options().write(true).open(disk).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    file.sync_all().unwrap();
}

fn detached(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let path = super::path(&volume);
    let (_, name) = path.split_once('/').unwrap();
    let uuids = ["vg_uuid", "lv_uuid"].map(|field| (field, super::told(&volume, field)));
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let list = disks();
    impersonate("evil", list[3].to_str().unwrap(), name, &uuids);
    detach(&list[3]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    node.expand(&volume, super::GROWN).success();
    pod.unmount().success();
    node.delete(&volume).success();
    points.add(1);
}

fn copied(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let group = super::told(&volume, "vg_uuid");
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let list = disks();
    let disk = list[3].to_str().unwrap();
    pool_on(disk, "evil");
    lvm(&["vgchange", "-qq", "--devices", disk, "-an", "evil"]);
    forge("evil", disk, &[("vg_uuid", "tp0", group)]);
    unlabel(&list[3]);
    let theirs = fs::File::open(format!("/dev/mapper/evil-{OTHER}")).unwrap();
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    node.expand(&volume, super::GROWN).success();
    pod.unmount().success();
    drop(theirs);
    node.volume_of("other", "ext4");
    node.delete(&volume).success();
    assert!(is_held(&list[3]));
    points.add(1);
}

fn impersonated(group: &str, fields: &[&'static str], points: &Points) {
    let node = Node::with(Backend::Lvm, "deactivate = true\n");
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    let path = super::path(&volume);
    let (_, name) = path.split_once('/').unwrap();
    // Every container can read the UUIDs in sysfs.
    let uuids: Vec<_> = fields
        .iter()
        .map(|field| (*field, super::told(&volume, field)))
        .collect();
    let list = disks();
    let disk = list[3].to_str().unwrap();
    impersonate(group, disk, name, &uuids);
    // The tenant removes the label, but the devices stay active. A group of another UUID with this name is ignored.
    if !fields.is_empty() {
        unlabel(&list[3]);
    }
    assert_eq!(super::mappings().len(), 1);
    let theirs = || {
        let mut text = vec![0; 16 << 20];
        let file = fs::File::open(disk).unwrap();
        file.read_exact_at(&mut text, 0).unwrap();
        text
    };
    let before = theirs();
    let plugins = node.sandbox.plugins();
    let words = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
    let said = output(crate::executable().to_str().unwrap(), &words);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("says that it is of vg0"), "{said}");

    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    points.add(1);
    node.expand(&volume, super::GROWN).success();
    pod.unmount().success();
    node.delete(&volume).success();
    assert!(theirs() == before);
    let other = format!("{group}-{OTHER}");
    let table = output(
        "dmsetup",
        &["info", "-c", "--noheadings", "-o", "name", &other],
    );
    assert!(table.status.success(), "{table:?}");
    points.add(3);
}
