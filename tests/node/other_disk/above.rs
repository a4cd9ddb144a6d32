//! A data disk that is mounted above the pool and one of the node's records of it.

use super::{SIZE, installed};
use crate::{sandbox, silent_disk::Disk};
use flexvol_testing::{Driver, Need, Points, Sandbox, request, tests};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

tests! {
    "a pool is remembered while a disk is missing that was mounted above the pool and its record", &[Need::Root]
        => above;
    "where /etc is in memory the pool of a disk that comes late is not refused, and the one below it is once it was there", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => late;
    "doctor names records of a pool that contradict each other, and pool init has them agree", &[Need::Root]
        => contradicting;
    "the record of a pool that is cut leaves nothing that is done again", &[Need::Root, Need::Tool("strace", "strace")]
        => cut;
}

const ANOTHER: &str = "another one than the node had";
const OTHER_ID: &str = "the node's pool at this path has the id";

/// A node whose data disk is mounted on /var/lib/flexvol, where the node remembers its pools, too.
struct DiskAbove {
    /// The node's /etc/flexvol, its /var/lib, and the disk.
    parts: [PathBuf; 3],
    driver: Driver,
}

impl DiskAbove {
    const POOL: &'static str = "/var/lib/flexvol/pools/default";
    const INIT: [&'static str; 3] = ["pool", "init", DiskAbove::POOL];
    const REPLACE: [&'static str; 4] = ["pool", "init", DiskAbove::POOL, "--replace"];

    /// All parts are on the sandbox's disk.
    fn new(sandbox: &Sandbox) -> DiskAbove {
        DiskAbove::of(
            sandbox,
            ["etc", "root", "data"].map(|part| sandbox.disk().join(part)),
        )
    }

    fn of(sandbox: &Sandbox, parts: [PathBuf; 3]) -> DiskAbove {
        let [etc, root, data] = &parts;
        for part in [etc, &root.join("flexvol"), data] {
            fs::create_dir_all(part).unwrap();
        }
        let driver = installed(sandbox, Path::new(DiskAbove::POOL));
        DiskAbove { parts, driver }
    }

    /// The records of the pool, in each of the parts.
    fn records(&self) -> [PathBuf; 3] {
        let [etc, root, data] = &self.parts;
        let name = DiskAbove::POOL.replace('/', "%2f");
        [etc, &root.join("flexvol"), data].map(|part| part.join("directories").join(&name))
    }

    fn doctor(&self, sandbox: &Sandbox, has_disk: bool, before: &str) -> String {
        let plugins = sandbox.plugins();
        let doctor = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
        self.run(has_disk, before, &doctor).1
    }

    /// Runs the driver on that node, after the commands in `before`.
    fn run(&self, has_disk: bool, before: &str, arguments: &[&str]) -> (bool, String) {
        let [etc, root, data] = &self.parts;
        let bind = |part: &Path, on: &str| format!("mount --bind {} {on}\n", part.display());
        let mut script = bind(etc, "/etc/flexvol") + &bind(root, "/var/lib");
        if has_disk {
            script += &bind(data, "/var/lib/flexvol");
        }
        script += &format!("{before}\nexec \"$0\" \"$@\"");
        let output = Command::new("unshare")
            .args(["-m", "sh", "-ec", &script])
            .arg(self.driver.executable())
            .args(arguments)
            .output()
            .unwrap();
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), told)
    }

    fn accept(&self, has_disk: bool, arguments: &[&str]) {
        let (succeeds, told) = self.run(has_disk, "", arguments);
        assert!(succeeds, "{arguments:?}: {told}");
    }

    fn refuse(&self, has_disk: bool, arguments: &[&str], why: &str) {
        let (succeeds, told) = self.run(has_disk, "", arguments);
        assert!(!succeeds && told.contains(why), "{arguments:?}: {told}");
    }
}

fn above(points: &Points) {
    let sandbox = sandbox();
    let node = DiskAbove::new(&sandbox);
    let [init, replace] = [&DiskAbove::INIT[..], &DiskAbove::REPLACE];
    let capacity = ["capacity", "{}"];
    let (pv, other) = (request("pv", SIZE), request("other", SIZE));
    // The pool was on the node's own disk first.
    node.accept(false, init);
    node.refuse(true, init, OTHER_ID);
    node.accept(true, replace);
    node.accept(true, &["provision", &pv]);
    points.add(4);
    node.refuse(false, init, OTHER_ID);
    node.refuse(false, &["provision", &other], ANOTHER);
    node.refuse(false, &["delete", &pv], ANOTHER);
    node.refuse(false, &capacity, ANOTHER);
    points.add(4);

    // A record of before there were any in /etc gets there at the next use, where that can be written.
    let [record, ..] = node.records();
    fs::remove_file(&record).unwrap();
    let read_only = "mount -o remount,bind,ro /etc/flexvol";
    let (succeeds, told) = node.run(true, read_only, &capacity);
    assert!(succeeds && !record.exists(), "{told}");
    let told = node.doctor(&sandbox, true, read_only);
    assert!(told.contains("on the pool's own disk only"), "{told}");
    node.accept(true, &capacity);
    assert!(record.exists());
    node.refuse(false, &capacity, ANOTHER);
    points.add(4);
}

/// A boot makes /etc anew, and the disk with the pool and its only record is late.
fn late(points: &Points) {
    let sandbox = sandbox();
    let (image, disk) = (sandbox.path("late.img"), sandbox.path("late"));
    let disk = Disk::new(&image, disk);
    let memory = sandbox.path("memory");
    fs::create_dir(&memory).unwrap();
    let (none, tmpfs) = (None::<&str>, Some("tmpfs"));
    mount(tmpfs, &memory, tmpfs, MsFlags::empty(), none).unwrap();
    let data = disk.0.join("data");
    let node = DiskAbove::of(
        &sandbox,
        [memory.clone(), sandbox.disk().join("root"), data],
    );
    let [in_memory, below, on_disk] = node.records();
    let boot = || fs::remove_dir_all(in_memory.parent().unwrap()).unwrap();
    let (capacity, list) = (["capacity", "{}"], ["list"]);
    let pv = request("pv", SIZE);
    node.accept(true, &DiskAbove::INIT);
    node.accept(true, &["provision", &pv]);
    for first in [&capacity[..], &list, &DiskAbove::INIT] {
        boot();
        // Nothing on the node knows better. A container makes the pool of the chart.
        node.accept(false, &DiskAbove::INIT);
        node.accept(false, &capacity);
        node.accept(true, first);
        let (_, told) = node.run(true, "", &list);
        assert!(told.contains("pv "), "{told}");
        // Now it is known that a disk was there.
        node.refuse(false, &["delete", &pv], ANOTHER);
        node.refuse(false, &DiskAbove::INIT, OTHER_ID);
        let told = node.doctor(&sandbox, false, "");
        assert!(told.contains("contradict each other"), "{told}");
        node.accept(true, &capacity);
        points.add(1);
    }
    let told = node.doctor(&sandbox, true, "");
    assert!(told.contains("on the pool's own disk only"), "{told}");
    boot();
    // A record that survives is right, although the one in memory agrees with what is there.
    node.accept(false, &capacity);
    fs::copy(&on_disk, &below).unwrap();
    node.refuse(false, &capacity, ANOTHER);
    points.add(2);
    umount2(&memory, MntFlags::MNT_DETACH).unwrap();
}

fn contradicting(points: &Points) {
    let sandbox = sandbox();
    let node = DiskAbove::new(&sandbox);
    let capacity = ["capacity", "{}"];
    node.accept(false, &DiskAbove::INIT);
    let [etc, root, _] = node.records();
    let contradicts = || {
        let told = node.doctor(&sandbox, false, "");
        let contradicts = told.contains("contradict each other");
        assert_eq!(
            contradicts,
            told.contains("/var/lib/flexvol/directories/"),
            "{told}"
        );
        contradicts
    };
    assert!(!contradicts());
    let other = format!("{}\n", "0".repeat(32));
    fs::write(root, &other).unwrap();
    // What counts is right.
    node.accept(false, &capacity);
    assert!(contradicts());
    node.accept(false, &DiskAbove::INIT);
    assert!(!contradicts());
    points.add(2);
    fs::write(etc, &other).unwrap();
    node.refuse(false, &capacity, ANOTHER);
    assert!(contradicts());
    node.accept(false, &DiskAbove::REPLACE);
    assert!(!contradicts());
    points.add(2);
}

/// Cut at each call that makes a record, and done again.
fn cut(points: &Points) {
    let sandbox = sandbox();
    let node = DiskAbove::new(&sandbox);
    let [etc, root, _] = node.records();
    let records = [etc, root];
    let memories = records.each_ref().map(|record| record.parent().unwrap());
    let init = DiskAbove::REPLACE;
    let capacity = ["capacity", "{}"];
    for (call, is_first) in [(&init[..], true), (&capacity[..], true), (&init[..], false)] {
        let mut is_cut = true;
        for nth in 1..64 {
            node.accept(false, &init);
            for (record, memory) in records.iter().zip(memories) {
                if is_first {
                    fs::remove_dir_all(memory).unwrap();
                } else {
                    fs::write(record, format!("{}\n", "0".repeat(32))).unwrap();
                }
            }
            let calls = "openat,write,fsync,link,linkat,rename,unlink,unlinkat,mkdir";
            let strace = format!(
                "exec strace -f -qq -o /dev/null -e trace={calls} -e inject={calls}:signal=SIGKILL:when={nth} \"$0\" \"$@\""
            );
            is_cut = !node.run(false, &strace, call).0;
            node.accept(false, call);
            for memory in memories {
                assert_eq!(begun(memory), 0, "{call:?}, call {nth}");
            }
            points.add(1);
            if !is_cut {
                break;
            }
        }
        assert!(!is_cut, "{call:?} never ends");
    }
}

/// How many records are there that are not complete.
fn begun(memory: &Path) -> usize {
    let begun = |it: &fs::DirEntry| it.file_name().to_string_lossy().starts_with(':');
    let all = fs::read_dir(memory).unwrap().flatten();
    all.filter(begun).count()
}
