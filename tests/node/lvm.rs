//! Logical volumes, on the disks of the virtual machine, which may be overwritten.

mod administrators;
mod copies;
mod crowded;
mod degraded;
mod documents;
mod guarded;
mod half_way;
mod impostors;
pub mod killed;
mod life;
mod lost;
mod managed;
mod old_data;
mod readable;
mod settings;
mod silent;
mod tenants;
mod thin;
mod torn;
mod unsynced;

use crate::node::{Backend, MIB, Node};
use flexvol_testing::{Call, Need, PersistentVolume, Pod, Test, disks};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub const NEEDS: &[Need] = &[
    Need::Root,
    Need::DeviceMapper,
    Need::Disks,
    Need::Tool("lvm", "lvm2"),
    Need::Tool("dmsetup", "dmsetup"),
    Need::Tool("strace", "strace"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

pub fn tests() -> Vec<&'static [Test]> {
    vec![
        life::TESTS,
        administrators::TESTS,
        copies::TESTS,
        crowded::TESTS,
        degraded::TESTS,
        documents::TESTS,
        guarded::TESTS,
        half_way::TESTS,
        impostors::TESTS,
        lost::TESTS,
        managed::TESTS,
        old_data::TESTS,
        readable::TESTS,
        settings::TESTS,
        silent::TESTS,
        tenants::TESTS,
        thin::TESTS,
        torn::TESTS,
        unsynced::TESTS,
    ]
}

/// Makes a thin pool `tp0` in the group.
pub fn thin_pool(size: &str) {
    make_thin_pool(&["-L", size, "-n", "tp0", GROUP]);
}

/// Makes a thin pool with these arguments of `lvcreate`.
pub fn make_thin_pool(words: &[&str]) {
    lvm(&[&["lvcreate", "-qq", "-y", "--type", "thin-pool"][..], words].concat());
}

/// Sectors of a disk without its first MiB, and the table of a linear device on them. With the first MiB, LVM would
/// find the same label on both.
pub fn linear_over(disk: &str) -> (u64, String) {
    let sectors = run("blockdev", &["--getsz", disk]);
    let sectors = sectors.trim().parse::<u64>().unwrap() - 2048;
    (sectors, format!("0 {sectors} linear {disk} 2048"))
}

/// Mounts the volume for a pod, checks the content of its file, and unmounts it.
#[track_caller]
pub fn mounts(pod: &Pod<'_>, content: &[u8]) {
    pod.mount("rw").success();
    assert!(fs::read(pod.dir().join("file")).unwrap() == content);
    pod.unmount().success();
}

/// Timeout in seconds after which a call counts as hanging, however slow the machine is.
pub const HANGS: &str = "600";

/// Runs a callout with that timeout, so that a hanging one fails the test and not the whole machine.
#[track_caller]
pub fn in_time<S: AsRef<OsStr>>(node: &Node, arguments: &[S]) -> Call {
    let through = ["/usr/bin/timeout", "-s", "KILL", HANGS];
    node.driver.call_through(&through, arguments).success()
}

/// Checks that a call was refused because one of the group's two disks is missing.
#[track_caller]
pub fn misses_a_disk(refused: &Call) {
    let why = refused.failure();
    assert!(why.contains("1 of 2 disks"), "{why}");
}

/// The smallest size on which every file system can be made and grown.
pub const SIZE: u64 = 320 * MIB;
pub const GROWN: u64 = 480 * MIB;

/// Programs that could grow or shrink a file system.
pub const GROWERS: &[&str] = &[
    "resize2fs",
    "e2fsck",
    "tune2fs",
    "xfs_growfs",
    "xfs_repair",
    "xfs_io",
    "btrfs",
    "fsadm",
];

pub const GROUP: &str = "vg0";

impl Node {
    /// A node with linear volumes.
    pub fn linear() -> Node {
        Node::new(Backend::Lvm)
    }

    /// A node with thin volumes in a pool of this size.
    pub fn thin(pool: u64) -> Node {
        group(GROUP, &disks()[..2]);
        thin_pool(&format!("{pool}b"));
        Node::on(Backend::ThinLvm, crate::sandbox(), false, "")
    }
}

pub fn group(name: &str, disks: &[PathBuf]) {
    let disks = disks.iter().map(|disk| disk.to_str().unwrap());
    let words: Vec<&str> = ["vgcreate", "-qq", "-y", name]
        .into_iter()
        .chain(disks)
        .collect();
    lvm(&words);
}

/// Runs a verb of the driver's executable, and returns its output.
#[track_caller]
pub fn flexvol(arguments: &[&str]) -> String {
    let path = crate::executable();
    run(path.to_str().unwrap(), arguments)
}

#[track_caller]
pub fn lvm(arguments: &[&str]) -> String {
    run("lvm", arguments)
}

#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).output().unwrap()
}

/// A disk that was detached from the virtual machine.
pub struct Detached(Vec<u8>);

const DISK_DRIVER: &str = "/sys/bus/virtio/drivers/virtio_blk";

pub fn detach(disk: &Path) -> Detached {
    let name = disk.file_name().unwrap().to_str().unwrap();
    let device = fs::canonicalize(format!("/sys/block/{name}/device")).unwrap();
    let device = device.file_name().unwrap().as_encoded_bytes().to_vec();
    fs::write(format!("{DISK_DRIVER}/unbind"), &device).unwrap();
    assert!(!disk.exists());
    Detached(device)
}

impl Detached {
    /// Attaches it, under another number if the old one is still open.
    pub fn attach(&self) {
        fs::write(format!("{DISK_DRIVER}/bind"), &self.0).unwrap();
    }
}

/// LVM's name of a volume.
pub fn path(volume: &PersistentVolume) -> String {
    format!("{GROUP}/flexvol-{}", volume.id())
}

/// A field of `lvs` for a volume.
#[track_caller]
pub fn told(volume: &PersistentVolume, field: &str) -> String {
    reported("lvs", field, &path(volume))
}

/// Fields of an LVM report for a volume, a group or a disk, with sizes in bytes.
#[track_caller]
pub fn reported(verb: &str, fields: &str, what: &str) -> String {
    let form = ["-qq", "--noheadings", "--nosuffix", "--units", "b", "-o"];
    lvm(&[&[verb][..], &form, &[fields, what]].concat())
        .trim()
        .to_owned()
}

/// The sizes of all volumes, by id.
pub fn sizes() -> BTreeMap<String, u64> {
    let listed = reported("lvs", "lv_name,lv_size", GROUP);
    let volumes = listed.lines().filter_map(|line| {
        let (name, size) = line.trim().strip_prefix("flexvol-")?.split_once(' ')?;
        Some((name.to_owned(), size.trim().parse().unwrap()))
    });
    volumes.collect()
}

/// Everything in LVM: volumes without their random names, devices, and promised names.
pub fn inventory() -> Vec<String> {
    let volumes = lvm(&[
        "lvs",
        "-a",
        "--noheadings",
        "-o",
        "lv_name,lv_size,lv_active",
        GROUP,
    ]);
    let mut lines: Vec<String> = volumes
        .lines()
        .map(|line| match line.split_once("flexvol-") {
            Some((before, after)) => format!("{before}flexvol-{}", &after[32..]),
            None => line.to_owned(),
        })
        .collect();
    for device in mappings() {
        let suspended = fs::read_to_string(device.join("dm/suspended")).unwrap();
        lines.push(format!("a device, suspended: {}", suspended.trim()));
    }
    for pool in fs::read_dir("/run/flexvol/names")
        .into_iter()
        .flatten()
        .flatten()
    {
        for name in fs::read_dir(pool.path()).unwrap().flatten() {
            lines.push(format!("promised: {}", name.file_name().display()));
        }
    }
    lines.sort();
    lines
}

/// Clears promised names as a reboot does. The names of volumes stay.
pub fn forget_promises() {
    fs::remove_dir_all("/run/flexvol/names").unwrap();
}

/// The device-mapper devices of volumes, in sysfs.
pub fn mappings() -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/block").unwrap().flatten();
    all.map(|entry| entry.path())
        .filter(|path| {
            let name = fs::read_to_string(path.join("dm/name"));
            name.is_ok_and(|name| name.contains("-flexvol--"))
        })
        .collect()
}

/// The device-mapper name of a volume's device.
pub fn mapping(volume: &PersistentVolume) -> String {
    format!("{GROUP}-flexvol--{}", volume.id())
}
