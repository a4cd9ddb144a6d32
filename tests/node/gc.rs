//! Garbage: what killed processes leave behind, and what only looks like it.

use crate::{
    by_hand::{json_of, stdout_of},
    node::{Backend, Node},
    sandbox, sandbox_with,
    story::stories,
    wrapper::Wrapper,
};
use flexvol_testing::{Baseline, Need, PersistentVolume, Pod, Points, PoolFilesystem, tests};
use nix::{
    fcntl::{FallocateFlags, fallocate},
    sys::{
        stat::{UtimensatFlags, utimensat},
        time::{TimeSpec, TimeValLike},
    },
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

stories! {
    STORIES:
    "gc: goes on with the removal of a kept volume that was cut", [loop btrfs lvm] => cut_removal;
}

tests! {
    "gc: removes names, loops and locks that nobody has, and nothing else", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("python3", "python3")]
        => leftovers;
    "gc: gives back what a growth took that was cut, and so does a smaller one", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => cut_growth;
    "a callout on a handle that no pool has leaves no lock behind", &[Need::Root]
        => unknown_handles;
}

const GONE: &str = "00112233445566778899aabbccddeeff";
const DELETED: &str = "20112233445566778899aabbccddeeff";
const YOUNG: &str = "10112233445566778899aabbccddeeff";

/// An attach before Linux 5.8, interrupted between its two steps: only `LOOP_SET_FD` was done.
const BIND: &str = "import fcntl, os, sys
control = os.open('/dev/loop-control', os.O_RDWR)
device = '/dev/loop%d' % fcntl.ioctl(control, 0x4C82)
image = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(os.open(device, os.O_RDWR), 0x4C00, image)
print(device)";

/// Attaches an image as busybox does, by the name that was typed in its directory, and prints the device. The label is
/// at byte 56 of `loop_info64`.
const LABEL: &str = "
info = bytearray(232)
name = os.path.basename(sys.argv[1]).encode()
info[56:56 + len(name)] = name
fcntl.ioctl(os.open(device, os.O_RDWR), 0x4C04, bytes(info))";

/// Runs a program that must succeed and returns its output.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes a file two hours old.
fn age(path: &Path) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let then = TimeSpec::seconds(i64::try_from(now.as_secs()).unwrap() - 7200);
    let flags = UtimensatFlags::NoFollowSymlink;
    utimensat(nix::fcntl::AT_FDCWD, path, &then, &then, flags).unwrap();
}

/// The controller got its reply when the volume was marked as deleted, and does not ask again.
fn cut_removal(backend: Backend, points: &Points) {
    const SECOND: &str = "keep_deleted = \"1s\"\n";
    let node = Node::with(backend, SECOND);
    let states = || json_of(&node.driver, &["list", "-o", "json"])["volumes"].clone();
    let half_removed = |name: &str| {
        let volume = node.volume(name);
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        pod.unmount().success();
        node.delete(&volume).success();
        thread::sleep(Duration::from_millis(2500));
        match backend {
            Backend::Lvm => {
                let program = Wrapper::of("lvm", "[ \"$1\" != lvremove ] || exit 5");
                cut_gc(&node, &[]);
                drop(program);
            }
            Backend::Loop => cut_gc(&node, &["-e", "inject=unlinkat:signal=KILL:when=1"]),
            _ => cut_gc(&node, &["-e", "inject=renameat:signal=KILL:when=1"]),
        }
        assert_eq!(states()[0]["state"], "deleting");
        volume
    };
    let volume = half_removed("one");
    let line = format!("volume {}, whose removal was not finished\n", volume.id());
    let would = stdout_of(&node.driver, &["gc", "--dry-run"]);
    assert!(would.contains(&format!("would remove {line}")), "{would}");
    assert_eq!(states()[0]["state"], "deleting");
    let did = stdout_of(&node.driver, &["gc"]);
    assert!(did.contains(&format!("removed {line}")), "{did}");
    assert_eq!(states(), serde_json::json!([]));
    assert!(!stdout_of(&node.driver, &["gc"]).contains(&line));
    points.add(3);

    // Unfinished removals count towards the limit of kept volumes, too.
    half_removed("two");
    node.install(&format!("{SECOND}keep_at_most = \"90%\"\n"));
    let other = node.volume("three");
    node.delete(&other).success();
    assert!(!states().to_string().contains("deleting"), "{}", states());
    points.add(1);
}

fn cut_gc(node: &Node, inject: &[&str]) {
    let ended = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=unlinkat,renameat"])
        .args(inject)
        .arg(node.driver.executable())
        .arg("gc")
        .output()
        .unwrap();
    assert!(!ended.status.success(), "{ended:?}");
}

fn cut_growth(points: &Points) {
    const MIB: u64 = 1 << 20;
    for kind in ["ext4", "xfs", "btrfs"] {
        let sandbox = sandbox_with(PoolFilesystem {
            kind,
            // A small btrfs makes small extents, and the end of the image must be within one.
            mebibytes: if kind == "btrfs" { 3000 } else { 800 },
            quotas: false,
        });
        let driver = sandbox.install("flexvol.test/disk", false, "reserve = \"64Mi\"");
        let volume = PersistentVolume::provision(&driver, "a", "xfs", 320 * MIB);
        let image = volume.image(&sandbox);
        let cut = |mebibytes: i64| {
            let file = File::options().write(true).open(&image).unwrap();
            let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, keep, 320 << 20, mebibytes << 20).unwrap();
        };
        let has = || fs::metadata(&image).unwrap().blocks() * 512;
        cut(1);
        let told = stdout_of(&driver, &["gc"]);
        assert!(
            told.contains("1Mi behind the end of volume"),
            "{kind}: {told}"
        );
        assert!(has() < 321 * MIB, "{kind}: {}", has());
        cut(180);
        let told = stdout_of(&driver, &["gc", "--dry-run"]);
        assert!(told.contains("behind the end of volume"), "{told}");
        assert!(has() >= 500 * MIB);
        stdout_of(&driver, &["gc"]);
        assert!((320 * MIB..330 * MIB).contains(&has()), "{kind}: {}", has());
        let told = stdout_of(&driver, &["gc", "--dry-run"]);
        assert!(!told.contains("behind the end"), "{told}");
        cut(180);
        let pod = Pod::new(&sandbox, &driver, &volume, "a");
        let json = volume.json("rw");
        let (dir, to) = (pod.dir().to_str().unwrap(), (352 * MIB).to_string());
        let grow = ["expandvolume", &json, dir, &to, "335544320"];
        driver.call(&grow).success();
        assert!((352 * MIB..362 * MIB).contains(&has()), "{kind}: {}", has());
        points.add(1);
    }
}

fn unknown_handles(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/disk", false, "reserve = \"64Mi\"");
    let mut volume = PersistentVolume::provision(&driver, "a", "xfs", 320 << 20);
    driver.call(&["delete", &volume.json("rw")]).success();
    for handle in [volume.handle().to_owned(), GONE.to_owned()] {
        for pool in [true, false] {
            volume.options = BTreeMap::from([("handle".to_owned(), handle.clone())]);
            if pool {
                let pool = ("pool".to_owned(), "default".to_owned());
                volume.options.extend([pool]);
            }
            let lock = Path::new("/run/flexvol/lock").join(volume.id());
            let pod = Pod::new(&sandbox, &driver, &volume, "a");
            let json = volume.json("rw");
            let dir = pod.dir().to_str().unwrap();
            let grow = ["expandvolume", &json, dir, "671088640", "335544320"];
            for (what, call) in [
                ("mount", pod.mount("rw")),
                ("expandvolume", driver.call(&grow)),
                (
                    "expandfs",
                    driver.call(&pod.expand_arguments(640 << 20, 320 << 20)),
                ),
            ] {
                call.failure();
                assert!(!lock.exists(), "{what}");
                points.add(1);
            }
            driver.call(&["delete", &json]).success();
            assert!(!lock.exists(), "delete");
        }
    }
    // The lock of an existing volume stays, whatever is refused.
    let volume = PersistentVolume::provision(&driver, "b", "xfs", 320 << 20);
    let lock = Path::new("/run/flexvol/lock").join(volume.id());
    let json = volume.json("rw");
    let dir = sandbox.disk();
    let grow = [
        "expandvolume",
        &json,
        dir.to_str().unwrap(),
        "1125899906842624",
        "335544320",
    ];
    driver.call(&grow).failure();
    assert!(lock.exists());
}

fn leftovers(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/disk", false, "reserve = \"64Mi\"");
    let used = PersistentVolume::provision(&driver, "used", "xfs", 320 << 20);
    let pod = Pod::new(&sandbox, &driver, &used, "a");
    let _ = pod.mount("rw").success();
    let idle = PersistentVolume::provision(&driver, "idle", "xfs", 320 << 20);
    let looked_at = PersistentVolume::provision(&driver, "looked-at", "xfs", 320 << 20);
    let labelled = PersistentVolume::provision(&driver, "labelled", "xfs", 320 << 20);
    // A volume of another backend in the same pool is left alone.
    fs::create_dir(sandbox.pool().join("volumes").join("c".repeat(32))).unwrap();
    // Removes locks that earlier runs may have left on the node.
    let _ = stdout_of(&driver, &["gc"]);
    let before = Baseline::of(&sandbox);

    let names = sandbox.pool().join("names");
    symlink(GONE, names.join("gone")).unwrap();
    age(&names.join("gone"));
    symlink(YOUNG, names.join("young")).unwrap();
    let locks = Path::new("/run/flexvol/lock");
    for handle in [DELETED, YOUNG] {
        fs::write(locks.join(handle), "").unwrap();
    }
    age(&locks.join(DELETED));
    for path in [
        locks.join(used.id()),
        names.join("used"),
        names.join("idle"),
    ] {
        age(&path);
    }
    let bound = |image: &Path, more: &str| {
        let script = format!("{BIND}{more}");
        printed(Command::new("python3").args(["-c", &script]).arg(image))
    };
    let device = bound(&idle.image(&sandbox), "");
    let losetup = |image: &Path| printed(Command::new("losetup").args(["-f", "--show"]).arg(image));
    // Not a volume, so `gc` must leave it.
    let foreign = sandbox.disk().join("foreign");
    fs::write(&foreign, vec![0; 1 << 20]).unwrap();
    let others = [
        losetup(&foreign),
        losetup(&looked_at.image(&sandbox)),
        bound(&labelled.image(&sandbox), LABEL),
    ];

    let all = Baseline::of(&sandbox);
    let told = stdout_of(&driver, &["gc", "--dry-run"]);
    for line in [
        "would remove the name gone,".to_owned(),
        format!(
            "would remove the idle device {} of volume {}",
            device,
            idle.id()
        ),
        format!("would remove the lock of {DELETED}, which is no volume of this driver"),
    ] {
        assert!(told.contains(&line), "no {line:?} in:\n{told}");
        points.add(1);
    }
    assert_eq!(told.lines().count(), 3, "{told}");
    all.expect(&sandbox, "a dry run changes nothing");

    let done = stdout_of(&driver, &["gc"]);
    assert_eq!(done.replace("removed ", "would remove "), told);
    assert_eq!(stdout_of(&driver, &["gc"]), "nothing was left behind\n");
    assert!(locks.join(YOUNG).exists() && locks.join(used.id()).exists());
    assert!(!locks.join(DELETED).exists());

    // Loop devices that an administrator made to look into a volume's image are left alone.
    for (other, volume) in others[1..].iter().zip([&looked_at, &labelled]) {
        let under = printed(Command::new("losetup").args(["-n", "-O", "BACK-FILE", other]));
        assert_eq!(Path::new(&under), volume.image(&sandbox));
    }
    for other in &others {
        assert_eq!(printed(Command::new("losetup").args(["-d", other])), "");
    }
    fs::remove_file(foreign).unwrap();
    fs::remove_file(names.join("young")).unwrap();
    fs::remove_file(locks.join(YOUNG)).unwrap();
    before.expect(&sandbox, "tidied");
    let shown = json_of(&driver, &["show", "used", "-o", "json"]);
    assert_eq!(shown["mounts"].as_array().unwrap().len(), 1);
    let _ = pod.unmount().success();
}
