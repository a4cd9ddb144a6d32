//! A pool on a server that does not answer any more, beside a healthy one.

use crate::sandbox;
use flexvol_testing::{Driver, Need, Points, Sandbox, patience, tests};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File, OpenOptions},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

tests! {
    "list, show, explain, gc, create, doctor: a pool that does not answer is named, and keeps nobody from the others",
        &[Need::Root, Need::Filesystem("fuse"), Need::Tool("timeout", "coreutils"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => named;
}

/// A FUSE file system without a server: every access blocks until this is dropped.
struct Silent {
    directory: PathBuf,
    device: Option<File>,
}

impl Silent {
    fn over(directory: &Path) -> Silent {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let [source, kind] = ["silent", "fuse"].map(Some);
        let options = Some(options.as_str());
        mount(source, directory, kind, MsFlags::empty(), options).unwrap();
        Silent {
            directory: directory.to_owned(),
            device: Some(device),
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Blocked processes get an error that the server has gone.
        self.device = None;
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
    }
}

fn install(sandbox: &Sandbox) -> (Driver, PathBuf) {
    let silent = sandbox.path("silent");
    let [first, well] = [silent.join("pool"), sandbox.pool()];
    sandbox.make_pool(&first);
    let text = format!(
        "backend = \"loop\"\n[pools.a]\npath = {first:?}\n[pools.default]\npath = {well:?}\n"
    );
    (sandbox.install_with("flexvol.test/disk", &text), silent)
}

fn run(driver: &Driver, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    let seconds = (12 * patience()).to_string();
    command.args(["--signal=KILL", &seconds]);
    command.arg(driver.executable()).args(arguments);
    command.output().unwrap()
}

fn named(points: &Points) {
    const A: &str = "pool a: the pool does not answer";
    let sandbox = sandbox();
    let (driver, silent) = install(&sandbox);
    let create = ["create", "data", "--size", "300Mi"];
    assert!(run(&driver, &create).status.success());
    let names = sandbox.pool().join("names");
    let before = fs::read_dir(&names).map(Iterator::count).ok();
    let silent = Silent::over(&silent);
    // The verbs wait in parallel.
    let plugins = sandbox.plugins();
    let plugins = plugins.to_str().unwrap();
    let verbs: [(&[&str], i32, &[&str]); 8] = [
        (
            &["doctor", "--plugin-dir", plugins],
            1,
            &["silent/pool does not answer", "volumes: 1"],
        ),
        (&["list"], 1, &["data ", A]),
        (&["list", "--pool", "default"], 0, &["data "]),
        (&["show", "data"], 0, &["data"]),
        (&["explain", "data"], 0, &["To grow it"]),
        (&["gc"], 1, &[A]),
        // The content of a pool that does not answer is unknown.
        (&["show", "other"], 1, &[A]),
        (&["create", "other", "--size", "300Mi"], 1, &[A]),
    ];
    thread::scope(|scope| {
        for (arguments, code, words) in verbs {
            let driver = &driver;
            scope.spawn(move || {
                let output = run(driver, arguments);
                let text = [&output.stdout[..], &output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
                for word in words {
                    assert!(text.contains(word), "no {word:?} of {arguments:?}: {text}");
                }
                points.add(1);
            });
        }
    });
    drop(silent);
    assert_eq!(fs::read_dir(&names).map(Iterator::count).ok(), before);
    let listed = run(&driver, &["list"]);
    assert!(listed.status.success(), "{listed:?}");
}
