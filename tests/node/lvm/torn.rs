//! Metadata of a group after a power cut, and its repair by an administrator.

use super::{GROUP, GROWN, NEEDS, SIZE, lvm, run};
use crate::node::Node;
use flexvol_testing::{Points, disks, request, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

tests! {
    "lvm: a group whose metadata a cut tore is refused, and its disks have the copy that brings it back", NEEDS
        => torn;
}

fn torn(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let (pod, content) = node.written(&volume);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    // The last change was not reported to anyone, and was cut between the text and the pointer to it.
    lvm(&["vgchange", "-qq", "--addtag", "last", GROUP]);
    let disks = &disks()[..2];
    for disk in disks {
        tear(disk);
    }
    let refused = |name: &str| {
        node.driver
            .call(&["provision", &request(name, SIZE)])
            .failure()
    };
    let words = refused("other");
    assert!(words.contains("volume group is not there"), "{words}");
    points.add(1);

    // The commands of docs/evidence/tests.md, with the output of the first.
    let disk = disks[0].to_str().unwrap();
    let found = run("pvck", &["--dump", "metadata_search", disk]);
    let copy = |line: &str| -> Option<(u64, u64)> {
        let words: Vec<_> = line.split_whitespace().collect();
        let after = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1)?.parse().ok()
        };
        Some((after("seqno")?, after("at")?))
    };
    let (_, offset) = found.lines().filter_map(copy).max().unwrap();
    let settings = format!("metadata_offset={offset}");
    let file = node.sandbox.path("metadata");
    let file = file.to_str().unwrap();
    let dump = ["--dump", "metadata_search", "--settings", &settings];
    run("pvck", &[&dump[..], &["-f", file, disk]].concat());
    for disk in disks {
        let disk = disk.to_str().unwrap();
        run("pvck", &["--repair", "-y", "-f", file, disk]);
    }
    lvm(&["vgs", GROUP]);
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    node.expand(&volume, GROWN).success();
    pod.unmount().success();
    for name in ["pv", "other"] {
        let volume = node.volume_of(name, "ext4");
        node.delete(&volume).success();
    }
    points.add(1);
}

/// Erases the metadata to which the header of a disk's metadata area points
/// (`struct mda_header` in LVM's lib/format_text/layout.h).
fn tear(disk: &Path) {
    const AREA: u64 = 4096;
    let disk = File::options().read(true).write(true).open(disk).unwrap();
    let mut header = [0; 64];
    disk.read_exact_at(&mut header, AREA).unwrap();
    assert_eq!(&header[4..20], b"\x20LVM2\x20x[5A%r0N*>");
    let number = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().unwrap());
    let (offset, size) = (number(40), number(48));
    let nothing = vec![0; usize::try_from(size).unwrap()];
    disk.write_all_at(&nothing, AREA + offset).unwrap();
    disk.sync_all().unwrap();
}
