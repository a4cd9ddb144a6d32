//! The lock of a volume, between threads and between processes.

use flexvol_host::{
    VolumeId,
    exec::{AtDeadline, Limits, Tool},
    lock, random,
};
use flexvol_sdk::ErrorKind;
use flexvol_testing::{Need, Points, Test, leave_mounts};
use nix::{
    mount::{MsFlags, mount},
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

/// Longer than it is looked whether a process that ends moves.
const BEYOND_GRACE: Duration = Duration::from_secs(5);

pub const TESTS: &[Test] = &[
    Test {
        name: "a volume's lock has one holder, and the next waits no longer than told",
        needs: &[Need::Root],
        run: one_holder,
    },
    Test {
        name: "a killed driver's child still holds the volume's lock",
        needs: &[Need::Root],
        run: orphan,
    },
    Test {
        name: "a killed driver's child that closes what it inherits still holds the volume's lock",
        needs: &[Need::Root, Need::Tool("bash", "bash")],
        run: closing_orphan,
    },
    Test {
        name: "the loop hint is kept, replaced and doubted",
        needs: &[Need::Root],
        run: hint,
    },
    Test {
        name: "a lock whose file goes with its volume still has one holder",
        needs: &[Need::Root],
        run: retired,
    },
    Test {
        name: "a lock is not broken for what others lock",
        needs: &[Need::Root, Need::Tool("flock", "util-linux")],
        run: strangers_inode,
    },
    Test {
        name: "a killed driver's child holds the lock also while the driver is not waited for",
        needs: &[Need::Root, Need::Tool("flock", "util-linux")],
        run: zombie,
    },
    Test {
        name: "who unmounts where no lock can be made is alone all the same",
        needs: &[Need::Root],
        run: without_room,
    },
];

pub fn any_volume() -> VolumeId {
    VolumeId::of(&random::handle().unwrap())
}

fn file_of(volume: &VolumeId) -> PathBuf {
    Path::new("/run/flexvol/lock").join(volume.to_string())
}

fn one_holder(_: &Points) {
    let volume = any_volume();
    let guard = lock::volume(&volume, SHORT).unwrap();
    let asked = Instant::now();
    let error = lock::volume(&volume, SHORT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(asked.elapsed() >= SHORT && asked.elapsed() < LONG);
    let holder = format!("process {}", std::process::id());
    assert!(error.report().ends_with(&holder), "{}", error.report());
    assert!(!error.to_string().contains("process"), "{error}");

    for (path, mode) in [
        (file_of(&volume), 0o600),
        ("/run/flexvol/lock".into(), 0o700),
    ] {
        let found = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(found & 0o7777, mode);
    }
    lock::volume(&any_volume(), SHORT)
        .unwrap()
        .retire()
        .unwrap();
    drop(guard);
    lock::volume(&volume, SHORT).unwrap().retire().unwrap();
    assert!(!file_of(&volume).exists());
}

fn orphan(_: &Points) {
    let volume = any_volume();
    let guard = lock::volume(&volume, SHORT).unwrap();
    let limits = Limits {
        deadline: SHORT,
        at_deadline: AtDeadline::Leave,
        hold: &[guard.as_fd()],
    };
    let error = Tool::find("sleep")
        .unwrap()
        .run(&["1".as_ref()], &limits)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // What a killed process does too: its descriptors are closed.
    drop(guard);
    assert_eq!(
        lock::volume(&volume, SHORT).unwrap_err().kind(),
        ErrorKind::Busy
    );
    lock::volume(&volume, LONG).unwrap().retire().unwrap();
}

/// As lvm does.
fn closing_orphan(points: &Points) {
    let script = |rest: &str| {
        format!(
            "for fd in /proc/$$/fd/*; do n=${{fd##*/}}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; {rest}"
        )
    };
    let volume = any_volume();
    let guard = lock::volume(&volume, SHORT).unwrap();
    let hold = [guard.as_fd()];
    let run = |rest: &str, deadline, at_deadline| {
        let limits = Limits {
            deadline,
            at_deadline,
            hold: &hold,
        };
        let script = script(rest);
        Tool::find("bash")
            .unwrap()
            .that_closes_descriptors()
            .run(&["-c".as_ref(), script.as_ref()], &limits)
    };
    for (rest, code) in [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 137)] {
        let output = run(rest, LONG, AtDeadline::Kill).unwrap();
        assert_eq!(output.status.code(), Some(code), "{rest}");
        points.add(1);
    }
    let error = run("exec sleep 60", SHORT, AtDeadline::Kill).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let error = run("exec sleep 1", SHORT, AtDeadline::Leave).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(guard);
    assert_eq!(
        lock::volume(&volume, SHORT).unwrap_err().kind(),
        ErrorKind::Busy
    );
    // Sooner than the one that was to be killed would have let go.
    lock::volume(&volume, LONG).unwrap().retire().unwrap();
}

/// A process that has ended and nobody waits for; what it left has the lock of the file.
struct Ended {
    process: Child,
    holder: Pid,
}

impl Ended {
    fn on(path: &Path) -> Self {
        let mut process = Command::new("flock")
            .arg("--no-fork")
            .arg(path)
            .args(["sh", "-c", "sleep 60 & echo $!"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let holder = Pid::from_raw(line.trim().parse().unwrap());
        let stat = format!("/proc/{}/stat", process.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            thread::sleep(Duration::from_millis(5));
        }
        Ended { process, holder }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        kill(self.holder, Signal::SIGKILL).unwrap();
        self.process.wait().unwrap();
    }
}

/// Everybody may have a file of the same inode number on a file system of his own.
fn strangers_inode(_: &Points) {
    let elsewhere = || {
        leave_mounts().unwrap();
        let volume = any_volume();
        lock::volume(&volume, SHORT).unwrap();
        let inode = fs::metadata(file_of(&volume)).unwrap().ino();
        let place = tempfile::tempdir().unwrap();
        let options = Some("size=1m");
        mount(
            Some("none"),
            place.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        )
        .unwrap();
        let names = (0..=inode).map(|number| place.path().join(number.to_string()));
        let file = names
            .map(|name| (fs::write(&name, "").unwrap(), name).1)
            .find(|name| fs::metadata(name).unwrap().ino() == inode)
            .unwrap();
        // Of the locks that were taken on one processor, /proc/locks has the last one first.
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).unwrap();
        let mut one = CpuSet::new();
        let processor = (0..CpuSet::count()).find(|&number| allowed.is_set(number).unwrap());
        one.set(processor.unwrap()).unwrap();
        sched_setaffinity(this, &one).unwrap();
        let guard = lock::volume(&volume, SHORT).unwrap();
        let ended = Ended::on(&file);
        let error = lock::to_unmount(&volume, BEYOND_GRACE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
        let error = lock::volume(&volume, BEYOND_GRACE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
        drop(ended);
        guard.retire().unwrap();
    };
    thread::scope(|scope| scope.spawn(elsewhere).join()).unwrap();
}

fn zombie(_: &Points) {
    let volume = any_volume();
    drop(lock::volume(&volume, SHORT).unwrap());
    let ended = Ended::on(&file_of(&volume));
    assert_eq!(lock::holder(&volume).unwrap(), Some(lock::Holder::Unknown));
    let error = lock::to_unmount(&volume, BEYOND_GRACE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
    drop(ended);
    lock::volume(&volume, LONG).unwrap().retire().unwrap();
    assert_eq!(lock::holder(&volume).unwrap(), None);
}

fn hint(_: &Points) {
    let volume = any_volume();
    let guard = lock::volume(&volume, SHORT).unwrap();
    assert_eq!(guard.hint(), None);
    for minor in [0, u32::MAX, 7] {
        guard.set_hint(minor);
        assert_eq!(guard.hint(), Some(minor));
    }
    drop(guard);
    let guard = lock::volume(&volume, SHORT).unwrap();
    assert_eq!(guard.hint(), Some(7));
    for garbage in ["", "\n", "-1", "seven", "99999999999", "7\u{e9}"] {
        fs::write(file_of(&volume), garbage).unwrap();
        assert_eq!(guard.hint(), None, "{garbage:?}");
    }
    guard.retire().unwrap();
}

/// The file is unlinked again and again while others wait for it.
fn retired(points: &Points) {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 100;
    let volume = any_volume();
    let (held, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let guard = lock::volume(&volume, LONG).unwrap();
                    assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                    taken.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    held.store(false, Ordering::SeqCst);
                    if round % 2 == 0 {
                        guard.retire().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), THREADS * ROUNDS);
    points.add(THREADS * ROUNDS);
    lock::volume(&volume, SHORT).unwrap().retire().unwrap();
}

/// The directory of locks with room for so many inodes, its own among them.
fn make_room(inodes: u32, flags: MsFlags) -> nix::Result<()> {
    let options = format!("nr_inodes={inodes}");
    let none = Some("none");
    mount(
        none,
        "/run/flexvol/lock",
        Some("tmpfs"),
        flags,
        Some(options.as_str()),
    )
}

fn without_room(points: &Points) {
    // Its own mounts are those of a thread and of the threads it starts.
    let elsewhere = || {
        leave_mounts().unwrap();
        fs::create_dir_all("/run/flexvol/lock").unwrap();
        make_room(1, MsFlags::empty()).unwrap();
        one_without_a_file();
        points.add(1);
        many_with_and_without(points);
    };
    thread::scope(|scope| scope.spawn(elsewhere).join()).unwrap();
}

fn one_without_a_file() {
    let kind = |taken: flexvol_sdk::Result<lock::Guard>| taken.unwrap_err().kind();
    let volume = any_volume();
    assert_eq!(kind(lock::volume(&volume, SHORT)), ErrorKind::Exhausted);
    let guard = lock::to_unmount(&volume, SHORT).unwrap();
    assert_eq!(guard.hint(), None);
    guard.set_hint(7);
    assert_eq!(kind(lock::to_unmount(&volume, SHORT)), ErrorKind::Busy);
    // There is room for a file now, and still nobody can make one.
    make_room(9, MsFlags::MS_REMOUNT).unwrap();
    for take in [lock::volume, lock::to_unmount] {
        assert_eq!(kind(take(&volume, SHORT)), ErrorKind::Busy);
    }
    assert!(!file_of(&volume).exists());
    drop(guard);
    let guard = lock::volume(&volume, SHORT).unwrap();
    // Where there is a file it is the lock, also when there is no more room.
    make_room(2, MsFlags::MS_REMOUNT).unwrap();
    assert_eq!(kind(lock::to_unmount(&volume, SHORT)), ErrorKind::Busy);
    drop(guard);
    lock::to_unmount(&volume, SHORT).unwrap().retire().unwrap();
}

/// The file goes and comes, and so does the room for it.
fn many_with_and_without(points: &Points) {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 100;
    let volume = any_volume();
    let (held, taken, left) = (
        AtomicBool::new(false),
        AtomicU64::new(0),
        AtomicU64::new(THREADS),
    );
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (held, taken, left) = (&held, &taken, &left);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let guard = match number % 2 {
                        0 => lock::to_unmount(&volume, LONG),
                        _ => lock::volume(&volume, LONG),
                    };
                    let guard = match guard {
                        Ok(guard) => guard,
                        Err(error) if number % 2 == 1 => {
                            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                    taken.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    held.store(false, Ordering::SeqCst);
                    if round % 2 == 0 {
                        guard.retire().unwrap();
                    }
                }
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for inodes in (1..=9).rev().cycle() {
            if left.load(Ordering::SeqCst) == 0 {
                break;
            }
            // Not below what there is.
            let _ = make_room(inodes, MsFlags::MS_REMOUNT);
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(taken.into_inner() >= THREADS / 2 * ROUNDS);
    points.add(THREADS * ROUNDS);
}
