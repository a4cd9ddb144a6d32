//! The lock of a volume, between threads and between processes.

use flexvol_host::{
    exec::{AtDeadline, Limits, Tool},
    lock,
    uuid::Uuid,
};
use flexvol_sdk::{ErrorKind, Handle};
use flexvol_testing::{Need, Points, Test};
use std::{
    fs,
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

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
];

pub fn handle() -> Handle {
    Handle::from_bytes(*Uuid::random().unwrap().as_bytes())
}

fn file_of(handle: &Handle) -> PathBuf {
    Path::new("/run/flexvol/lock").join(handle.to_string())
}

fn one_holder(_: &Points) {
    let handle = handle();
    let guard = lock::volume(&handle, SHORT).unwrap();
    let asked = Instant::now();
    let error = lock::volume(&handle, SHORT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(asked.elapsed() >= SHORT && asked.elapsed() < LONG);
    let holder = format!("process {}", std::process::id());
    assert!(error.report().ends_with(&holder), "{}", error.report());
    assert!(!error.to_string().contains("process"), "{error}");

    for (path, mode) in [
        (file_of(&handle), 0o600),
        ("/run/flexvol/lock".into(), 0o700),
    ] {
        let found = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(found & 0o7777, mode);
    }
    lock::volume(&self::handle(), SHORT)
        .unwrap()
        .retire()
        .unwrap();
    drop(guard);
    lock::volume(&handle, SHORT).unwrap().retire().unwrap();
    assert!(!file_of(&handle).exists());
}

fn orphan(_: &Points) {
    let handle = handle();
    let guard = lock::volume(&handle, SHORT).unwrap();
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
        lock::volume(&handle, SHORT).unwrap_err().kind(),
        ErrorKind::Busy
    );
    lock::volume(&handle, LONG).unwrap().retire().unwrap();
}

/// As lvm does.
fn closing_orphan(points: &Points) {
    let script = |rest: &str| {
        format!(
            "for fd in /proc/$$/fd/*; do n=${{fd##*/}}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; {rest}"
        )
    };
    let handle = handle();
    let guard = lock::volume(&handle, SHORT).unwrap();
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
        lock::volume(&handle, SHORT).unwrap_err().kind(),
        ErrorKind::Busy
    );
    // Sooner than the one that was to be killed would have let go.
    lock::volume(&handle, LONG).unwrap().retire().unwrap();
}

fn hint(_: &Points) {
    let handle = handle();
    let guard = lock::volume(&handle, SHORT).unwrap();
    assert_eq!(guard.hint(), None);
    for minor in [0, u32::MAX, 7] {
        guard.set_hint(minor);
        assert_eq!(guard.hint(), Some(minor));
    }
    drop(guard);
    let guard = lock::volume(&handle, SHORT).unwrap();
    assert_eq!(guard.hint(), Some(7));
    for garbage in ["", "\n", "-1", "seven", "99999999999", "7\u{e9}"] {
        fs::write(file_of(&handle), garbage).unwrap();
        assert_eq!(guard.hint(), None, "{garbage:?}");
    }
    guard.retire().unwrap();
}

/// The file is unlinked again and again while others wait for it.
fn retired(points: &Points) {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 100;
    let handle = handle();
    let (held, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let guard = lock::volume(&handle, LONG).unwrap();
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
    lock::volume(&handle, SHORT).unwrap().retire().unwrap();
}
