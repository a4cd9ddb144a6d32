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

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Filesystem("fuse"),
    Need::Tool("timeout", "coreutils"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
];

tests! {
    "list, show, explain, gc, create, doctor: a pool that does not answer is named, and keeps nobody from the others", NEEDS
        => named;
    "create in a pool that was named does not need the others, and adopt does where it may take a copy", NEEDS
        => chosen;
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

fn chosen(points: &Points) {
    const UNKNOWN: &str = "it is not known whether";
    let sandbox = sandbox();
    let (driver, silent) = install(&sandbox);
    let image = sandbox.disk().join("image");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let made = Command::new("mkfs.xfs").arg("-q").arg(&image).status();
    assert!(made.unwrap().success());
    let blank = sandbox.disk().join("blank");
    File::create(&blank).unwrap().set_len(300 << 20).unwrap();
    let silent = Silent::over(&silent);
    let [image, blank] = [&image, &blank].map(|path| path.to_str().unwrap());
    let into = ["--pool", "default"];
    let verbs: [(&[&str], bool, &[&str]); 3] = [
        (
            &["create", "data", "--size", "300Mi"],
            true,
            &["another pool has a volume called data", "pool a: "],
        ),
        // Of two with the same UUID one could not be mounted, or would take the other's place.
        (
            &["adopt", image, "--name", "copy"],
            false,
            &["a volume in pool a holds the same file system"],
        ),
        (&["adopt", blank, "--name", "blank", "--format"], true, &[]),
    ];
    for (arguments, succeeds, words) in verbs {
        let output = run(&driver, &[arguments, &into].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), succeeds, "{arguments:?}: {text}");
        assert_eq!(text.contains(UNKNOWN), !words.is_empty(), "{text}");
        for word in words {
            assert!(text.contains(word), "no {word:?} of {arguments:?}: {text}");
        }
        points.add(1);
    }
    drop(silent);
    let shown = run(&driver, &["show", "data", "--output", "json"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("\"pool\": \"default\""), "{text}");
    // Now that it is known.
    let adopted = run(
        &driver,
        &[&["adopt", image, "--name", "copy"], &into[..]].concat(),
    );
    assert!(adopted.status.success(), "{adopted:?}");
    points.add(2);
}
