//! A group whose metadata has space for few more volumes, and deleted volumes that are kept in it.

use super::{GROUP, NEEDS, lvm, path, reported, told};
use crate::node::{Backend, MIB, Node};
use flexvol_testing::{
    Call, Driver, Outcome, PersistentVolume, Points, disks, eventually, json, tests, volume_id,
};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

tests! {
    "lvm: volumes that are kept leave the group's metadata enough for every delete, and go where they are too many",
        NEEDS => crowded;
    "lvm: a volume in many pieces grows by more, and none grows over more pieces than the group's metadata have room for",
        NEEDS => pieces;
    "lvm: a growth that waited for others judges the metadata that they left", NEEDS => waited;
}

const SIZE: u64 = 16 * MIB;

fn kept() -> usize {
    let tags = lvm(&["lvs", "--noheadings", "-o", "lv_tags", GROUP]);
    tags.matches(":deleted=").count()
}

fn provision(driver: &Driver, name: &str) -> Call {
    provision_of(driver, name, SIZE)
}

fn provision_of(driver: &Driver, name: &str, size: u64) -> Call {
    let size = size.to_string();
    let told = [
        ("kubernetes.io/pvOrVolumeName", name),
        ("kubernetes.io/pvc.namespace", "default"),
        ("requestBytes", &size),
        ("fsType", "ext4"),
    ];
    driver.call(&["provision", &json(told)])
}

/// Makes a group with a small metadata area.
fn small_group(area: &str) {
    let disk = disks()[0].to_str().unwrap().to_owned();
    let small = ["--dataalignment", "4k", "--metadatasize", area];
    lvm(&[&["pvcreate", "-qq", "-y"], &small[..], &[&disk]].concat());
    lvm(&["vgcreate", "-qq", "-y", GROUP, &disk]);
}

/// Adds tags to the group, which take space in its metadata.
fn tag_the_group(tags: impl Iterator<Item = String>) {
    let words: Vec<_> = tags.flat_map(|tag| ["--addtag".to_owned(), tag]).collect();
    let words = words.iter().map(String::as_str);
    lvm(&["vgchange", "-qq", GROUP]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>());
}

/// Fills this percentage of the space that the group's metadata may take.
fn fill_metadata(to: u64) {
    let half = of_group("vg_mda_size") / 2;
    let missing = (half * to / 100).saturating_sub(half - of_group("vg_mda_free"));
    tag_the_group((0..missing / 204).map(|tag| format!("{tag:0>200}")));
}

/// The pool's directory of names, which is also its lock.
fn names() -> PathBuf {
    let pool = fs::read_dir("/run/flexvol/names").unwrap().next();
    pool.unwrap().unwrap().path()
}

fn number(said: &str) -> u64 {
    said.parse().unwrap()
}

fn of_group(field: &str) -> u64 {
    number(&reported("vgs", field, GROUP))
}

fn expand(node: &Node, volume: &PersistentVolume, to: u64) -> Call {
    let arguments = node.expand_volume_arguments(volume, SIZE, to);
    node.driver.call(&arguments)
}

/// Checks that a volume of all free space is refused, even if a killed call had already made it.
fn refused_whole(node: &Node, room: u64) {
    let refused = || {
        let refused = provision_of(&node.driver, "whole", room).failure();
        assert!(refused.contains("own metadata is"), "{refused}");
        assert_eq!(of_group("vg_free"), room);
    };
    refused();
    let handle = "0123456789abcdef0123456789abcdef";
    symlink(handle, names().join("whole")).unwrap();
    let name = format!("flexvol-{}", volume_id(handle));
    let made = ["-L", &format!("{room}b"), "--addtag", "flexvol-unfinished"];
    lvm(&[&["lvcreate", "-qq", "-y", "-n", &name][..], &made, &[GROUP]].concat());
    assert_eq!(of_group("vg_free"), 0);
    refused();
}

fn pieces(points: &Points) {
    small_group("64k");
    let node = Node::on(Backend::Lvm, crate::sandbox(), false, "");
    let made = ["one", "two"].map(|name| {
        let made = provision(&node.driver, name).success();
        PersistentVolume::from_reply(name, "ext4", &made)
    });
    let [one, two] = &made;
    let names = [path(one), path(two)];
    // As if the two had grown alternately, by an extent each time.
    let disk = disks()[0].to_str().unwrap().to_owned();
    for (first, name) in (100..).zip(&names) {
        let extents = (0..20).map(|nth| format!(":{}", first + 2 * nth));
        let extents: String = extents.collect();
        lvm(&[
            "lvextend",
            "-qq",
            "-l",
            "+20",
            name,
            &(disk.clone() + &extents),
        ]);
    }
    let size = || number(&told(one, "lv_size"));
    let had = size();
    assert!(had > 90 * MIB && number(&told(one, "seg_count")) > 16);
    expand(&node, one, had + 4 * MIB).success();
    assert!(size() >= had + had / 8, "{} of {had}", size());

    // The only free space is that of the other volume, in pieces of one extent.
    lvm(&[
        "lvcreate", "-qq", "-y", "-an", "-Zn", "-Wn", "-n", "rest", "-l", "100%FREE", GROUP,
    ]);
    node.delete(two).success();
    let free = || of_group("vg_free");
    let half = of_group("vg_mda_size") / 2;
    let taken = || 100 - 100 * of_group("vg_mda_free") / half;
    fill_metadata(90);
    assert!((87..95).contains(&taken()), "{}", taken());
    let (had, room) = (size(), free());
    refused_whole(&node, room);
    let refused = expand(&node, one, had + room).failure();
    assert!(refused.contains("small pieces"), "{refused}");
    assert_eq!((size(), free()), (had, room));
    assert!(taken() < 95, "{}", taken());
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/rest")]);
    expand(&node, one, had + 32 * MIB).success();
    node.delete(one).success();
    points.add(3);
}

fn waited(points: &Points) {
    small_group("64k");
    let node = Node::on(Backend::Lvm, crate::sandbox(), false, "");
    let made = provision(&node.driver, "pv").success();
    let volume = PersistentVolume::from_reply("pv", "ext4", &made);
    let lock = names();
    let others = Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
    thread::scope(|scope| {
        let growth = scope.spawn(|| expand(&node, &volume, SIZE + 4 * MIB));
        eventually(Duration::from_secs(10), "the growth waits", || {
            holders(&lock) > 1
        });
        fill_metadata(97);
        drop(others);
        let refused = growth.join().unwrap().failure();
        assert!(refused.contains("own metadata is"), "{refused}");
    });
    assert_eq!(number(&told(&volume, "lv_size")), SIZE);
    points.add(1);
}

/// How many processes have the file open.
fn holders(file: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let has = |process: &fs::DirEntry| {
        let open = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        open.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == file))
    };
    processes.filter(has).count()
}

fn crowded(points: &Points) {
    small_group("32k");
    let node = Node::on(
        Backend::Lvm,
        crate::sandbox(),
        false,
        "keep_deleted = \"7d\"",
    );
    let driver = &node.driver;
    // Foreign tags take a quarter of the metadata, so that few volumes fill the rest.
    tag_the_group((0..4).map(|tag| format!("{tag:0>1000}")));
    let archived = || {
        fs::read_dir("/etc/lvm/archive")
            .into_iter()
            .flatten()
            .count()
    };
    let before = archived();

    let mut volumes = Vec::new();
    let full = loop {
        let name = format!("pv-{}", volumes.len());
        let made = provision(driver, &name);
        if made.outcome() != Outcome::Success {
            break made.failure();
        }
        let volume = PersistentVolume::from_reply(&name, "ext4", &made);
        node.pod(&volume).mount("rw").success();
        volumes.push(volume);
    };
    assert!(full.contains("own metadata is"), "{full}");
    assert!(volumes.len() > 3, "{}", volumes.len());
    let mut to = SIZE;
    let full = loop {
        to += 4 * MIB;
        let grown = volumes.iter().map(|volume| {
            let arguments = node.pod(volume).expand_arguments(to, to - 4 * MIB);
            driver.call(&arguments)
        });
        let mut refused = grown.filter(|call| call.outcome() != Outcome::Success);
        if let Some(refused) = refused.next() {
            break refused.failure();
        }
        assert!(to < 200 * MIB, "it grows without end");
    };
    assert!(full.contains("own metadata is"), "{full}");
    for volume in &volumes {
        node.pod(volume).unmount().success();
        node.delete(volume).success();
        points.add(1);
    }
    assert_eq!(kept(), volumes.len());
    provision(driver, "more").failure();

    // A third of the metadata has space for six.
    node.install("keep_deleted = \"7d\"\nkeep_at_most = \"20%\"");
    crate::by_hand::stdout_of(driver, &["gc"]);
    assert!((1..=6).contains(&kept()), "{}", kept());
    let made = provision(driver, "more").success();
    let volume = PersistentVolume::from_reply("more", "ext4", &made);
    node.pod(&volume).mount("rw").success();
    node.pod(&volume).unmount().success();
    node.delete(&volume).success();
    assert!((1..=6).contains(&kept()), "{}", kept());
    assert_eq!(archived(), before, "copies of the metadata were left");
    points.add(2);
}
