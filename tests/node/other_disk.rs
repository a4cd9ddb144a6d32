//! A missing data disk, where below its mount point there is another pool, which was made before the disk was mounted.

pub mod above;

use crate::sandbox;
use flexvol_testing::{Driver, Need, PersistentVolume, Pod, Points, Sandbox, request, tests};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

tests! {
    "a pool below the mount point of a missing disk is not taken for the pool", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => below;
    "a node remembers its pool from the first use on, and does without where it cannot", &[Need::Root]
        => first_use;
}

const SIZE: u64 = 64 << 20;
/// Where a node remembers its pools: the first one counts.
const MEMORIES: [&str; 2] = ["/etc/flexvol/directories", "/var/lib/flexvol/directories"];

/// The mount point of the data disk. The node's own disk is below.
struct MountPoint(PathBuf);

impl MountPoint {
    fn of(sandbox: &Sandbox) -> MountPoint {
        let path = sandbox.path("data");
        fs::create_dir_all(&path).unwrap();
        MountPoint(path)
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    /// Mounts the sandbox's disk, with its pool.
    fn insert(&self, sandbox: &Sandbox) {
        let none = None::<&str>;
        mount(Some(&sandbox.disk()), &self.0, none, MsFlags::MS_BIND, none).unwrap();
    }

    fn remove(&self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn flexvol(words: &[&str], path: &Path) -> Output {
    let mut command = Command::new(crate::executable());
    command.args(words).arg(path).output().unwrap()
}

fn installed(sandbox: &Sandbox, pool: &Path) -> Driver {
    let text = format!(
        "backend = \"loop\"\n[pools.default]\npath = {pool:?}\nreserve = \"1%\"\nfilesystem = \"ext4\"\n"
    );
    sandbox.install_with("example.com/disk", &text)
}

fn below(points: &Points) {
    let sandbox = sandbox();
    let disk = MountPoint::of(&sandbox);
    sandbox.make_pool(&disk.pool());
    disk.insert(&sandbox);
    sandbox.make_pool(&disk.pool());
    let driver = installed(&sandbox, &disk.pool());
    let volume = PersistentVolume::provision(&driver, "pv", "ext4", SIZE);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "precious").unwrap();
    disk.remove();
    let by_handle = format!(r#"{{"handle":"{}"}}"#, volume.handle());
    for call in [
        vec!["delete", &volume.json("rw")],
        vec!["delete", &by_handle],
        vec!["provision", &request("other", SIZE)],
        vec!["capacity", "{}"],
    ] {
        let reply = driver.call(&call);
        let told = reply.failure();
        // The claim is fine; another node may serve it.
        assert_eq!(reply.text("errorClass"), "retryable", "{call:?}");
        for part in [
            "another one than the node had at its path",
            "is the disk of the pool mounted",
            "--replace",
        ] {
            assert!(told.contains(part), "{call:?}: {told}");
        }
        points.add(1);
    }
    assert_eq!(
        fs::read_dir(disk.pool().join("volumes")).unwrap().count(),
        0
    );
    // `pool init` does not make it the expected pool.
    let refused = flexvol(&["pool", "init"], &disk.pool());
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success(), "{why}");
    for part in [
        "the node's pool at this path has the id",
        "--replace` forgets it",
    ] {
        assert!(why.contains(part), "{why}");
    }
    driver.call(&["capacity", "{}"]).failure();
    let told = doctor(&sandbox);
    for part in [
        "another one than the node had",
        "mount the disk that has the pool",
    ] {
        assert!(told.contains(part), "{told}");
    }
    // Pods can still end.
    pod.unmount().success();
    points.add(3);

    disk.insert(&sandbox);
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"precious");
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(1);

    // An administrator who really replaces the pool says so. A pool in memory is not remembered.
    disk.remove();
    for pool in ["in memory", "on the disk"] {
        let replaced = flexvol(&["pool", "init", "--replace"], &disk.pool());
        assert!(replaced.status.success(), "{pool}: {replaced:?}");
        driver.call(&["capacity", "{}"]).success();
        disk.insert(&sandbox);
        driver.call(&["capacity", "{}"]).success();
        points.add(1);
    }
}

fn doctor(sandbox: &Sandbox) -> String {
    let output = Command::new(crate::executable())
        .args(["doctor", "--plugin-dir"])
        .arg(sandbox.plugins())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn first_use(points: &Points) {
    let sandbox = sandbox();
    let disk = MountPoint::of(&sandbox);
    sandbox.make_pool(&disk.pool());
    disk.insert(&sandbox);
    let driver = installed(&sandbox, &disk.pool());
    let name = disk.pool().to_string_lossy().replace('/', "%2f");
    let [record, older] = MEMORIES.map(|memory| Path::new(memory).join(&name));
    let id = |pool: &Path| {
        let text = fs::read_to_string(pool.join(".flexvol-pool")).unwrap();
        text.split_whitespace().nth(2).unwrap().to_owned()
    };
    // The test's records are in memory, and say more than the id.
    let recorded = |record: &Path| {
        let text = fs::read_to_string(record).unwrap();
        text.split_whitespace().next().unwrap().to_owned()
    };
    let capacity = || driver.call(&["capacity", "{}"]);

    // As before the node remembered any pools.
    sandbox.forget_pools();
    let read_only = "mount -t tmpfs -o ro none /var/lib; mount -t tmpfs -o ro none /etc";
    driver.call_where(read_only, &["capacity", "{}"]).success();
    assert!(!record.exists() && !older.exists());
    for _ in 0..2 {
        capacity().success();
        for record in [&record, &older] {
            assert_eq!(recorded(record), id(&disk.pool()));
        }
        points.add(1);
        // As before there were records in /etc.
        let _ = fs::remove_file(&record);
    }
    capacity().success();

    // An unchanged record is not written again.
    for memory in MEMORIES {
        let written = || fs::metadata(memory).unwrap().modified().unwrap();
        let before = written();
        capacity().success();
        assert_eq!(written(), before);
    }
    points.add(1);

    // A damaged record is no reason to trust the pool.
    fs::write(&record, "").unwrap();
    let told = capacity().failure();
    assert!(
        told.contains("is damaged") && told.contains("--replace"),
        "{told}"
    );
    let told = flexvol(&["pool", "init", "--replace"], &disk.pool());
    assert!(told.status.success(), "{told:?}");
    capacity().success();
    points.add(2);
}
