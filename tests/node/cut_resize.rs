//! An ext4 whose `resize2fs` was interrupted, and one with other damage.

use crate::bench::{Begun, Bench, attach, guard, make, mount, patiently, resize, run, unmount};
use crate::node::MIB;
use flexvol_host::{block::device::Device, fs::grow};
use flexvol_sdk::{ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, Random, budget, tests};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("resize2fs", "e2fsprogs"),
    Need::Tool("strace", "strace"),
];

tests! {
    "a resize2fs that was killed at any write is completed by the next growth", NEEDS => killed;
    "damage that e2fsck leaves for a person stays as it is, however often a growth is asked for", NEEDS
        => damaged;
}

/// Makes an unmounted file system with two files in an image.
fn filled(bench: &Bench) -> (PathBuf, Vec<u8>) {
    let image = bench.image(64);
    let device = attach(&image);
    make(&device, Filesystem::Ext4, false);
    let directory = bench.directory("filled");
    mount(&device, Filesystem::Ext4, &directory, false);
    let content: Vec<u8> = (0..3 * MIB).map(|i| (i % 251) as u8).collect();
    for name in ["precious", "other"] {
        fs::write(directory.join(name), &content).unwrap();
    }
    assert!(unmount(&directory));
    (image, content)
}

/// Copies it to a larger device of its own.
fn larger(bench: &Bench, image: &Path) -> Device {
    let copy = bench.image(64);
    run("cp", ["--sparse=always".as_ref(), image.as_os_str()], &copy);
    let device = attach(&copy);
    resize(&device, &copy, 192 * MIB);
    device
}

fn traced(inject: &[&str], device: &Device) -> Output {
    Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=pwrite64"])
        .args(inject)
        .arg("resize2fs")
        .arg(device.path())
        .output()
        .unwrap()
}

/// The damage by an interrupted `resize2fs` that `e2fsck -p` does not repair.
fn lacks_resize_inode(device: &Device) -> bool {
    let checked = Command::new("e2fsck")
        .args(["-f", "-n"])
        .arg(device.path())
        .output()
        .unwrap();
    String::from_utf8_lossy(&checked.stdout).contains("Resize inode not valid")
}

fn expect_content(bench: &Bench, device: &Device, content: &[u8], name: &str) {
    let directory = bench.directory(name);
    mount(device, Filesystem::Ext4, &directory, true);
    for name in ["precious", "other"] {
        assert_eq!(fs::read(directory.join(name)).unwrap(), content);
    }
    assert!(unmount(&directory));
}

fn killed(points: &Points) {
    let bench = Bench::new();
    let (image, content) = filled(&bench);
    let whole = traced(&[], &larger(&bench, &image));
    assert!(whole.status.success(), "{whole:?}");
    let said = String::from_utf8_lossy(&whole.stderr);
    let mut order: Vec<usize> = (1..=said.matches("pwrite64(").count()).collect();
    Random::new(budget().seed).shuffle(&mut order);

    let (started, mut half_written) = (Instant::now(), 0);
    for nth in order {
        if half_written > 0 && !budget().allows(started) {
            break;
        }
        let device = larger(&bench, &image);
        let inject = format!("inject=pwrite64:signal=KILL:when={nth}");
        let ended = traced(&["-e", &inject], &device);
        assert!(
            !ended.status.success(),
            "resize2fs writes less than {nth} times now"
        );
        half_written += u64::from(lacks_resize_inode(&device));
        patiently(|| grow::offline(&device, Filesystem::Ext4, &Begun, &guard()));
        run("e2fsck", ["-f".as_ref(), "-n".as_ref()], device.path());
        expect_content(&bench, &device, &content, &format!("killed-{nth}"));
        points.add(1);
    }
    assert!(half_written > 0, "no resize inode was left half written");
}

/// A wrong word in an inode with intact blocks: `e2fsck -y` would clear the inode.
fn damaged(points: &Points) {
    let bench = Bench::new();
    let (image, _) = filled(&bench);
    let device = larger(&bench, &image);
    debugfs(
        &["-w", "-R", "set_inode_field precious block[0] 0"],
        &device,
    );
    let before = fs::read(device.path()).unwrap();
    for _ in 0..3 {
        let error = grow::offline(&device, Filesystem::Ext4, &Begun, &guard()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{}", error.report());
        assert!(fs::read(device.path()).unwrap() == before, "changed");
        points.add(1);
    }
}

fn debugfs(words: &[&str], device: &Device) {
    let ended = Command::new("debugfs")
        .args(words)
        .arg(device.path())
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
}
