//! Growth after every possible interruption of an earlier growth.

use super::{
    GROUP, GROWN, HANGS, NEEDS, SIZE, flexvol, in_time, lvm, mapping, mappings, output, path, run,
    told,
};
use crate::{
    node::{MIB, Node, fill, size_of_filesystem},
    wrapper::Wrapper,
};
use flexvol_testing::{PersistentVolume, Points, Random, budget, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    time::Instant,
};

tests! {
    "lvm: growth goes on where the volume has its size and the file system has not", NEEDS
        => storage_first;
    "lvm: no callout waits for a suspended device", NEEDS => suspended;
    "lvm: a device that a cut growth left larger than its volume is made good by whatever comes next", NEEDS
        => larger;
    "lvm: an lvextend killed at any ioctl is completed by the next growth", NEEDS => extended;
    "lvm: an lvextend killed while it commits stops no volume, also one that no pod has", NEEDS => committed;
    "lvm: an xfs whose growth was cut keeps 60 of 60 files, also when it is repaired", NEEDS
        => cut_xfs;
}

fn extend(volume: &PersistentVolume, to: u64) {
    let path = format!("{GROUP}/flexvol-{}", volume.id());
    lvm(&["lvextend", "-qq", "-y", "-L", &format!("{to}b"), &path]);
}

fn storage_first(points: &Points) {
    let node = Node::linear();
    for filesystem in ["xfs", "ext4", "btrfs"] {
        let volume = node.volume_of(filesystem, filesystem);
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        let content = fill(pod.dir(), "file");
        let size = size_of_filesystem(pod.dir());
        extend(&volume, GROWN);
        assert_eq!(size_of_filesystem(pod.dir()), size);
        node.expand(&volume, GROWN).success();
        assert!(
            size_of_filesystem(pod.dir()) >= size + 128 * MIB,
            "{filesystem}"
        );

        let size = size_of_filesystem(pod.dir());
        pod.unmount().success();
        extend(&volume, GROWN + 64 * MIB);
        pod.mount("rw").success();
        let grown = size_of_filesystem(pod.dir());
        assert!(
            grown >= size + 48 * MIB,
            "{filesystem}: {grown} after {size}"
        );
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
        pod.unmount().success();
        node.delete(&volume).success();
        points.add(2);
    }
}

/// At that moment the device is suspended, and the driver may have the only mount of it.
fn committed(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    pod.unmount().success();
    let _resumed = Resumed(mapping(&volume));
    let armed = node.sandbox.path("armed");
    let shown = armed.display();
    let _program = Wrapper::of(
        "lvm",
        &format!(
            "case \"$*\" in *lvextend*) if [ -e {shown} ]; then n=$(<{shown}); rm {shown}; exec strace -f -qq -o /dev/null \
             -e trace=io_submit -e inject=io_submit:signal=KILL:when=$n /usr/sbin/lvm \"$@\"; fi;; esac"
        ),
    );
    // With the present LVM it is the ninth write.
    let was_suspended = (8..=12).any(|nth: u64| {
        fs::write(&armed, nth.to_string()).unwrap();
        let to = GROWN + 4 * nth * MIB;
        node.expand(&volume, to);
        let was_suspended = is_suspended();
        in_time(&node, &pod.expand_arguments(to, SIZE));
        assert!(!is_suspended());
        points.add(1);
        was_suspended
    });
    assert!(was_suspended, "no lvextend was killed while it committed");
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    node.delete(&volume).success();
}

fn is_suspended() -> bool {
    let state = |device: std::path::PathBuf| fs::read_to_string(device.join("dm/suspended"));
    mappings()
        .into_iter()
        .any(|device| state(device).unwrap().trim() == "1")
}

/// Resumes the device on drop, because a suspended one would block the cleanup of the sandbox.
struct Resumed(String);

impl Drop for Resumed {
    fn drop(&mut self) {
        output("dmsetup", &["resume", &self.0]);
    }
}

fn suspended(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    let (dir, device) = (pod.dir().to_str().unwrap(), mapping(&volume));
    pod.mount("rw").success();
    let _resumed = Resumed(device.clone());
    let content = fill(pod.dir(), "file");
    // Dirty, so that unmounting has something to write.
    let dirty = |name: &str| fs::write(pod.dir().join(name), "not synced").unwrap();
    let suspend = || {
        run("dmsetup", &["suspend", "--nolockfs", &device]);
        assert!(is_suspended());
    };

    let other = flexvol_testing::Pod::new(&node.sandbox, &node.driver, &volume, "other");
    let json = volume.json("rw");
    let arguments = [
        pod.expand_arguments(GROWN, SIZE),
        pod.expand_arguments(GROWN, SIZE),
        vec![
            "expandvolume".to_owned(),
            json.clone(),
            dir.to_owned(),
            (GROWN + 64 * MIB).to_string(),
            GROWN.to_string(),
        ],
        other.mount_arguments("rw"),
        vec![
            "unmount".to_owned(),
            other.dir().to_str().unwrap().to_owned(),
        ],
        vec!["unmount".to_owned(), dir.to_owned()],
        pod.mount_arguments("rw"),
    ];
    for arguments in &arguments {
        if pod.dir().join("file").exists() {
            dirty("dirty");
        }
        suspend();
        in_time(&node, arguments);
        assert!(!is_suspended(), "{arguments:?}");
        points.add(1);
    }
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    assert!(size_of_filesystem(pod.dir()) > GROWN);

    // Verbs for inspection change nothing.
    suspend();
    let (config, executable) = (node.configuration(), crate::executable());
    for verb in [
        &["list"][..],
        &["show", "pv"],
        &["explain", "pv"],
        &["explain", dir],
    ] {
        let words = [
            &[HANGS, executable.to_str().unwrap()],
            verb,
            &["--config", &config],
        ]
        .concat();
        let said = output("timeout", &words);
        assert!(said.status.success(), "{said:?}");
        points.add(1);
    }
    assert!(is_suspended());
    in_time(&node, &["unmount", dir]);
    suspend();
    in_time(&node, &["delete", &json]);
    assert_eq!(mappings().len(), 0);
    assert!(!flexvol(&["list", "--config", &config]).contains("pv"));
}

/// Simulates a killed `lvextend` whose uncommitted table becomes active: the mark says that the volume grows, and its
/// device has the new size, in whole extents.
fn cut_after_load(volume: &PersistentVolume, asked: u64) {
    let (device, tags, name) = (mapping(volume), told(volume, "lv_tags"), path(volume));
    let mark = tags
        .split(',')
        .find(|tag| tag.starts_with("flexvol="))
        .unwrap();
    if mark.contains(":state=ready") {
        let growing = format!("{mark}:growing={asked}");
        lvm(&[
            "lvchange", "-qq", "--deltag", mark, "--addtag", &growing, &name,
        ]);
    }
    let table = run("dmsetup", &["table", &device]);
    let (_, rest) = table.split_once(' ').unwrap();
    let (_, rest) = rest.split_once(' ').unwrap();
    let extents = asked.div_ceil(4 * MIB);
    let larger = format!("0 {} {}", extents * 4 * MIB / 512, rest.trim());
    run("dmsetup", &["reload", &device, "--table", &larger]);
    run("dmsetup", &["resume", &device]);
    assert_eq!(device_size(volume), extents * 4 * MIB);
    assert!(told(volume, "lv_size").parse::<u64>().unwrap() < extents * 4 * MIB);
}

fn device_size(volume: &PersistentVolume) -> u64 {
    let path = format!("/dev/mapper/{}", mapping(volume));
    run("blockdev", &["--getsize64", &path])
        .trim()
        .parse()
        .unwrap()
}

fn larger(points: &Points) {
    let node = Node::thin(2 << 30);
    let expect_whole = |volume: &PersistentVolume, at_least: u64| {
        let has = device_size(volume);
        assert_eq!(told(volume, "lv_size"), has.to_string());
        assert!(has >= at_least, "{has} of {at_least}");
        points.add(1);
    };
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    // A multiple of an extent, and none.
    for (number, more) in [(1, 0), (2, 2 * MIB)] {
        let to = SIZE + number * 64 * MIB - more;
        cut_after_load(&volume, to);
        node.expand_volume(&volume, to).success();
        expect_whole(&volume, to);
        node.expand(&volume, to).success();
    }
    let to = SIZE + 3 * 64 * MIB - 2 * MIB;
    cut_after_load(&volume, to);
    node.expand(&volume, to).success();
    expect_whole(&volume, to);

    cut_after_load(&volume, to + 64 * MIB);
    pod.unmount().success();
    pod.mount("rw").success();
    expect_whole(&volume, to);
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();

    let blank = node.volume_of("blank", "ext4");
    lvm(&["lvchange", "-qq", "-ay", &path(&blank)]);
    cut_after_load(&blank, to);
    node.pod(&blank).mount("rw").success();
    expect_whole(&blank, SIZE);
    node.pod(&blank).unmount().success();

    // If the file system spans the whole device, the device is not shrunk, whatever the mark says.
    lvm(&["lvchange", "-qq", "-ay", &path(&volume)]);
    cut_after_load(&volume, to + 64 * MIB);
    let device = format!("/dev/mapper/{}", mapping(&volume));
    run("e2fsck", &["-fy", &device]);
    run("resize2fs", &[&device]);
    for refused in [pod.mount("rw"), node.expand_volume(&volume, to + 64 * MIB)] {
        let said = refused.failure();
        assert!(said.contains("restore its full size"), "{said}");
        points.add(1);
    }
}

/// A kill between suspend and resume leaves a volume that blocks. A kill before or after the metadata was committed
/// leaves the old or the new size.
fn extended(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    let path = format!("{GROUP}/flexvol-{}", volume.id());
    let log = node.sandbox.path("ioctls.log");
    let extend = |to: u64, inject: &str| {
        let bytes = format!("{to}b");
        let strace = [
            "-f",
            "-qq",
            "-o",
            log.to_str().unwrap(),
            "-e",
            "trace=ioctl",
        ];
        let extend = ["lvm", "lvextend", "-qq", "-y", "-L", &bytes, &path];
        output("strace", &[&strace[..], &["-e", inject], &extend].concat())
    };
    let mut size = SIZE + 4 * MIB;
    assert!(extend(size, "status=!none").status.success());
    let trace = fs::read_to_string(&log).unwrap();
    let all = trace.lines().filter(|line| line.contains("ioctl(")).count();
    let mut order: Vec<usize> = (1..=all).collect();
    Random::new(budget().seed).shuffle(&mut order);

    let (mut reached, mut left_suspended, started) = (0, 0, Instant::now());
    for nth in order {
        if !budget().allows(started) {
            break;
        }
        let to = size + 4 * MIB;
        let ended = extend(to, &format!("inject=ioctl:signal=KILL:when={nth}"));
        assert!(
            !ended.status.success(),
            "lvextend makes less than {nth} ioctls now"
        );
        left_suspended += u64::from(is_suspended());
        let before = told(&volume, "lv_size");
        in_time(&node, &pod.expand_arguments(to, size));
        let when = format!("killed at ioctl {nth}, lvm said {before}");
        assert!(!is_suspended(), "{when}");
        assert_eq!(told(&volume, "lv_size"), to.to_string(), "{when}");
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content, "{when}");
        (size, reached) = (to, reached + 1);
    }
    let what = format!("ioctls of lvextend killed, {left_suspended} left the volume suspended");
    points.report("lvm: lvextend", reached, all, &what);
    pod.unmount().success();
    run("xfs_repair", &["-n", &format!("/dev/{path}")]);
    lvm(&["vgck", GROUP]);
}

/// Offset of the size in a superblock: `sb_dblocks`, big-endian.
const BLOCKS: u64 = 8;

/// A power cut during growth: the primary superblock has the new size, others have the old one, and xfs_repair
/// believes the others.
fn cut_xfs(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    node.expand(&volume, GROWN).success();
    let mut written = Vec::new();
    for number in 0..60 {
        let content = fill(pod.dir(), &format!("file-{number}"));
        written.push(content);
    }
    pod.unmount().success();

    let path = format!("/dev/{GROUP}/flexvol-{}", volume.id());
    let device = File::options().read(true).write(true).open(&path).unwrap();
    let number = |at: u64| {
        let mut bytes = [0; 8];
        device.read_exact_at(&mut bytes, at).unwrap();
        u64::from_be_bytes(bytes)
    };
    let mut group = [0; 4];
    device.read_exact_at(&mut group, 84).unwrap();
    let group = u64::from(u32::from_be_bytes(group)) * 4096;
    let (whole, before) = (number(BLOCKS), SIZE / 4096);
    let secondaries: Vec<u64> = (1..)
        .map(|at| at * group)
        .take_while(|at| *at < SIZE)
        .collect();
    for at in &secondaries {
        device
            .write_all_at(&before.to_be_bytes(), at + BLOCKS)
            .unwrap();
    }
    device.sync_all().unwrap();
    // The mark of an unfinished growth.
    let mark = told(&volume, "lv_tags");
    let growing = format!("{mark}:growing={GROWN}");
    let lv = format!("{GROUP}/flexvol-{}", volume.id());
    lvm(&[
        "lvchange", "-qq", "--deltag", &mark, "--addtag", &growing, &lv,
    ]);

    pod.mount("rw").success();
    pod.unmount().success();
    run("blockdev", &["--flushbufs", &path]);
    for at in &secondaries {
        assert_eq!(number(at + BLOCKS), whole, "the superblock at {at}");
        points.add(1);
    }
    assert_eq!(told(&volume, "lv_tags"), mark);
    drop(device);
    run("xfs_repair", &[&path]);
    pod.mount("rw").success();
    for (number, content) in written.iter().enumerate() {
        let found = fs::read(pod.dir().join(format!("file-{number}"))).unwrap();
        assert!(found == *content, "file {number}");
    }
    pod.unmount().success();
    node.delete(&volume).success();
}
