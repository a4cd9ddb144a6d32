//! The lock of a volume: it has one holder, even if its file is removed or cannot be created.

pub mod orphan;

use flexvol_host::{VolumeId, lock};
use flexvol_sdk::{ErrorKind, Handle};
use flexvol_testing::{Need, Points, leave_mounts, tests};
use nix::mount::{MsFlags, mount};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

tests! {
    "a volume's lock has one holder, and the next waits no longer than told", &[Need::Root]
        => one_holder;
    "the loop hint is kept, replaced and doubted", &[Need::Root] => hint;
    "a lock whose file goes with its volume still has one holder", &[Need::Root] => retired;
    "who unmounts where no lock can be made is alone all the same", &[Need::Root] => without_room;
}

pub fn any_volume() -> VolumeId {
    VolumeId::of(&Handle::random().unwrap())
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

/// The file is unlinked again and again while other threads wait for it.
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

/// Limits the directory of locks to so many inodes, its own among them.
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
    // A mount namespace belongs to a thread and to the threads that it starts.
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
    // There is a free inode now, but nobody can create the file while the lock is held without one.
    make_room(9, MsFlags::MS_REMOUNT).unwrap();
    for take in [lock::volume, lock::to_unmount] {
        assert_eq!(kind(take(&volume, SHORT)), ErrorKind::Busy);
    }
    assert!(!file_of(&volume).exists());
    drop(guard);
    let guard = lock::volume(&volume, SHORT).unwrap();
    // An existing file is the lock, even without free inodes.
    make_room(2, MsFlags::MS_REMOUNT).unwrap();
    assert_eq!(kind(lock::to_unmount(&volume, SHORT)), ErrorKind::Busy);
    drop(guard);
    lock::to_unmount(&volume, SHORT).unwrap().retire().unwrap();
}

/// Lock file and free inodes appear and disappear.
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
            // Fails if more inodes are in use.
            let _ = make_room(inodes, MsFlags::MS_REMOUNT);
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(taken.into_inner() >= THREADS / 2 * ROUNDS);
    points.add(THREADS * ROUNDS);
}
