//! Images in very many pieces, and images that are copied: looking at the one and copying the other keeps
//! nobody else from the pool, and what is not looked at is not known.

use crate::{
    by_hand::{persistent_volume, said_json},
    full::{expect_exhausted, expect_written, write},
    promised::{blocks, capacity, doctor, install},
    sandbox_with,
};
use flexvol_testing::{
    Driver, Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, Test, request,
};
use nix::{
    fcntl::{FallocateFlags, fallocate},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::{
        fs::{FileExt, MetadataExt, chown},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub const TESTS: &[Test] = &[
    Test {
        name: "pieces: whoever looks at an image in many pieces keeps nobody from the pool",
        needs: TRACED,
        run: looked_at,
    },
    Test {
        name: "pieces: what an image loses while others are looked at is promised to nobody",
        needs: TRACED,
        run: lost_meanwhile,
    },
    Test {
        name: "pieces: of an image in more pieces than are looked at it is not known what it lacks",
        needs: &[Need::Root, XFS],
        run: unknown,
    },
    Test {
        name: "pieces: an image in more pieces than are looked at grows by blocks of its own, also in a full pool",
        needs: &[Need::Root, XFS],
        run: grown,
    },
    Test {
        name: "pieces: a shared image in many pieces is parted in few steps",
        needs: TRACED,
        run: parted_at_once,
    },
    Test {
        name: "pieces: what is copied while a volume gets back what it lost takes nobody's space",
        needs: TRACED,
        run: copied_meanwhile,
    },
    Test {
        name: "adopt: whoever parts a shared image keeps nobody from the pool, nor loses what he needs",
        needs: TRACED,
        run: parted_slowly,
    },
    Test {
        name: "adopt: killed while it parts a shared image, it is completed by a second time or a mount",
        needs: TRACED,
        run: parted_twice,
    },
    Test {
        name: "adopt: an image that cannot be parted after all is given back",
        needs: TRACED,
        run: given_back,
    },
    Test {
        name: "adopt: an image that can be neither parted nor given back stays a volume, and is completed",
        needs: TRACED,
        run: kept,
    },
];

const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
const TRACED: &[Need] = &[
    Need::Root,
    XFS,
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("strace", "strace"),
];
const MIB: u64 = 1 << 20;
const POD: &str = "0b1e55ed-0000-4000-8000-000000000001";

fn pool(mebibytes: u64) -> Sandbox {
    sandbox_with(PoolFilesystem {
        kind: "xfs",
        mebibytes,
        quotas: false,
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

fn punch(image: &Path, at: u64, bytes: u64) {
    let file = File::options().write(true).open(image).unwrap();
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, signed(at), signed(bytes)).unwrap();
    file.sync_all().unwrap();
}

/// Writes every other block of an image that has all of them: those in between are marked as not written.
fn cut(sandbox: &Sandbox, image: &Path) {
    let size = fs::metadata(image).unwrap().len();
    let file = File::options().write(true).open(image).unwrap();
    for at in (0..size).step_by(8192) {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    file.sync_all().unwrap();
    settle(sandbox);
    assert!(blocks(image) >= size);
}

fn settle(sandbox: &Sandbox) {
    nix::unistd::syncfs(File::open(sandbox.disk()).unwrap()).unwrap();
}

/// A process that stands still in a system call.
struct Stopped {
    child: Child,
    /// Which of its processes stands.
    pid: Pid,
}

impl Stopped {
    /// Starts the driver, and waits until it has begun this call for the `nth` time.
    fn at(sandbox: &Sandbox, driver: &Driver, call: &str, nth: u32, arguments: &[&str]) -> Self {
        let log = sandbox.path(&format!("{call}-{nth}.log"));
        // One of an earlier process says what that one did.
        let _ = fs::remove_file(&log);
        let inject = format!("inject={call}:signal=STOP:when={nth}");
        // The tracer is not the parent of what it traces: so the child is the driver.
        let child = Command::new("strace")
            .args([
                "-D",
                "-f",
                "-e",
                &format!("trace={call}"),
                "-e",
                &inject,
                "-o",
            ])
            .arg(&log)
            .arg(driver.executable())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stopped = Stopped {
            pid: Pid::from_raw(i32::try_from(child.id()).unwrap()),
            child,
        };
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let stands = log.lines().find(|line| line.contains("stopped by SIGSTOP"));
            if let Some(pid) = stands.and_then(|line| line.split_whitespace().next()) {
                stopped.pid = Pid::from_raw(pid.parse().unwrap());
                return stopped;
            }
            assert!(Instant::now() < end, "{arguments:?} does not come so far");
            assert!(stopped.runs(), "{arguments:?} ended before");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Lets it go on to its end; what it said.
    fn goes_on(mut self) -> String {
        assert!(self.runs());
        kill(self.pid, Signal::SIGCONT).unwrap();
        let mut said = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        self.child.wait().unwrap();
        said
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Of one that ended this is nothing.
        if self.runs() {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn looked_at(points: &Points) {
    let sandbox = pool(4096);
    let driver = install(&sandbox, "");
    let cut_up = PersistentVolume::provision(&driver, "a", "xfs", 800 * MIB);
    let image = cut_up.image(&sandbox);
    cut(&sandbox, &image);
    let other = PersistentVolume::provision(&driver, "b", "xfs", 300 * MIB);
    let (new, old) = ((400 * MIB).to_string(), (300 * MIB).to_string());
    let json = other.json("rw");
    let pod = Pod::new(&sandbox, &driver, &other, POD);
    let dir = pod.dir().to_str().unwrap();
    // More than there would be if it were forgotten what was seen of an image that is written meanwhile.
    let asked = request("c", capacity(&driver).0 - 1200 * MIB);
    let grow = ["expandvolume", &json, dir, &new, &old];
    let make = ["provision", &asked];
    for (name, slow) in [("d", &grow[..]), ("e", &make[..])] {
        let stopped = Stopped::at(&sandbox, &driver, "ioctl", 100, slow);
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        file.sync_all().unwrap();
        driver
            .call(&["provision", &request(name, 300 * MIB)])
            .success();
        let reply = stopped.goes_on();
        assert!(reply.contains("\"Success\""), "{reply}");
        points.add(1);
    }
    assert_eq!(
        fs::metadata(other.image(&sandbox)).unwrap().len(),
        400 * MIB
    );
    assert_eq!(capacity(&driver).1, 0);
}

fn lost_meanwhile(_: &Points) {
    let sandbox = pool(4096);
    let driver = install(&sandbox, "");
    let cut_up = PersistentVolume::provision(&driver, "a", "xfs", 800 * MIB);
    let image = cut_up.image(&sandbox);
    cut(&sandbox, &image);
    let room = capacity(&driver).0;
    let asked = request("c", room + 100 * MIB);
    let stopped = Stopped::at(&sandbox, &driver, "ioctl", 150, &["provision", &asked]);
    // What it has read already.
    punch(&image, 0, 200 * MIB);
    settle(&sandbox);
    let reply = stopped.goes_on();
    assert!(reply.contains("exhausted"), "{reply}");
    let (now, missing) = capacity(&driver);
    assert_eq!(missing, 200 * MIB);
    assert!(now <= room + 8 * MIB, "{room}, then {now}");
    driver
        .call(&["provision", &request("d", now - 100 * MIB)])
        .success();
}

fn unknown(_: &Points) {
    const SIZE: u64 = 3 << 30;
    let sandbox = pool(8 << 10);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
    let image = volume.image(&sandbox);
    let known = capacity(&driver).0;
    let pod = Pod::new(&sandbox, &driver, &volume, POD);
    cut(&sandbox, &image);
    let changed = || fs::metadata(&image).unwrap().ctime_nsec();
    let before = changed();
    let reply = driver.call(&["capacity", "{}"]).success();
    let reply = reply.object().unwrap();
    assert!(!reply.contains_key("missing"), "{reply:?}");
    let room = reply["capacity"].as_u64().unwrap();
    // What was read is its own.
    assert!(
        room + SIZE / 8 < known && room + SIZE > known,
        "{room} of {known}"
    );
    expect_exhausted(&driver.call(&["provision", &request("b", known - MIB)]));
    driver
        .call(&["provision", &request("b", room - 64 * MIB)])
        .success();
    let said = doctor(&sandbox, &driver);
    assert!(said.contains("it is not known"), "{said}");
    assert!(!said.contains("lack some"), "{said}");
    assert_eq!(changed(), before);
    // Nothing is parted for it: a pod gets the image as it is. It formats it, so only its blocks are compared.
    let inode = fs::metadata(&image).unwrap().ino();
    pod.mount("rw").success();
    write(pod.dir(), "file", 8).unwrap();
    expect_written(pod.dir(), "file", 8);
    pod.unmount().success();
    let found = fs::metadata(&image).unwrap();
    assert_eq!(found.ino(), inode);
    assert!(found.blocks() * 512 >= SIZE);
}

fn grown(points: &Points) {
    const SIZE: u64 = 3 << 30;
    const MORE: u64 = 8 * MIB;
    let sandbox = pool(8 << 10);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
    let image = volume.image(&sandbox);
    cut(&sandbox, &image);
    let json = volume.json("rw");
    let dir = sandbox.disk();
    let grow = |from: u64| {
        let before = blocks(&image);
        let (new, old) = ((from + MORE).to_string(), from.to_string());
        let dir = dir.to_str().unwrap();
        driver
            .call(&["expandvolume", &json, dir, &new, &old])
            .success();
        settle(&sandbox);
        assert_eq!(fs::metadata(&image).unwrap().len(), from + MORE);
        let gained = blocks(&image) - before;
        assert!(gained >= MORE, "{gained}");
        points.add(1);
    };
    grow(SIZE);
    // Less is left than what is in pieces that others than this volume are not promised.
    let room = nix::sys::statvfs::statvfs(&sandbox.disk()).unwrap();
    let room = room.blocks_available() * room.fragment_size();
    let filler = File::create_new(sandbox.disk().join("filler")).unwrap();
    let filled = signed(room - 200 * MIB);
    fallocate(&filler, FallocateFlags::empty(), 0, filled).unwrap();
    grow(SIZE + MORE);
    // Its only hole is found, wherever it is.
    punch(&image, SIZE - MIB, MIB);
    settle(&sandbox);
    grow(SIZE + 2 * MORE);
}

fn parted_at_once(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", 320 * MIB);
    let image = volume.image(&sandbox);
    cut(&sandbox, &image);
    // A hole, in which nothing is parted.
    punch(&image, 80 * MIB, 8 * MIB);
    copy(&image, &sandbox.disk().join("copy"));
    settle(&sandbox);
    assert_eq!(capacity(&driver).1, 164 * MIB);
    let log = sandbox.path("calls.log");
    let dir = sandbox.disk();
    let (new, old) = ((328 * MIB).to_string(), (320 * MIB).to_string());
    let grown = Command::new("strace")
        .args(["-f", "-e", "trace=fallocate", "-o"])
        .arg(&log)
        .arg(driver.executable())
        .args(["expandvolume", &volume.json("rw"), dir.to_str().unwrap()])
        .args([new, old])
        .output()
        .unwrap();
    assert!(grown.status.success(), "{grown:?}");
    let log = fs::read_to_string(log).unwrap();
    let calls = log
        .lines()
        .filter(|line| line.contains("UNSHARE") || line.contains("0x41"));
    let calls = calls.count();
    assert!((5..=8).contains(&calls), "{calls} of {log}");
    assert_eq!(capacity(&driver).1, 0);
}

fn copied_meanwhile(_: &Points) {
    const SIZE: u64 = 400 * MIB;
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let volume = PersistentVolume::provision(&driver, "a", "xfs", SIZE);
    let image = volume.image(&sandbox);
    let file = File::options().write(true).open(&image).unwrap();
    for at in (0..SIZE).step_by(1 << 20) {
        file.write_all_at(&[1; 1 << 20], at).unwrap();
    }
    drop(file);
    punch(&image, 0, MIB);
    settle(&sandbox);
    let json = volume.json("rw");
    let dir = sandbox.disk();
    let (new, old) = ((SIZE + MIB).to_string(), SIZE.to_string());
    let grow = ["expandvolume", &json, dir.to_str().unwrap(), &new, &old];
    let stopped = Stopped::at(&sandbox, &driver, "fallocate", 1, &grow);
    copy(&image, &sandbox.disk().join("copy"));
    settle(&sandbox);
    let said = stopped.goes_on();
    assert!(said.contains("was copied meanwhile"), "{said}");
    let missing = capacity(&driver).1;
    assert!(missing >= SIZE - 2 * MIB, "{missing}");
    // Now it is known.
    driver.call(&grow).success();
    assert_eq!(capacity(&driver).1, 0);
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("--reflink=always")
        .args([from, to])
        .status()
        .unwrap();
    assert!(copied.success());
}

const ADOPTED: u64 = 400 * MIB;

/// An ext4 full of data, all of it shared with a copy, and what is in it.
fn shared(sandbox: &Sandbox) -> (PathBuf, Vec<u8>) {
    let path = sandbox.disk().join("image");
    let file = File::create_new(&path).unwrap();
    for at in 0..ADOPTED / MIB {
        let block = vec![u8::try_from(at % 251).unwrap() + 1; 1 << 20];
        file.write_all_at(&block, at * MIB).unwrap();
    }
    let made = Command::new("mkfs.ext4")
        .args(["-qF", "-E", "nodiscard"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    copy(&path, &sandbox.disk().join("copy"));
    settle(sandbox);
    let content = fs::read(&path).unwrap();
    (path, content)
}

/// A mount that looks whether it can be mounted writes its superblock.
fn expect_same(image: &Path, content: &[u8]) {
    let found = fs::read(image).unwrap();
    assert_eq!(found.len(), content.len());
    let blocks = found.chunks(4096).zip(content.chunks(4096));
    let other = blocks.filter(|(now, before)| now != before).count();
    assert!(other < 16, "{other} blocks are others");
}

fn parted_slowly(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let (path, content) = shared(&sandbox);
    let room = capacity(&driver).0;
    let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    let stopped = Stopped::at(&sandbox, &driver, "fallocate", 2, &adopt);
    // Others are served, and what he needs is not given to them.
    driver
        .call(&["provision", &request("b", 300 * MIB)])
        .success();
    let left = room - 300 * MIB;
    expect_exhausted(&driver.call(&["provision", &request("c", left - 200 * MIB)]));
    let said = stopped.goes_on();
    let volume = persistent_volume(&serde_json::from_str(&said).unwrap());
    expect_same(&volume.image(&sandbox), &content);
    let (now, missing) = capacity(&driver);
    assert_eq!(missing, 0);
    assert!(now <= room - 680 * MIB, "{room}, then {now}");
}

fn parted_twice(points: &Points) {
    for by_mount in [false, true] {
        let sandbox = pool(2048);
        let driver = install(&sandbox, "");
        let (path, content) = shared(&sandbox);
        let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
        let died = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate"])
            .args(["-e", "inject=fallocate:signal=KILL:when=2"])
            .arg(driver.executable())
            .args(adopt)
            .output()
            .unwrap();
        assert_eq!(died.status.signal(), Some(9), "{died:?}");
        // What is left of its work is either the file or a volume; of a volume it is counted.
        if !path.exists() {
            let missing = capacity(&driver).1;
            assert!(missing >= ADOPTED - 128 * MIB, "{missing}");
        }
        let volume = if by_mount && !path.exists() {
            let images = fs::read_dir(sandbox.pool().join("volumes")).unwrap();
            let images: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
            assert_eq!(images.len(), 1, "{images:?}");
            expect_same(&images[0], &content);
            let handle = fs::read_link(sandbox.pool().join("names/a")).unwrap();
            let handle = handle.to_str().unwrap().to_owned();
            let volume = PersistentVolume {
                name: "a".to_owned(),
                filesystem: "ext4",
                options: BTreeMap::from([("handle".to_owned(), handle)]),
            };
            let pod = Pod::new(&sandbox, &driver, &volume, POD);
            pod.mount("rw").success();
            pod.unmount().success();
            volume
        } else {
            let volume = persistent_volume(&said_json(&driver, &adopt));
            expect_same(&volume.image(&sandbox), &content);
            volume
        };
        assert_eq!(capacity(&driver).1, 0);
        // And again.
        let again = persistent_volume(&said_json(&driver, &adopt));
        assert_eq!(again.handle(), volume.handle());
        points.add(1);
    }
}

fn given_back(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let (path, content) = shared(&sandbox);
    let inode = fs::metadata(&path).unwrap().ino();
    let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    // When it is in its place again, and root's yet.
    let died = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate,fchown"])
        .args(["-e", "inject=fallocate:error=ENOSPC:when=2+"])
        .args(["-e", "inject=fchown:error=EIO:signal=KILL:when=2"])
        .arg(driver.executable())
        .args(adopt)
        .output()
        .unwrap();
    assert_eq!(died.status.signal(), Some(9), "{died:?}");
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.ino(), found.uid()), (inode, 0));
    chown(&path, Some(12345), Some(54321)).unwrap();
    let failed = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate"])
        .args(["-e", "inject=fallocate:error=ENOSPC:when=2+"])
        .arg(driver.executable())
        .args(adopt)
        .output()
        .unwrap();
    assert!(!failed.status.success(), "{failed:?}");
    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.ino(), found.uid(), found.gid()),
        (inode, 12345, 54321)
    );
    expect_same(&path, &content);
    assert_eq!(
        fs::read_dir(sandbox.pool().join("volumes"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(capacity(&driver).1, 0);
    let volume = persistent_volume(&said_json(&driver, &adopt));
    expect_same(&volume.image(&sandbox), &content);
    assert_eq!(capacity(&driver).1, 0);
}

fn kept(_: &Points) {
    let sandbox = pool(2048);
    let driver = install(&sandbox, "");
    let (path, content) = shared(&sandbox);
    chown(&path, Some(12345), Some(54321)).unwrap();
    let adopt = ["adopt", path.to_str().unwrap(), "--name", "a", "-o", "json"];
    let failed = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fallocate,renameat2"])
        .args(["-e", "inject=fallocate:error=ENOSPC:when=2+"])
        .args(["-e", "inject=renameat2:error=EIO:when=2"])
        .arg(driver.executable())
        .args(adopt)
        .output()
        .unwrap();
    assert!(!failed.status.success(), "{failed:?}");
    let said = String::from_utf8(failed.stderr).unwrap();
    for part in ["No space left", "is a volume", "Input/output error"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!path.exists());
    let handle = fs::read_link(sandbox.pool().join("names/a")).unwrap();
    let images = fs::read_dir(sandbox.pool().join("volumes")).unwrap();
    let images: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(images.len(), 1, "{images:?}");
    let found = fs::metadata(&images[0]).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode()), (0, 0, 0o100_600));
    let lock = Path::new("/run/flexvol/lock").join(images[0].file_name().unwrap());
    assert!(lock.exists(), "{}", lock.display());
    assert!(capacity(&driver).1 > 0);
    let volume = persistent_volume(&said_json(&driver, &adopt));
    assert_eq!(handle.to_str(), Some(volume.handle()));
    expect_same(&volume.image(&sandbox), &content);
    assert_eq!(capacity(&driver).1, 0);
}
