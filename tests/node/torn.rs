//! An ext4 superblock of which a power cut wrote one sector and not the other.

use crate::node::{Backend, MIB, Node};
use flexvol_testing::{Hidden, Need, PersistentVolume, Points, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

const NEEDS: &[Need] = &[Need::Root, Need::Tool("e2fsck", "e2fsprogs")];

tests! {
    "an ext4 volume whose superblock a power cut tore is mended by the next mount", NEEDS => torn;
    "an ext4 volume whose superblock tore while it grew is mended by the next mount", NEEDS
        => torn_in_growth;
}

const SIZE: u64 = 300 * MIB;
const GROWN: u64 = 480 * MIB;

/// The first sector is newer than the second, which has the checksum.
fn tear(image: &Path) {
    let image = File::options().write(true).open(image).unwrap();
    // `s_mnt_count`, which every mount changes.
    image.write_all_at(&[77], 1024 + 0x34).unwrap();
    image.sync_all().unwrap();
}

fn torn(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("ext4");
    node.pod(&volume).unmount().success();
    tear(&volume.image(&node.sandbox));
    node.pod(&volume).mount("rw").success();
    node.holds_the_file(&volume);
    node.pod(&volume).unmount().success();
    node.delete(&volume).success();
}

/// The kernel grows the file system in its journal and tells the copies of the superblock in a later
/// transaction. Between the two the copies are of a smaller file system, and the journal is full.
fn torn_in_growth(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("ext4");
    node.pod(&volume).unmount().success();
    let image = volume.image(&node.sandbox);
    let copies = Copies::of(&image);
    grow_by_tools(&node, &volume);
    copies.write(&image);

    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let later = pod.dir().join("later");
    fs::write(&later, vec![7; 1 << 20]).unwrap();
    File::open(&later).unwrap().sync_all().unwrap();
    let cut = node.sandbox.path("cut");
    copy(&image, &cut);
    pod.unmount().success();
    copy(&cut, &image);
    tear(&image);
    assert!(!is_clean(&image), "not torn");

    // What could do it by guessing is not there.
    let hidden = Hidden::tools(&["debugfs"]);
    pod.mount("rw").success();
    drop(hidden);
    node.holds_the_file(&volume);
    assert_eq!(fs::read(&later).unwrap(), vec![7; 1 << 20]);
    pod.unmount().success();
    assert!(is_clean(&image), "not mended");
    node.delete(&volume).success();
}

fn grow_by_tools(node: &Node, volume: &PersistentVolume) {
    let image = volume.image(&node.sandbox);
    let dir = node.pod(volume).dir().display().to_string();
    let sizes = [GROWN, SIZE].map(|size| size.to_string());
    let arguments = [
        "expandvolume",
        &volume.json("rw"),
        &dir,
        &sizes[0],
        &sizes[1],
    ];
    node.driver.call(&arguments).success();
    assert!(succeeds(
        Command::new("e2fsck").args(["-f", "-p"]).arg(&image)
    ));
    assert!(succeeds(Command::new("resize2fs").arg(&image)));
}

/// The first copy of the superblock, and after it of what describes the groups.
struct Copies(Vec<u8>);

impl Copies {
    /// Blocks of 4 KiB, 32,768 in a group.
    const AT: u64 = 128 * MIB;

    fn of(image: &Path) -> Self {
        let image = File::open(image).unwrap();
        let mut copies = vec![0; 2 * 4096];
        image.read_exact_at(&mut copies, Copies::AT).unwrap();
        assert_eq!(copies[0x38..0x3a], [0x53, 0xef], "no copy of a superblock");
        Copies(copies)
    }

    fn write(&self, image: &Path) {
        let image = File::options().write(true).open(image).unwrap();
        image.write_all_at(&self.0, Copies::AT).unwrap();
    }
}

/// Into the same file: a volume is known by more than its content.
fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    assert!(succeeds(copy.arg("--sparse=always").args([from, to])));
}

fn is_clean(image: &Path) -> bool {
    succeeds(Command::new("e2fsck").args(["-f", "-n"]).arg(image))
}

fn succeeds(command: &mut Command) -> bool {
    command.output().unwrap().status.success()
}
