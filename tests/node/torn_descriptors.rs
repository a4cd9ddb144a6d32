//! An ext3 or ext4 whose group descriptors a power cut during a growth left older than its superblock.

use crate::{
    node::{Backend, MIB, Node},
    torn::{
        NEEDS, SIZE, copy, cut_off, expect_synced, flip, grow_by_tools, grow_by_tools_to, is_clean,
        succeeds,
    },
};
use flexvol_testing::{PersistentVolume, Points, tests};
use nix::sys::statvfs::statvfs;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

tests! {
    "an ext4 volume whose group descriptors are older than its growth is mended by the next mount", NEEDS => old_descriptors;
    "an ext4 or ext3 volume that a cut growth left without a block of group descriptors is mended by the next mount", NEEDS
        => lost_descriptors;
}

/// The superblock tells of a growth of which the descriptors of its groups do not: the journal has both, and the kernel
/// looks at them before it replays it.
fn old_descriptors(points: &Points) {
    const DESCRIPTORS: u64 = 4096;
    const INODE_TABLE: u64 = DESCRIPTORS + 8;
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("ext4");
    node.pod(&volume).unmount().success();
    let image = volume.image(&node.sandbox);
    let mut before = [0; 4096];
    let read = File::open(&image).unwrap();
    read.read_exact_at(&mut before, DESCRIPTORS).unwrap();
    grow_by_tools(&node, &volume);
    cut_off(&node, &volume);
    let write = File::options().write(true).open(&image).unwrap();
    write.write_all_at(&before, DESCRIPTORS).unwrap();
    write.sync_all().unwrap();

    // A bit of another group is damage, whatever the journal has.
    flip(&image, INODE_TABLE, 0x10);
    let pod = node.pod(&volume);
    let damaged = fs::read(&image).unwrap();
    assert!(pod.mount("rw").failure().contains("does not accept"));
    assert!(fs::read(&image).unwrap() == damaged, "changed");
    points.add(1);
    flip(&image, INODE_TABLE, 0x10);

    pod.mount("rw").success();
    node.holds_the_file(&volume);
    expect_synced(&pod);
    let space = statvfs(pod.dir()).unwrap();
    assert!(space.blocks() * space.fragment_size() > SIZE);
    pod.unmount().success();
    assert!(is_clean(&image), "not mended");
    node.delete(&volume).success();
    points.add(1);
}

/// A block of descriptors that the growth took from those in reserve, in which something else was, and descriptors without
/// checksums. The journal has them.
fn lost_descriptors(points: &Points) {
    for (filesystem, had, gets, block) in [
        ("ext4", 16 * MIB, 600 * MIB, 2),
        ("ext3", 64 * MIB, 200 * MIB, 1),
    ] {
        let node = Node::new(Backend::Loop);
        let volume = PersistentVolume::provision(&node.driver, "pv", filesystem, had);
        let (pod, content) = node.written(&volume);
        let image = volume.image(&node.sandbox);
        let mut before = [0; 4096];
        let read = File::open(&image).unwrap();
        read.read_exact_at(&mut before, block * 4096).unwrap();
        let was_in_reserve = before.iter().any(|byte| *byte != 0) && block > 1;
        assert!(was_in_reserve || block == 1);
        grow_by_tools_to(&node, &volume, had, gets);
        put_into_journal(&node, &image, filesystem, block);
        let mut after = [0; 4096];
        read.read_exact_at(&mut after, block * 4096).unwrap();
        assert!(after != before, "{filesystem}: not grown");
        let write = File::options().write(true).open(&image).unwrap();
        // Whole, and torn after the sector with the numbers of its copies.
        for lost in [0..4096, 0..512] {
            write.write_all_at(&after, block * 4096).unwrap();
            let from = u64::try_from(lost.start).unwrap();
            write
                .write_all_at(&before[lost], block * 4096 + from)
                .unwrap();
            write.sync_all().unwrap();
            let cut = node.sandbox.path("cut");
            copy(&image, &cut);
            pod.mount("rw").success();
            assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
            let space = statvfs(pod.dir()).unwrap();
            assert!(space.blocks() * space.fragment_size() > had);
            pod.unmount().success();
            assert!(is_clean(&image), "{filesystem}: not mended");
            copy(&cut, &image);
            points.add(1);
        }
        write.write_all_at(&after, block * 4096).unwrap();
        pod.mount("rw").success();
        pod.unmount().success();
        node.delete(&volume).success();
    }
}

/// Makes the journal have a block as it is now, in a transaction that is to be replayed.
fn put_into_journal(node: &Node, image: &Path, filesystem: &str, block: u64) {
    let (content, commands) = (node.sandbox.path("block"), node.sandbox.path("commands"));
    let mut bytes = vec![0; 4096];
    let read = File::open(image).unwrap();
    read.read_exact_at(&mut bytes, block * 4096).unwrap();
    fs::write(&content, bytes).unwrap();
    let open = match filesystem {
        "ext4" => "jo -c",
        _ => "jo",
    };
    let text = format!("{open}\njw -b {block} {}\njc\n", content.display());
    fs::write(&commands, text).unwrap();
    let mut debugfs = Command::new("debugfs");
    assert!(succeeds(
        debugfs.args(["-w", "-f"]).arg(&commands).arg(image)
    ));
    let mut recover = [0];
    read.read_exact_at(&mut recover, 1024 + 0x60).unwrap();
    assert!(recover[0] & 0x4 != 0, "nothing is to be replayed");
}
