//! A pool that is frozen, or dies with its directories in the kernel's memory, beside one that is well: looking into it
//! waits for nothing, and working there does.

use crate::{
    frozen::{Frozen, processes},
    sandbox,
    silent_disk::{Disk, Dying, expect_none_left},
};
use flexvol_testing::{
    Driver, Need, PersistentVolume, Pod, Points, Sandbox, json, patience, tests,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Filesystem("fuse"),
    Need::Tool("fsfreeze", "util-linux"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("timeout", "coreutils"),
];

tests! {
    "a frozen pool is looked into, and verbs that change something there name it and do the others", NEEDS
        => frozen;
    "verbs beside a pool that dies in the middle of their work name it and do the others", NEEDS => dying;
}

const SIZE: u64 = 64 << 20;
const SILENT: &str = "the pool does not answer";

/// A driver with a pool `a`, which will be silent, and a pool `b` on the sandbox's disk.
struct Beside {
    sandbox: Sandbox,
    driver: Driver,
}

impl Beside {
    fn new(sandbox: Sandbox, silent: &Path) -> Beside {
        let pool = |name: &str, path: &Path| {
            format!(
                "[pools.{name}]\npath = {path:?}\nreserve = \"1%\"\nfilesystem = \"ext4\"\nkeep_deleted = \"1s\"\n"
            )
        };
        let pools = [pool("a", silent), pool("b", &sandbox.pool())].concat();
        let driver =
            sandbox.install_with("flexvol.test/disk", &format!("backend = \"loop\"\n{pools}"));
        Beside { sandbox, driver }
    }

    fn volume(&self, name: &str, pool: &str) -> PersistentVolume {
        let size = SIZE.to_string();
        let request = json([
            ("kubernetes.io/pvOrVolumeName", name),
            ("kubernetes.io/pvc.namespace", "default"),
            ("requestBytes", &size),
            ("pool", pool),
        ]);
        let made = self.driver.call(&["provision", &request]).success();
        PersistentVolume::from_reply(name, "ext4", &made)
    }

    /// A volume with a file system, which was deleted and is kept.
    fn kept(&self, name: &str, pool: &str) -> PersistentVolume {
        let volume = self.volume(name, pool);
        let pod = Pod::new(&self.sandbox, &self.driver, &volume, "one");
        pod.mount("rw").success();
        pod.unmount().success();
        self.delete(&volume);
        volume
    }

    /// Deletes a volume, which takes no time.
    fn delete(&self, volume: &PersistentVolume) {
        let call = self.driver.call(&["delete", &volume.json("rw")]).success();
        assert!(call.took < AT_ONCE * patience(), "{call}, {:?}", call.took);
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, Duration) {
        let began = Instant::now();
        let mut command = Command::new("timeout");
        let seconds = (WATCHED * patience()).as_secs().to_string();
        command.args(["--signal=KILL", &seconds]);
        let Output {
            status,
            stdout,
            stderr,
        } = command
            .arg(self.driver.executable())
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8([stdout, stderr].concat()).unwrap();
        (status.code(), text, began.elapsed())
    }

    /// Runs a verb that says all of this and ends in time.
    fn expect(&self, arguments: &[&str], code: i32, words: &[&str], limit: Duration) {
        let (ended, text, took) = self.run(arguments);
        assert_eq!(ended, Some(code), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "no {word:?} of {arguments:?}: {text}");
        }
        assert!(took < limit * patience(), "{arguments:?}: {took:?}");
    }
}

/// What waits for nothing.
const AT_ONCE: Duration = Duration::from_secs(3);
/// What is given up after half a minute.
const WATCHED: Duration = Duration::from_secs(45);
/// And the time of keeping is over.
const TIME: Duration = Duration::from_millis(2500);

fn frozen(points: &Points) {
    let sandbox = sandbox();
    let [image, disk] = ["frozen.img", "frozen"].map(|name| sandbox.path(name));
    let disk = Disk::new(&image, disk);
    let silent = disk.0.join("a");
    sandbox.make_pool(&silent);
    let beside = Beside::new(sandbox, &silent);
    // Unmounted before the sandbox goes.
    let disk = disk;
    let [old, doomed] = ["old", "doomed"].map(|name| beside.kept(name, "a"));
    let kept = beside.kept("kept", "b");
    let gone = beside.volume("gone", "b");
    beside.delete(&gone);
    thread::sleep(TIME);

    let thaws = Frozen::new(&disk.0);
    // A blank volume is not kept, so that it is looked for in the other pool.
    beside.delete(&gone);
    let by_handle = format!(r#"{{"handle":"{}"}}"#, gone.handle());
    beside.driver.call(&["delete", &by_handle]).success();
    beside.expect(&["list"], 0, &[old.handle(), kept.handle()], AT_ONCE);
    beside.expect(&["undelete", kept.handle()], 0, &[], AT_ONCE);
    beside.expect(&create_in("b", "made"), 0, &["was made"], AT_ONCE);
    points.add(5);
    beside.delete(&kept);
    thread::sleep(TIME);
    let removed = format!("removed volume {}", kept.id());
    let verbs: [(&[&str], &[&str]); 3] = [
        (&["gc"], &[&removed, "pool a: ", SILENT, "fsfreeze -u"]),
        // Which of them waits for the kernel, and which for another one's lock, is not said.
        (&["undelete", doomed.handle()], &["restore volume"]),
        (&create_in("a", "late"), &["make volume late"]),
    ];
    thread::scope(|scope| {
        for (arguments, words) in verbs {
            let beside = &beside;
            scope.spawn(move || beside.expect(arguments, 1, words, WATCHED));
            points.add(1);
        }
    });
    // Nobody waits beside what was left behind there, and looking still waits for nothing.
    let left = processes(&beside.driver);
    beside.expect(&["list"], 0, &[old.handle(), "made"], AT_ONCE);
    beside.expect(&["gc", "--dry-run"], 0, &[], AT_ONCE);
    beside.expect(&["gc"], 1, &["pool a: ", SILENT, "process "], AT_ONCE);
    beside.expect(&create_in("a", "later"), 1, &[SILENT], AT_ONCE);
    beside.expect(&["undelete", old.handle()], 1, &[SILENT], AT_ONCE);
    assert_eq!(processes(&beside.driver), left);
    points.add(5);
    drop(thaws);
    expect_none_left(&beside.driver);

    let (code, text, _) = beside.run(&["gc"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!image_of(&silent, &old).exists());
    assert!(!kept.image(&beside.sandbox).exists());
    beside.expect(&["list"], 0, &["made"], AT_ONCE);
    points.add(1);
}

fn create_in<'a>(pool: &'a str, name: &'a str) -> [&'a str; 6] {
    ["create", name, "--pool", pool, "--size", "64Mi"]
}

fn dying(points: &Points) {
    let sandbox = sandbox();
    let [content, server, disk] = ["dying.img", "server", "dying"].map(|name| sandbox.path(name));
    let on = Disk::new(&content, disk.clone());
    let silent = disk.join("a");
    sandbox.make_pool(&silent);
    let beside = Beside::new(sandbox, &silent);
    let volumes = ["a1", "a2"].map(|name| beside.volume(name, "a"));
    let kept = beside.kept("kept", "b");
    beside.volume("well", "b");
    drop(on);
    thread::sleep(TIME);

    let dies = Dying::mount(&content, &server, disk);
    // In the kernel's memory is what leads to the images, and not what is in them.
    fs::read(silent.join(".flexvol-pool")).unwrap();
    for directory in ["volumes", "names"] {
        fs::read_dir(silent.join(directory)).unwrap().for_each(drop);
    }
    dies.server.die();
    let removed = format!("removed volume {}", kept.id());
    let verbs: [(&[&str], i32, &[&str]); 4] = [
        (&["list"], 1, &["well ", "pool a: ", SILENT]),
        (&["show", "well"], 0, &["well"]),
        (&["gc"], 1, &[&removed, "pool a: ", SILENT]),
        (&create_in("b", "made"), 0, &["was made"]),
    ];
    thread::scope(|scope| {
        for (arguments, code, words) in verbs {
            let beside = &beside;
            scope.spawn(move || beside.expect(arguments, code, words, WATCHED));
            points.add(1);
        }
    });
    dies.server.revive();
    expect_none_left(&beside.driver);
    let [first, second] = volumes.each_ref().map(PersistentVolume::handle);
    beside.expect(&["list"], 0, &[first, second, "made"], AT_ONCE);
}

fn image_of(pool: &Path, volume: &PersistentVolume) -> PathBuf {
    pool.join("volumes").join(volume.id())
}
