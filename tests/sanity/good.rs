//! Our own drivers pass every must and should check that applies to them.

use crate::{
    applicable::{
        ALWAYS_HERE, DIRECTORIES, GROUPED, NAMELESS, NOT_ATTACHED, Reason, WITHOUT_LIMITS,
    },
    executable,
    found::passes,
    tester::{list, run, run_through},
};
use flexvol_testing::{Need, Points, PoolFilesystem, Sandbox, patience, tests};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("losetup", "mount"),
];

const ON_BTRFS: &[Need] = &[
    Need::Root,
    Need::Filesystem("btrfs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
    Need::Tool("losetup", "mount"),
];

tests! {
    "the loop driver passes", NEEDS
        => |points| looped(false, &[NAMELESS, GROUPED, NOT_ATTACHED], points);
    "the loop driver with attach passes", NEEDS
        => |points| looped(true, &[NAMELESS, GROUPED, ALWAYS_HERE], points);
    "the dir driver passes", ON_BTRFS => directories;
    "hello-block passes", NEEDS
        => |points| hello("hello-block", &[NAMELESS, GROUPED, NOT_ATTACHED], points);
    "hello-directory passes", NEEDS => |points| {
            hello(
                "hello-directory",
                &[NAMELESS, NOT_ATTACHED, DIRECTORIES, WITHOUT_LIMITS],
                points,
            )
        };
    "the driver of the tests with Kubernetes keeps what has grown", NEEDS => plain;
    "an ordinary user runs what needs no root, and is told what was left", &[Need::Root, Need::Tool("setpriv", "util-linux")]
        => ordinary;
}

/// Limit for a run on one of our drivers as root on two cores. With attach there are more calls.
const THREE_MINUTES: Duration = Duration::from_secs(180);

fn configuration(sandbox: &Sandbox, kind: &str) -> String {
    let pool = sandbox.pool();
    let content = match kind {
        "block" => format!(
            "content = \"{}/volumes/{{handle:sha256:32}}\"",
            pool.display()
        ),
        _ => String::new(),
    };
    format!("writes = [{pool:?}]\n[volume]\nkind = \"{kind}\"\n{content}\n")
}

fn sandbox() -> Sandbox {
    let large = PoolFilesystem {
        mebibytes: 8192,
        ..Default::default()
    };
    Sandbox::with_pool_on(&executable(), large)
}

fn looped(attach: bool, lists: &[&[Reason]], points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", attach, "");
    let configuration = configuration(&sandbox, "block");
    let started = Instant::now();
    let found = run(driver.executable(), sandbox.root(), &configuration, &[]);
    let took = started.elapsed();
    assert!(
        attach || took < THREE_MINUTES * patience(),
        "it took {took:?}"
    );
    let names: Vec<_> = list().into_iter().map(|(name, _)| name).collect();
    assert_eq!(found.all(), names, "every check is in the report");
    passes(&found, lists, &["fmt.unreadable-refused"], points);
}

/// Runs on btrfs, the only file system with limits for directories on any machine.
fn directories(points: &Points) {
    let filesystem = PoolFilesystem {
        kind: "btrfs",
        mebibytes: 8192,
        quotas: true,
    };
    let sandbox = Sandbox::with_pool_on(&executable(), filesystem);
    let pool = sandbox.pool();
    let driver = format!(
        "backend = \"dir\"\n[pools.default]\npath = \"{}\"\n",
        pool.display()
    );
    let driver = sandbox.install_with("example.com/disk", &driver);
    let configuration = format!("size = \"64Mi\"\n{}", configuration(&sandbox, "directory"));
    let found = run(driver.executable(), sandbox.root(), &configuration, &[]);
    let lists: &[&[Reason]] = &[NAMELESS, NOT_ATTACHED, DIRECTORIES];
    passes(&found, lists, &["fmt.unreadable-refused"], points);
}

/// Installs the driver as a vendor does.
fn hello(name: &str, lists: &[&[Reason]], points: &Points) {
    let sandbox = sandbox();
    let directory = sandbox.plugins().join(format!("example.com~{name}"));
    fs::create_dir(&directory).unwrap();
    fs::copy(executable().with_file_name(name), directory.join(name)).unwrap();
    symlink(sandbox.pool(), directory.join(".pool")).unwrap();
    let kind = name.strip_prefix("hello-").unwrap();
    let configuration = configuration(&sandbox, kind);
    let found = run(&directory.join(name), sandbox.root(), &configuration, &[]);
    passes(&found, lists, &["fmt.unreadable-refused"], points);
}

/// Its volumes have no file system to grow, so of growth only `expandvolume` is checked.
fn plain(points: &Points) {
    let sandbox = sandbox();
    let directory = sandbox.plugins().join("lab.example~plain");
    fs::create_dir(&directory).unwrap();
    let script = include_str!("../kubernetes/plain.sh");
    let place = sandbox.pool();
    let script = script.replace("/var/lib/lab/plain", place.to_str().unwrap());
    let driver = directory.join("plain");
    fs::write(&driver, script).unwrap();
    fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).unwrap();
    let configuration = configuration(&sandbox, "directory");
    let check = "exp.volume-never-shrinks";
    let found = run(
        &driver,
        sandbox.root(),
        &configuration,
        &["--filter", check],
    );
    passes(&found, &[], &[], points);
    assert!(found.which("passed").contains_key(check));
}

fn ordinary(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", false, "");
    let config = sandbox.path("sanity.toml");
    fs::write(&config, configuration(&sandbox, "block")).unwrap();
    for path in [
        sandbox.root(),
        &sandbox.plugins(),
        driver.executable().parent().unwrap(),
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let journals = config.with_file_name("journals");
    fs::create_dir(&journals).unwrap();
    chown(&journals, Some(65534), Some(65534)).unwrap();
    let through = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let path: &Path = driver.executable();
    let beside: PathBuf = sandbox.path("flexvol-sanity");
    fs::copy(executable().with_file_name("flexvol-sanity"), &beside).unwrap();
    let found = run_through(&through, path, &config, &[]);
    assert_eq!(found.exit, 3, "nothing failed, something was left");
    assert!(found.failed().is_empty(), "{:?}", found.failed());
    let (passed, none) = (found.which("passed"), found.which("not-applicable"));
    let left = found.which("left");
    for (name, needs) in list() {
        let name = name.as_str();
        if needs == "nothing" {
            let ran = passed.contains_key(name) || none.contains_key(name);
            assert!(ran, "needs nothing: {}", found.about(name));
        } else if needs.starts_with("root") {
            assert!(left.contains_key(name), "needs root: {}", found.about(name));
        }
    }
    assert_eq!(left.get("mnt.happy-rw-data"), Some(&"needs root"));
    assert!(
        left.values().all(|why| why.starts_with("needs ")),
        "{left:?}"
    );
    points.add(3);
}
