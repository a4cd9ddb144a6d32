//! Actions of others on the node, and of pods in their volumes, that must not affect the driver.

use crate::{
    node::{MIB, vendor},
    sandbox,
};
use flexvol_host::mount::{Target, bind, unbind};
use flexvol_testing::{Baseline, Call, Driver, Need, PersistentVolume, Pod, Points, below, tests};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::Mode,
    unistd::mkfifo,
};
use std::{
    fs::{self, File},
    io::Read,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

pub const BTRFS: &[Need] = &[
    Need::Root,
    Need::Filesystem("btrfs"),
    Need::Tool("btrfs", "btrfs-progs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
    Need::Tool("findmnt", "util-linux"),
    Need::Tool("losetup", "mount"),
];

tests! {
    "what others mount under names that are no text stops nobody", &[Need::Root, Need::Filesystem("fuse"), Need::Tool("unshare", "util-linux"), Need::Tool("mount", "mount"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => no_text;
    "a directory that is called as another volume keeps nobody from deleting that", &[Need::Root]
        => namesake;
    "a btrfs that a pod gave a device is unmounted, and mounted when it is taken out", BTRFS
        => given_a_device;
    "a btrfs that a pod moved off its volume keeps that from being deleted, and is unmounted", BTRFS
        => moved_away;
    "a FIFO that a pod mounts by subPath stops no look at the pool", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => fifo;
}

/// Mounts a FUSE without a server on `$0`, and a tmpfs on that, with types and sources that are not
/// valid text.
fn strange(place: &Path) -> String {
    let place = place.display();
    format!(
        "exec 9<>/dev/fuse && \
         mount -i -t \"$(printf 'fuse.\\377\\376')\" -o fd=9,rootmode=40000,user_id=0,group_id=0 \"$(printf 'a\\375b')\" {place} && \
         mount -i -t tmpfs \"$(printf '\\374 x')\" {place}"
    )
}

/// A process in a user namespace of its own, as every user can have one, with those mounts.
struct Stranger(Child);

impl Stranger {
    fn new(place: &Path) -> Self {
        let script = format!("{} && echo && exec cat", strange(place));
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = child.stdout.as_mut().unwrap().read_exact(&mut [0]);
        told.expect("mounts of a user namespace");
        Stranger(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn no_text(points: &Points) {
    let sandbox = sandbox();
    let place = sandbox.path("strange");
    fs::create_dir(&place).unwrap();
    let baseline = Baseline::of(&sandbox);
    let directories = vendor(&sandbox, "hello-directory");
    let loops = sandbox.install_with(
        "flexvol.test/offline",
        &format!(
            "backend = \"loop\"\ngrowth = \"offline\"\n[pools.default]\npath = {:?}\nreserve = \"0%\"\n",
            sandbox.pool()
        ),
    );
    let changed = strange(&place);
    for of_ours in [false, true] {
        let _stranger = (!of_ours).then(|| Stranger::new(&place));
        let call = |driver: &Driver, arguments: &[&str]| match of_ours {
            true => driver.call_where(&changed, arguments).success(),
            false => driver.call(arguments).success(),
        };
        for (driver, filesystem) in [(&directories, ""), (&loops, "xfs")] {
            let volume = PersistentVolume::provision(driver, "pv", filesystem, 300 * MIB);
            let pod = Pod::new(&sandbox, driver, &volume, "one");
            let arguments = pod.mount_arguments("rw");
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            call(driver, &words);
            // The mount of a call in a namespace of its own is not visible here.
            if !of_ours {
                pod.unmount().success();
            }
            let grow = pod.expand_arguments(320 * MIB, 300 * MIB);
            let words: Vec<&str> = grow.iter().map(String::as_str).collect();
            if filesystem == "xfs" {
                call(driver, &words);
            }
            pod.mount("rw").success();
            let dir = pod.dir().to_str().unwrap();
            call(driver, &["unmount", dir]);
            if of_ours {
                pod.unmount().success();
            }
            let _ = fs::remove_dir(pod.dir());
            call(driver, &["delete", &volume.json("rw")]);
            points.add(1);
        }
    }
    fs::remove_dir(&place).unwrap();
    fs::create_dir(&place).unwrap();
    baseline.expect(&sandbox, "strangers came and went");
}

fn namesake(points: &Points) {
    let sandbox = sandbox();
    let driver = vendor(&sandbox, "hello-directory");
    let made = |name| PersistentVolume::provision(&driver, name, "", 64 * MIB);
    let delete = |volume: &PersistentVolume| driver.call(&["delete", &volume.json("rw")]);
    let ours = made("ours");
    let shown = sandbox.path("sub-path");
    fs::create_dir(&shown).unwrap();
    let target = Target::open(&shown).unwrap().unwrap();
    for (above, before, below) in [
        ("", "", ""),
        ("", "", "below"),
        ("volumes", "", ""),
        ("volumes", ".gone-", ""),
    ] {
        let theirs = made("theirs");
        let name = format!("{before}{}", theirs.id());
        let inside = ours.root(&sandbox).join(above).join(name).join(below);
        fs::create_dir_all(&inside).unwrap();
        bind(File::open(&inside).unwrap().as_fd(), &target, false).unwrap();
        // The volume that the mount shows is in use, and no other.
        assert!(delete(&ours).failure().contains("still mounted"));
        delete(&theirs).success();
        assert!(!theirs.image(&sandbox).exists());
        assert!(unbind(&shown).unwrap());
        points.add(1);
    }
    delete(&ours).success();
}

/// A foreign loop device. Detached on drop.
pub struct Attached(PathBuf);

impl Attached {
    pub fn new(image: &Path) -> Self {
        let device = run("losetup", &["--show", "-f", image.to_str().unwrap()]);
        Attached(device.trim().into())
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        run("losetup", &["-d", self.path()]);
    }
}

#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn given_a_device(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/given", false, "reserve = \"0%\"");
    let file = sandbox.path("other-disk");
    File::create(&file).unwrap().set_len(300 * MIB).unwrap();
    let other = Attached::new(&file);
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "btrfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let dir = pod.dir().to_str().unwrap().to_owned();
    fs::write(pod.dir().join("file"), "text").unwrap();
    run("btrfs", &["device", "add", "-f", other.path(), &dir]);

    let says_how = |call: Call| {
        let message = call.failure();
        assert!(message.contains("btrfs device remove"), "{message}");
        assert!(!message.contains("backup"), "{message}");
    };
    // Also while it is mounted: the file system is not measured with a foreign device.
    says_how(driver.call(&pod.expand_arguments(400 * MIB, 300 * MIB)));
    pod.unmount().success();
    says_how(pod.mount("rw"));
    points.add(3);

    // The instructions of the message.
    let image = Attached::new(&volume.image(&sandbox));
    let place = sandbox.path("by-hand");
    fs::create_dir(&place).unwrap();
    let by_hand = place.to_str().unwrap();
    let both = format!("device={}", other.path());
    run(
        "mount",
        &["-t", "btrfs", "-o", &both, image.path(), by_hand],
    );
    run("btrfs", &["device", "remove", other.path(), by_hand]);
    run("umount", &[by_hand]);
    fs::remove_dir(&place).unwrap();
    drop(image);
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"text");
    driver
        .call(&pod.expand_arguments(400 * MIB, 300 * MIB))
        .success();

    // It can also be deleted without that.
    run("btrfs", &["device", "add", "-f", other.path(), &dir]);
    let used = driver.call(&["delete", &volume.json("rw")]).failure();
    assert!(used.contains("still mounted"), "{used}");
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    baseline.expect(&sandbox, "the volume was deleted");
    points.add(2);
}

fn moved_away(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/moved", false, "reserve = \"0%\"");
    let file = sandbox.path("other-disk");
    File::create(&file).unwrap().set_len(300 * MIB).unwrap();
    let other = Attached::new(&file);
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "btrfs", 300 * MIB);
    // Another volume, which must not be affected.
    let beside = PersistentVolume::provision(&driver, "beside", "btrfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let dir = pod.dir().to_str().unwrap();
    fs::write(pod.dir().join("file"), "text").unwrap();
    run("btrfs", &["device", "add", "-f", other.path(), dir]);
    run("btrfs", &["device", "remove", "1", dir]);
    let shown = run("findmnt", &["-no", "SOURCE", dir]);
    assert_eq!(shown.trim(), other.path());

    let refused = driver.call(&["delete", &volume.json("rw")]).failure();
    assert!(refused.contains("still mounted"), "{refused}");
    assert!(volume.image(&sandbox).exists());
    driver.call(&["delete", &beside.json("rw")]).success();
    points.add(2);
    // Also if a process keeps it busy by then.
    let file = File::open(pod.dir().join("file")).unwrap();
    assert!(pod.unmount().failure().contains("still uses it"));
    drop(file);
    pod.unmount().success();
    pod.unmount().success();
    assert_eq!(below(&sandbox.kubelet_root()), []);
    // The data is where the pod moved it.
    let lost = pod.mount("rw").failure();
    assert!(lost.contains("restore it from a backup"), "{lost}");
    driver.call(&["delete", &volume.json("rw")]).success();
    baseline.expect(&sandbox, "the volume was deleted");
    points.add(3);
}

fn fifo(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/fifo", false, "reserve = \"0%\"");
    let volume = PersistentVolume::provision(&driver, "data", "ext4", 64 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let (fifo, place) = (pod.dir().join("fifo"), sandbox.path("subpath"));
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    fs::write(&place, "").unwrap();
    mount(
        Some(&fifo),
        &place,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .unwrap();
    for arguments in [&["list", "-o", "json"][..], &["show", volume.handle()]] {
        let looked = Command::new("timeout")
            .arg("20")
            .arg(driver.executable())
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(looked.stdout).unwrap();
        assert!(
            looked.status.success() && text.contains("ext4"),
            "{arguments:?}: {text}"
        );
        points.add(1);
    }
    umount2(&place, MntFlags::empty()).unwrap();
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
}
