//! The tests' own guards: dropping a sandbox removes everything in it, and the baseline detects leftovers.

use crate::sandbox;
use flexvol_testing::{Baseline, Hidden, Need, Points, Sandbox, below, older_kernel, tests};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

tests! {
    "a sandbox leaves nothing behind, also after a panic", &[Need::Root] => sandbox_leaves_nothing;
    "the baseline names a loop, a mount and a file that stay", &[Need::Root]
        => baseline_names_debris;
    "an older kernel lacks openat2, and this one does not", &[Need::Root] => lacks_a_call;
    "a program that is hidden is not there, others are, and it comes back", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => hides;
}

/// Mounts an image of the pool from a loop device without autoclear.
fn debris(sandbox: &Sandbox) -> PathBuf {
    let image = sandbox.pool().join("debris");
    fs::write(&image, vec![0; 8 << 20]).unwrap();
    let dir = sandbox.path("debris");
    fs::create_dir(&dir).unwrap();
    let done = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let found = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(&image)
        .output()
        .unwrap();
    let device = String::from_utf8(found.stdout).unwrap();
    done(Command::new("mount").arg(device.trim()).arg(&dir));
    dir
}

fn sandbox_leaves_nothing(_: &Points) {
    let mut root = PathBuf::new();
    let mut ready = false;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let sandbox = sandbox();
        root = sandbox.root().to_owned();
        debris(&sandbox);
        ready = true;
        resume_unwind(Box::new("as a failing test does"));
    }));
    assert!(panicked.is_err() && ready);
    assert_eq!(below(&root), [], "mounts of the sandbox");
    assert!(!root.exists(), "the sandbox's directory");
    // Mount namespaces of other tests hold copies of the sandbox's mounts for a moment.
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let loops = Command::new("losetup")
            .args(["-n", "-O", "BACK-FILE"])
            .output()
            .unwrap();
        let loops = String::from_utf8(loops.stdout).unwrap();
        let mut files = loops.lines().map(Path::new);
        if !files.any(|file| file.starts_with(&root)) {
            break;
        }
        assert!(Instant::now() < deadline, "loops of the sandbox: {loops}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn baseline_names_debris(points: &Points) {
    let sandbox = sandbox();
    let before = Baseline::of(&sandbox);
    let dir = debris(&sandbox);
    let difference = before.difference(&Baseline::of(&sandbox));
    for expected in [
        "+ mount ext4 on debris rw",
        "+ file debris 8388608 bytes",
        "+ loop on a volume, stays",
        "- blocks and inodes free",
    ] {
        assert!(
            difference.contains(expected),
            "no {expected:?} in:\n{difference}"
        );
        points.add(1);
    }
    assert!(
        Command::new("umount")
            .arg("-d")
            .arg(dir)
            .status()
            .unwrap()
            .success()
    );
    fs::remove_file(sandbox.pool().join("debris")).unwrap();
    before.expect(&sandbox, "undone");
}

fn hides(_: &Points) {
    let starts = |program: &str| Command::new(program).arg("-V").output().is_ok();
    let all = ["mkfs.ext4", "resize2fs", "blkid"];
    assert_eq!(all.map(starts), [true, true, true]);
    let hidden = Hidden::tools(&["mkfs.ext4", "resize2fs", "no-such-program"]);
    assert_eq!(all.map(starts), [false, false, true]);
    let again = Hidden::tools(&["blkid"]);
    assert_eq!(all.map(starts), [false, false, false]);
    drop(again);
    drop(hidden);
    assert_eq!(all.map(starts), [true, true, true]);
}

fn lacks_a_call(_: &Points) {
    let opened = openat2(CWD, "/", OFlags::PATH, Mode::empty(), ResolveFlags::empty());
    assert_eq!(opened.err() == Some(Errno::NOSYS), older_kernel());
}
