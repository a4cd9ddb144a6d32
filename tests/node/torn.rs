//! An ext3 or ext4 that the kernel refuses after a power cut: which ones a mount repairs, and which stay unchanged.

use crate::node::{Backend, MIB, Node};
use flexvol_testing::{Hidden, Need, PersistentVolume, Pod, Points, tests};
use nix::sys::statvfs::statvfs;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

pub const NEEDS: &[Need] = &[Need::Root, Need::Tool("e2fsck", "e2fsprogs")];

tests! {
    "an ext4 volume whose superblock a power cut tore is mended by the next mount", NEEDS => torn;
    "an ext4 volume whose superblock tore while it grew is mended by the next mount", NEEDS
        => torn_in_growth;
    "an ext4 volume whose superblock tore before its growth was written there is mended by the next mount", NEEDS
        => torn_before_growth;
    "an ext4 or ext3 volume with one wrong bit is refused and left as it is, with the journal that has what was synced", NEEDS
        => one_bit;
    "an ext4 with a seed of its checksums in a sector that reads as zeros is refused and left as it is", NEEDS
        => lost_sector;
    "a torn ext4 without a copy of its superblock is refused and left as it is", NEEDS => alone;
}

pub const SIZE: u64 = 300 * MIB;
const GROWN: u64 = 480 * MIB;

/// Makes the first sector newer than the second, which has the checksum.
fn tear(image: &Path) {
    let image = File::options().write(true).open(image).unwrap();
    // `s_mtime`, `s_wtime` and `s_mnt_count`, which every mount changes.
    image.write_all_at(&[77; 10], 1024 + 0x2c).unwrap();
    image.sync_all().unwrap();
}

/// Changes only the mount count: `e2fsck` writes one run of words after another, and the checksum last.
fn tear_by_one_bit(image: &Path) {
    flip(image, 1024 + 0x34, 0x10);
}

fn torn(points: &Points) {
    for (size, tear) in [
        (64 * MIB, tear as fn(&Path)),
        (SIZE, tear),
        (SIZE, tear_by_one_bit),
    ] {
        let node = Node::new(Backend::Loop);
        let volume = PersistentVolume::provision(&node.driver, "pv", "ext4", size);
        cut_off(&node, &volume);
        tear(&volume.image(&node.sandbox));
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        expect_synced(&pod);
        pod.unmount().success();
        assert!(is_clean(&volume.image(&node.sandbox)), "not mended");
        node.delete(&volume).success();
        points.add(1);
    }
}

/// The kernel grows the file system in its journal and updates the copies of the superblock in a later transaction. In
/// between the copies describe a smaller file system, and the journal is not empty.
fn torn_in_growth(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("ext4");
    node.pod(&volume).unmount().success();
    let image = volume.image(&node.sandbox);
    let copies = Copies::of(&image);
    grow_by_tools(&node, &volume);
    copies.write(&image);
    cut_off(&node, &volume);
    tear(&image);
    assert!(!is_clean(&image), "not torn");

    // Without the tools that would repair by guessing.
    let hidden = Hidden::tools(&["debugfs", "e2fsck"]);
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    drop(hidden);
    node.holds_the_file(&volume);
    expect_synced(&pod);
    pod.unmount().success();
    assert!(is_clean(&image), "not mended");
    node.delete(&volume).success();
}

/// The copies, the journal and the superblock's second sector have a growth that its first sector lacks: both were
/// being written at the power cut.
fn torn_before_growth(_: &Points) {
    const FIRST_SECTOR: u64 = 1024;
    let node = Node::new(Backend::Loop);
    let volume = node.with_file("ext4");
    node.pod(&volume).unmount().success();
    let image = volume.image(&node.sandbox);
    let mut before = [0; 512];
    let read = File::open(&image).unwrap();
    read.read_exact_at(&mut before, FIRST_SECTOR).unwrap();
    grow_by_tools(&node, &volume);
    // Without the feature orphan_file, an unlinked open file is linked from the superblock, in the journal.
    let mut chained = Command::new("tune2fs");
    chained.args(["-O", "^orphan_file"]).arg(&image);
    chained.output().unwrap();
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let nameless = tempfile::tempfile_in(pod.dir()).unwrap();
    let cut = cut_off_mounted(&node, &pod, &image);
    drop(nameless);
    pod.unmount().success();
    copy(&cut, &image);

    let newer = fs::read(&image).unwrap();
    let is_to_be_replayed = |sector: &[u8]| sector[0x60] & 0x4 != 0;
    assert!(is_to_be_replayed(&newer[1024..1536]));
    before[0x60] |= 0x4;
    let write = File::options().write(true).open(&image).unwrap();
    write.write_all_at(&before, FIRST_SECTOR).unwrap();
    write.sync_all().unwrap();
    assert!(!is_clean(&image), "not torn");

    let pod = node.pod(&volume);
    pod.mount("rw").success();
    node.holds_the_file(&volume);
    expect_synced(&pod);
    let space = statvfs(pod.dir()).unwrap();
    let size = space.blocks() * space.fragment_size();
    assert!(size > SIZE, "{size}");
    pod.unmount().success();
    assert!(is_clean(&image), "not mended");
    node.delete(&volume).success();
}

/// Leaves in the image the content after a power cut just after a file was synced.
pub fn cut_off(node: &Node, volume: &PersistentVolume) {
    let image = volume.image(&node.sandbox);
    let pod = node.pod(volume);
    pod.mount("rw").success();
    let cut = cut_off_mounted(node, &pod, &image);
    pod.unmount().success();
    copy(&cut, &image);
}

/// Copies the image just after a file was synced.
fn cut_off_mounted(node: &Node, pod: &Pod<'_>, image: &Path) -> PathBuf {
    let synced = pod.dir().join("synced");
    fs::write(&synced, vec![7; 1 << 20]).unwrap();
    for path in [&synced, pod.dir()] {
        File::open(path).unwrap().sync_all().unwrap();
    }
    let cut = node.sandbox.path("cut");
    copy(image, &cut);
    cut
}

#[track_caller]
pub fn expect_synced(pod: &Pod<'_>) {
    assert_eq!(
        fs::read(pod.dir().join("synced")).unwrap(),
        vec![7; 1 << 20]
    );
}

/// A disk that returns wrong data: the kernel's checksums detect it, and `e2fsck -p` would complete the
/// loss.
fn one_bit(points: &Points) {
    const LENGTH: u64 = 0x10 + 3;
    const DESCRIPTOR_BLOCK: u64 = 4096 + 0x30;
    const SUPERBLOCK: u64 = 1024;
    const RECOVER: u64 = SUPERBLOCK + 0x60;
    const HAS_JOURNAL: u64 = SUPERBLOCK + 0x5c;
    const INODE_TABLE: u64 = 4096 + 8;
    for (filesystem, is_in_journal, offset, bit) in [
        ("ext4", true, 35, 0x10),
        ("ext4", true, DESCRIPTOR_BLOCK, 0x10),
        ("ext3", true, 14, 0x10),
        ("ext3", true, LENGTH, 0x10),
        ("ext4", false, RECOVER, 0x4),
        ("ext4", false, HAS_JOURNAL, 0x4),
        // The first group, according to its descriptor.
        ("ext4", false, INODE_TABLE, 0x10),
    ] {
        let node = Node::new(Backend::Loop);
        let volume = node.with_file(filesystem);
        cut_off(&node, &volume);
        let image = volume.image(&node.sandbox);
        let at = match is_in_journal {
            true => first_journal_block(&image) * 4096 + offset,
            false => offset,
        };
        flip(&image, at, bit);
        let pod = node.pod(&volume);
        for _ in 0..2 {
            let refused = pod.mount("rw");
            assert!(
                refused.failure().contains("does not accept"),
                "{filesystem} {at}: {refused:?}"
            );
        }
        flip(&image, at, bit);
        pod.mount("rw").success();
        expect_synced(&pod);
        node.holds_the_file(&volume);
        pod.unmount().success();
        assert!(is_clean(&image), "{filesystem} {at}");
        node.delete(&volume).success();
        points.add(1);
    }
}

/// A single block group, as mke2fs makes it at this size: a torn write cannot be told from damage.
fn alone(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = PersistentVolume::provision(&node.driver, "pv", "ext4", 64 * MIB);
    node.written(&volume);
    let image = volume.image(&node.sandbox);
    let uuid = Command::new("blkid")
        .args(["-o", "value", "-s", "UUID"])
        .arg(&image)
        .output();
    let uuid = String::from_utf8(uuid.unwrap().stdout).unwrap();
    let mut made = Command::new("mkfs.ext4");
    made.args(["-q", "-F", "-b", "4096", "-U", uuid.trim()]);
    assert!(succeeds(made.arg(&image)));
    let (pod, content) = node.written(&volume);
    let whole = fs::read(&image).unwrap();
    tear(&image);
    let torn = fs::read(&image).unwrap();
    for _ in 0..2 {
        let refused = pod.mount("rw");
        assert!(refused.failure().contains("does not accept"), "{refused:?}");
        assert!(fs::read(&image).unwrap() == torn, "changed");
    }
    fs::write(&image, whole).unwrap();
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    node.delete(&volume).success();
}

/// With a valid checksum over it, `e2fsck` would trust it and take everything else for damaged.
fn lost_sector(points: &Points) {
    const SECOND_SECTOR: u64 = 1024 + 512;
    for size in [64 * MIB, SIZE] {
        let node = Node::new(Backend::Loop);
        let volume = PersistentVolume::provision(&node.driver, "pv", "ext4", size);
        let (pod, content) = node.written(&volume);
        let image = volume.image(&node.sandbox);
        let mut seed = Command::new("tune2fs");
        assert!(succeeds(
            seed.args(["-O", "metadata_csum_seed"]).arg(&image)
        ));
        let file = File::options().read(true).write(true).open(&image).unwrap();
        let mut sector = [0; 512];
        file.read_exact_at(&mut sector, SECOND_SECTOR).unwrap();
        file.write_all_at(&[0; 512], SECOND_SECTOR).unwrap();
        for _ in 0..2 {
            let refused = pod.mount("rw");
            assert!(refused.failure().contains("does not accept"), "{refused:?}");
            let mut found = [1; 512];
            file.read_exact_at(&mut found, SECOND_SECTOR).unwrap();
            assert!(found == [0; 512], "written");
        }
        file.write_all_at(&sector, SECOND_SECTOR).unwrap();
        pod.mount("rw").success();
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
        pod.unmount().success();
        node.delete(&volume).success();
        points.add(1);
    }
}

pub fn flip(image: &Path, at: u64, bit: u8) {
    let image = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ bit], at).unwrap();
    image.sync_all().unwrap();
}

fn first_journal_block(image: &Path) -> u64 {
    let mut debugfs = Command::new("debugfs");
    let said = debugfs
        .args(["-c", "-R", "bmap <8> 0"])
        .arg(image)
        .output()
        .unwrap();
    let block = String::from_utf8_lossy(&said.stdout);
    let block = block.trim().parse();
    block.unwrap_or_else(|_| panic!("no block of the journal: {said:?}"))
}

pub fn grow_by_tools(node: &Node, volume: &PersistentVolume) {
    grow_by_tools_to(node, volume, SIZE, GROWN);
}

pub fn grow_by_tools_to(node: &Node, volume: &PersistentVolume, had: u64, gets: u64) {
    let image = volume.image(&node.sandbox);
    let dir = node.pod(volume).dir().display().to_string();
    let sizes = [gets, had].map(|size| size.to_string());
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

/// The first copy of the superblock and of the group descriptors after it.
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

/// Into the same file, because a volume is identified by more than its content.
pub fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    assert!(succeeds(copy.arg("--sparse=always").args([from, to])));
}

pub fn is_clean(image: &Path) -> bool {
    succeeds(Command::new("e2fsck").args(["-f", "-n"]).arg(image))
}

pub fn succeeds(command: &mut Command) -> bool {
    command.output().unwrap().status.success()
}
