//! Callouts killed at each of their system calls: the repeated call succeeds, nothing is left.

use crate::sandbox;
use flexvol_testing::{
    Call, Driver, Killed, Need, PersistentVolume, Pod, Points, Sandbox, Test, request,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("strace", "strace"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
];

pub const TESTS: &[Test] = &[
    test(
        "provision, killed anywhere, is finished by its repetition",
        provision,
    ),
    test(
        "mount of a new xfs volume, killed anywhere, is finished by its repetition",
        |points| {
            mount_new("xfs", points);
        },
    ),
    test(
        "mount of a new ext4 volume, killed anywhere, is finished by its repetition",
        |points| {
            mount_new("ext4", points);
        },
    ),
    test(
        "mount, killed anywhere, is finished by its repetition",
        mount,
    ),
    test(
        "expandfs, killed anywhere, is finished by its repetition",
        expandfs,
    ),
    test(
        "unmount, killed anywhere, is finished by its repetition",
        unmount,
    ),
    test(
        "an mkfs that outlives its driver keeps the device to itself",
        orphan,
    ),
    test(
        "delete, killed anywhere, is finished by its repetition",
        delete,
    ),
];

const fn test(name: &'static str, run: fn(&Points)) -> Test {
    Test {
        name,
        needs: NEEDS,
        run,
    }
}

const SIZE: u64 = 300 << 20;
const GROWN: u64 = 316 << 20;
const TEXT: &str = "written and synced before the callout";

/// One node with a driver and, where a test wants one that stays, a volume.
struct Place {
    sandbox: Sandbox,
    driver: Driver,
}

impl Place {
    fn new() -> Self {
        let sandbox = sandbox();
        let driver = sandbox.install("example.com/loop", false, "");
        Place { sandbox, driver }
    }

    fn volume(&self, filesystem: &'static str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, "pv", filesystem, SIZE)
    }

    /// A volume that was mounted and holds a file, and is mounted now.
    fn mounted(&self) -> PersistentVolume {
        let volume = self.volume("xfs");
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        let path = pod.dir().join("file");
        fs::write(&path, TEXT).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        volume
    }

    fn pod<'a>(&'a self, volume: &'a PersistentVolume) -> Pod<'a> {
        Pod::new(
            &self.sandbox,
            &self.driver,
            volume,
            "0b1e55ed-0000-4000-8000-000000000001",
        )
    }

    fn delete(&self, volume: &PersistentVolume) -> Call {
        self.driver.call(&["delete", &volume.json("rw")]).success()
    }

    fn killed<'a, S>(
        &'a self,
        prepare: &'a dyn Fn() -> S,
        arguments: &'a dyn Fn(&S) -> Vec<String>,
        finish: &'a dyn Fn(S),
    ) -> Killed<'a, S> {
        Killed {
            sandbox: &self.sandbox,
            driver: &self.driver,
            prepare,
            arguments,
            finish,
        }
    }
}

fn provision(points: &Points) {
    let place = Place::new();
    let arguments = vec!["provision".to_owned(), request("pv", SIZE)];
    let finish = |()| {
        let again = place.driver.call(&arguments).success();
        let volume = PersistentVolume::from_reply("pv", "xfs", &again);
        assert_eq!(
            fs::metadata(volume.image(&place.sandbox)).unwrap().len(),
            SIZE
        );
        place.delete(&volume);
    };
    place
        .killed(&|| (), &|()| arguments.clone(), &finish)
        .run("provision", points);
}

fn mount_new(filesystem: &'static str, points: &Points) {
    let place = Place::new();
    let finish = |volume| {
        let pod = place.pod(&volume);
        fs::write(pod.dir().join("file"), TEXT).unwrap();
        pod.unmount().success();
        place.delete(&volume);
    };
    place
        .killed(
            &|| place.volume(filesystem),
            &|volume| place.pod(volume).mount_arguments("rw"),
            &finish,
        )
        .run(&format!("mount of a new {filesystem} volume"), points);
}

fn mount(points: &Points) {
    let place = Place::new();
    let volume = place.mounted();
    place.pod(&volume).unmount().success();
    let finish = |()| {
        let pod = place.pod(&volume);
        assert_eq!(fs::read_to_string(pod.dir().join("file")).unwrap(), TEXT);
        pod.unmount().success();
    };
    place
        .killed(
            &|| (),
            &|()| place.pod(&volume).mount_arguments("rw"),
            &finish,
        )
        .run("mount", points);
}

fn expandfs(points: &Points) {
    let place = Place::new();
    let finish = |volume| {
        let pod = place.pod(&volume);
        assert_eq!(
            fs::metadata(volume.image(&place.sandbox)).unwrap().len(),
            GROWN
        );
        assert_eq!(fs::read_to_string(pod.dir().join("file")).unwrap(), TEXT);
        pod.unmount().success();
        place.delete(&volume);
    };
    place
        .killed(
            &|| place.mounted(),
            &|volume| place.pod(volume).expand_arguments(GROWN, SIZE),
            &finish,
        )
        .run("expandfs", points);
}

/// The driver dies when mkfs runs and has not yet opened the device, which it does by its path.
fn orphan(_: &Points) {
    let place = Place::new();
    let volume = place.volume("xfs");
    let arguments = place.pod(&volume).mount_arguments("rw");
    // The dynamic loader's first look at the disk; the driver, being static, has no loader.
    let slow =
        "/usr/bin/strace -f -qq -o /dev/null -e trace=access -e inject=access:delay_enter=1s";
    let slow: Vec<_> = slow.split(' ').collect();
    let parent = |pid: Pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse().ok().map(Pid::from_raw)
    };
    thread::scope(|scope| {
        let call = scope.spawn(|| place.driver.call_through(&slow, &arguments));
        let (driver, mkfs) = eventually(|| {
            let drivers = running(place.driver.executable());
            let all = running(Path::new("/usr/sbin/mkfs.xfs")).into_iter();
            all.map(|mkfs| (parent(mkfs), mkfs))
                .find_map(|(parent, mkfs)| {
                    Some((parent.filter(|pid| drivers.contains(pid))?, mkfs))
                })
        });
        kill(driver, Signal::SIGKILL).unwrap();
        eventually(|| parent(mkfs).filter(|parent| *parent != driver));
        assert_eq!(
            place.sandbox.loops().len(),
            1,
            "mkfs runs, and its loop is free"
        );
        assert!(
            running(Path::new("/usr/sbin/mkfs.xfs")).contains(&mkfs),
            "mkfs was too fast"
        );
        call.join().unwrap();
    });
    place.pod(&volume).mount("rw").success();
    place.pod(&volume).unmount().success();
    place.delete(&volume);
}

/// Processes that run this executable.
fn running(executable: &Path) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("exe")).is_ok_and(|runs| runs == executable))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
        .collect()
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came");
        thread::sleep(Duration::from_millis(5));
    }
}

fn unmount(points: &Points) {
    let place = Place::new();
    let volume = place.mounted();
    let pod = place.pod(&volume);
    pod.unmount().success();
    let arguments = vec!["unmount".to_owned(), pod.dir().to_str().unwrap().to_owned()];
    let finish = |()| {
        if pod.dir().exists() {
            fs::remove_dir(pod.dir()).unwrap();
        }
    };
    let prepare = || {
        pod.mount("rw").success();
        assert_eq!(fs::read_to_string(pod.dir().join("file")).unwrap(), TEXT);
    };
    place
        .killed(&prepare, &|()| arguments.clone(), &finish)
        .run("unmount", points);
}

fn delete(points: &Points) {
    let place = Place::new();
    let arguments = |volume: &PersistentVolume| vec!["delete".to_owned(), volume.json("rw")];
    place
        .killed(&|| place.volume("xfs"), &arguments, &|volume| {
            assert!(!volume.image(&place.sandbox).exists());
        })
        .run("delete", points);
}
