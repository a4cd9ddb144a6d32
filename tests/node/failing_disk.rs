//! A data disk that fails during callouts and recovers, simulated with device-mapper; and a volume's file system
//! that met an error.

use crate::{
    node::{Backend, Node, ext4_meets_error},
    story::stories,
};
use flexvol_testing::{Call, Need, Outcome, PersistentVolume, Pod, Points, Test, below};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

stories! {
    STORIES:
    "where a volume's ext4 takes no writes any more it is mounted for reading alone, until its pods end",
        [loop lvm] => aborted;
}

pub const TESTS: &[Test] = &[
    test(
        "callouts on a disk that answers nothing fail, and succeed when it is back",
        |points| failing("error", points),
    ),
    test(
        "callouts on a disk that fails every write fail, and succeed when it is back",
        |points| failing("flakey", points),
    ),
    Test {
        name: "an ext4 in which the kernel found errors is mounted with all its names, and does not grow",
        needs: &[Need::Root, Need::Tool("debugfs", "e2fsprogs")],
        run: damaged,
    },
    Test {
        name: "an ext4 with an error flag that nobody counted is mounted with all its names, and does not grow",
        needs: &[Need::Root, Need::Tool("debugfs", "e2fsprogs")],
        run: flagged,
    },
];

const fn test(name: &'static str, run: fn(&Points)) -> Test {
    Test {
        name,
        needs: &[
            Need::Root,
            Need::DeviceMapper,
            Need::Disks,
            Need::Tool("dmsetup", "dmsetup"),
            Need::Tool("mkfs.ext4", "e2fsprogs"),
            Need::Tool("mkfs.xfs", "xfsprogs"),
        ],
        run,
    }
}

const SIZE: u64 = 300 << 20;
const GROWN: u64 = 332 << 20;
const TEXT: &str = "written before the disk failed";

/// The machine's first disk with a pool on it, through device-mapper.
struct Disk {
    name: String,
    sectors: u64,
}

impl Disk {
    fn new() -> Self {
        let disk = &flexvol_testing::disks()[0];
        let size = run(Command::new("blockdev").arg("--getsz").arg(disk));
        let disk = Disk {
            name: "failing".to_owned(),
            sectors: size.trim().parse().unwrap(),
        };
        let table = disk.table("linear");
        run(Command::new("dmsetup").args(["create", &disk.name, "--table", &table]));
        disk
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }

    fn table(&self, target: &str) -> String {
        let Disk { sectors, .. } = self;
        let below = flexvol_testing::disks()[0].display().to_string();
        match target {
            "error" => format!("0 {sectors} error"),
            // Zero seconds up, and only writes fail.
            "flakey" => format!("0 {sectors} flakey {below} 0 0 3600 1 error_writes"),
            _ => format!("0 {sectors} linear {below} 0"),
        }
    }

    fn becomes(&self, target: &str) {
        let table = self.table(target);
        // A flush would wait for the failing disk.
        run(Command::new("dmsetup").args(["suspend", "--noflush", "--nolockfs", &self.name]));
        run(Command::new("dmsetup").args(["reload", &self.name, "--table", &table]));
        run(Command::new("dmsetup").args(["resume", &self.name]));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup")
            .args(["remove", &self.name])
            .status();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The callouts that are made while the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callout {
    Provision,
    MountNew,
    Mount,
    Expand,
    Unmount,
    Delete,
}

const CALLOUTS: &[Callout] = &[
    Callout::Provision,
    Callout::MountNew,
    Callout::Mount,
    Callout::Expand,
    Callout::Unmount,
    Callout::Delete,
];

fn failing(how: &str, points: &Points) {
    let disk = Disk::new();
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m0"])
        .arg(disk.path()));
    let mut node = Node::new(Backend::Loop);
    node.sandbox.change_disk(&disk.path());
    node.sandbox.make_pool(&node.sandbox.pool());
    for callout in CALLOUTS {
        under(*callout, how, &disk, &mut node);
        points.add(1);
    }
    let own = node.sandbox.path("pool.img");
    node.sandbox.change_disk(&own);
}

fn under(callout: Callout, how: &str, disk: &Disk, node: &mut Node) {
    let volume = match callout {
        Callout::Provision => None,
        Callout::MountNew => Some(provision(node)),
        _ => {
            let volume = provision(node);
            let pod = node.pod(&volume);
            pod.mount("rw").success();
            let file = pod.dir().join("file");
            fs::write(&file, TEXT).unwrap();
            File::open(&file).unwrap().sync_all().unwrap();
            if matches!(callout, Callout::Mount | Callout::Delete) {
                pod.unmount().success();
            }
            Some(volume)
        }
    };
    run(&mut Command::new("sync"));
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    disk.becomes(how);
    let call = call(callout, node, volume.as_ref());
    match call.outcome() {
        // Unmounting works, and a clean file system is mounted without a write.
        Outcome::Success => {
            let may = match callout {
                Callout::Unmount => true,
                Callout::Mount => how == "flakey",
                _ => false,
            };
            assert!(may, "{how}, {callout:?}: {call}");
        }
        _ => drop(call.failure()),
    }
    // The node's mounts are removed, and its disk recovers.
    disk.becomes("linear");
    if let Some(volume) = &volume {
        // It may report lost writes, but must unmount.
        let ended = node.pod(volume).unmount();
        assert_eq!(below(&node.sandbox.kubelet_root()), [], "{how}: {ended}");
    }
    let path = disk.path();
    node.sandbox.change_disk(&path);
    match callout {
        Callout::Provision => drop(node.delete(&provision(node)).success()),
        Callout::Delete => drop(node.delete(volume.as_ref().unwrap()).success()),
        _ => {
            let volume = volume.unwrap();
            let pod = node.pod(&volume);
            pod.mount("rw").success();
            if callout != Callout::MountNew {
                assert_eq!(fs::read_to_string(pod.dir().join("file")).unwrap(), TEXT);
            }
            if callout == Callout::Expand {
                let again = node.driver.call(&pod.expand_arguments(GROWN, SIZE));
                again.success();
            }
            pod.unmount().success();
            node.delete(&volume).success();
        }
    }
}

fn provision(node: &Node) -> PersistentVolume {
    PersistentVolume::provision(&node.driver, "pv", "xfs", SIZE)
}

fn call(callout: Callout, node: &Node, volume: Option<&PersistentVolume>) -> Call {
    let request = flexvol_testing::request("pv", SIZE);
    let Some(volume) = volume else {
        return node.driver.call(&["provision", &request]);
    };
    let pod = node.pod(volume);
    match callout {
        Callout::Provision | Callout::MountNew | Callout::Mount => pod.mount("rw"),
        Callout::Expand => node.driver.call(&pod.expand_arguments(GROWN, SIZE)),
        Callout::Unmount => pod.unmount(),
        Callout::Delete => node.delete(volume),
    }
}

/// Unmounts. Lost writes may be reported once.
fn unmount(pod: &Pod<'_>) {
    if pod.unmount().outcome() != Outcome::Success {
        pod.unmount().success();
    }
}

fn aborted(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.with_file("ext4");
    let [one, two] = [node.pod(&volume), node.pod_of(&volume, "two")];
    ext4_meets_error(one.dir());
    for pod in [&one, &two] {
        let refused = pod.mount("rw").failure();
        assert!(refused.contains("takes no writes"), "{refused}");
        points.add(1);
    }
    two.mount("ro").success();
    for pod in [&two, &one] {
        unmount(pod);
    }
    points.add(1);
    one.mount("rw").success();
    node.holds_the_file(&volume);
    fs::write(one.dir().join("later"), "written").unwrap();
    one.unmount().success();
    node.delete(&volume).success();
}

/// An inode that the disk returned as zeros. `e2fsck -p` would remove its name and clear the kernel's error flag.
fn damaged(points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = with_damage(&node);
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    assert!(fs::metadata(pod.dir().join("damaged")).is_err());
    node.expand(&volume, GROWN).failure();
    unmount(&pod);
    keeps_its_names(&node, &volume, points);
}

/// The flag that `e2fsck -p` leaves when it gives up, as does `tune2fs`. An interrupted `resize2fs` leaves it too.
fn flagged(points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = with_damage(&node);
    let mut flags = Command::new("tune2fs");
    run(flags.args(["-E", "force_fsck"]).arg(node.blocks(&volume)));
    node.expand_volume(&volume, GROWN).success();
    keeps_its_names(&node, &volume, points);
}

fn with_damage(node: &Node) -> PersistentVolume {
    let volume = node.with_file("ext4");
    let pod = node.pod(&volume);
    fs::write(pod.dir().join("damaged"), TEXT).unwrap();
    pod.unmount().success();
    let mut clears = Command::new("debugfs");
    clears.args(["-w", "-R", "clri damaged"]);
    run(clears.arg(node.blocks(&volume)));
    volume
}

fn keeps_its_names(node: &Node, volume: &PersistentVolume, points: &Points) {
    let pod = node.pod(volume);
    for _ in 0..2 {
        let refused = node.expand(volume, GROWN);
        let message = refused.failure();
        assert!(message.contains("found errors in it; stop"), "{message}");
        pod.mount("rw").success();
        let names = fs::read_dir(pod.dir()).unwrap();
        let names: BTreeSet<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.contains(OsStr::new("damaged")), "{names:?}");
        node.holds_the_file(volume);
        unmount(&pod);
        points.add(1);
    }
    let told = run(Command::new("dumpe2fs").arg("-h").arg(node.blocks(volume)));
    assert!(told.contains("clean with errors"), "{told}");
    node.delete(volume).success();
}
