//! Disks of the node on which others can write anything: raw disks of pods and of virtual machines.

use super::{GROUP, NEEDS, SIZE, detach, flexvol, lvm, output};
use crate::node::Node;
use flexvol_testing::{PersistentVolume, Points, disks, request, tests};
use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
};

tests! {
    "lvm: a tenant's group of the same name takes nothing from the pool", NEEDS => same_name;
    "lvm: a tenant's disk with newer metadata of the group is not believed", NEEDS => forged;
    "lvm: a tenant's group that says it is the pool is passed over", NEEDS => pretended;
    "lvm: a tenant's group does not become the pool while the pool's disks are away", NEEDS
        => taken_over;
}

/// The node's records of its pool's group.
const RECORDS: [&str; 2] = ["/etc/flexvol/groups/vg0", "/var/lib/flexvol/groups/vg0"];

/// Makes, as if on another node, a group of the pool's name on a disk, with a tag of a pool that its owner made
/// up.
fn pretend(disk: &str) {
    let only = format!("devices{{filter=[\"a|^{disk}$|\",\"r|.*|\"]}}");
    let on = |verb: &str, words: &[&str]| lvm(&[&[verb, "-qq", "--config", &only], words].concat());
    on("vgcreate", &["-y", GROUP, disk]);
    let uuid = on("vgs", &["--noheadings", "-o", "vg_uuid", GROUP]);
    let (key, uuid) = ("0".repeat(32), uuid.trim().replace('-', ""));
    let tag = format!("flexvol-pool=1:key={key}:group={uuid}");
    on("vgchange", &["--addtag", &tag, GROUP]);
}

fn pretended(points: &Points) {
    let node = Node::linear();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let volumes = ["first", "second", "third"];
    let records = RECORDS.map(Path::new);
    let remembered = fs::read(records[0]).unwrap();
    let forget = || {
        records
            .iter()
            .for_each(|record| fs::remove_file(record).unwrap())
    };
    let expect_remembered = || {
        for record in records {
            assert_eq!(fs::read(record).unwrap(), remembered);
        }
    };
    expect_remembered();
    // As with a pool of an earlier version, and once where the record cannot be written.
    forget();
    let kept = "mount -t tmpfs -o ro none /var/lib; mount -t tmpfs -o ro none /etc/flexvol";
    let words = ["provision", &request(volumes[0], SIZE)];
    let made = node.driver.call_where(kept, &words).success();
    let first = PersistentVolume::from_reply(volumes[0], "ext4", &made);
    assert!(records.iter().all(|record| !record.exists()));
    let second = node.volume_of(volumes[1], "ext4");
    expect_remembered();
    forget();
    let (pod, content) = node.written(&first);
    expect_remembered();
    for record in records {
        let memory = record.parent().unwrap();
        assert_eq!([mode(record), mode(memory)], [0o600, 0o700]);
        assert_eq!(fs::read_dir(memory).unwrap().count(), 1);
    }
    // A record of before there were any in /etc gets there.
    fs::remove_file(records[0]).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
    expect_remembered();
    points.add(3);

    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let disk = disks()[3].to_str().unwrap().to_owned();
    pretend(&disk);
    node.driver.call(&["capacity", "{}"]).success();
    pod.mount("rw").success();
    node.expand(&first, super::GROWN).success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
    let third = node.volume_of(volumes[2], "ext4");
    let config = node.configuration();
    assert!(flexvol(&["list", "--config", &config]).contains(volumes[1]));
    flexvol(&["pool", "init", "--group", GROUP]);
    for volume in [&first, &second, &third] {
        node.delete(volume).success();
    }
    let lists = |disk: &str| lvm(&["lvs", "-qq", "--noheadings", "--devices", disk, GROUP]);
    assert_eq!(lists(&disk), "");
    points.add(1);
}

fn taken_over(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, _) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let list = disks();
    for disk in &list[..2] {
        detach(disk);
    }
    let missing = node.driver.call(&["capacity", "{}"]).failure();
    assert!(missing.contains("are its disks attached"), "{missing}");
    let disk = list[3].to_str().unwrap();
    pretend(disk);
    let lists = || lvm(&["lvs", "-qq", "--noheadings", GROUP]);
    for call in [
        node.driver.call(&["capacity", "{}"]),
        node.driver.call(&["provision", &request("other", SIZE)]),
        pod.mount("rw"),
        node.expand(&volume, super::GROWN),
        node.delete(&volume),
    ] {
        let refused = call.failure();
        assert!(refused.contains("has its name"), "{refused}");
        assert!(
            refused.contains("pool init --group vg0 --replace`"),
            "{refused}"
        );
        assert_eq!(lists(), "");
        points.add(1);
    }
    // Also where a volume of the group is missing that was mounted above the node's other record.
    let covered = "mount -t tmpfs none /var/lib";
    let refused = node.driver.call_where(covered, &["capacity", "{}"]);
    assert!(refused.failure().contains("has its name"), "{refused}");
    points.add(1);
    let plugins = node.sandbox.plugins();
    let words = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
    let said = output(crate::executable().to_str().unwrap(), &words);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("has its name"), "{said}");
    // Unless an administrator says that it replaces the pool, after a warning.
    let read = || RECORDS.map(|record| fs::read_to_string(record).unwrap());
    let remembered = read();
    let id = remembered[0].split_whitespace().next().unwrap();
    let uuid = lvm(&["vgs", "-qq", "--noheadings", "-o", "vg_uuid", GROUP]);
    let init = ["pool", "init", "--group", GROUP];
    let said = output(crate::executable().to_str().unwrap(), &init);
    let why = String::from_utf8(said.stderr).unwrap();
    assert!(!said.status.success(), "{why}");
    for part in [id, &uuid.trim().replace('-', ""), "--group vg0 --replace`"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert_eq!(read(), remembered);
    flexvol(&[&init[..], &["--replace"]].concat());
    assert!(read().iter().all(|record| !record.contains(id)));
    node.driver.call(&["capacity", "{}"]).success();
    node.volume_of("other", "ext4");
    points.add(2);
}

fn same_name(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let disk = disks()[3].to_str().unwrap().to_owned();
    lvm(&["vgcreate", "-qq", "-y", "--devices", &disk, GROUP, &disk]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    node.expand(&volume, super::GROWN).success();
    pod.unmount().success();
    let other = node.volume_of("other", "ext4");
    for volume in [&other, &volume] {
        node.delete(volume).success();
    }
    let lists = |disk: &str| lvm(&["lvs", "-qq", "--noheadings", "--devices", disk, GROUP]);
    assert_eq!(lists(&disk), "");
    points.add(1);
}

fn forged(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let tag = lvm(&["vgs", "--noheadings", "-o", "vg_tags", GROUP]);
    let list = disks();
    let own = list[..2].iter().map(|disk| disk.to_str().unwrap());
    let own = own.collect::<Vec<_>>().join(",");
    let theirs = list[3].to_str().unwrap();

    // The group as it is, and then with one more disk, which the others do not know.
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

    // The disk is detached.
    lvm(&["pvremove", "-qq", "-ff", "-y", "--devices", theirs, theirs]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
    // Without its tag the group cannot be made a pool again.
    lvm(&["vgchange", "-qq", "--deltag", tag.trim(), GROUP]);
    let said = output(crate::executable().to_str().unwrap(), &init);
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("lost the tag"), "{said}");
    lvm(&["vgchange", "-qq", "--addtag", tag.trim(), GROUP]);
    flexvol(&init);
    node.delete(&volume).success();
    points.add(1);
}

/// The area with LVM's label and metadata on a disk.
fn head(disk: &std::path::Path) -> Vec<u8> {
    let mut head = vec![0; 1 << 20];
    fs::File::open(disk)
        .unwrap()
        .read_exact_at(&mut head, 0)
        .unwrap();
    head
}
