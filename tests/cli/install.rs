//! Installing and uninstalling, as kubelet's watcher and a person see it.

use crate::flexvol;
use assert_cmd::assert::{Assert, OutputAssertExt};
use flexvol_testing::{Need, Points, Test, arena};
use nix::{
    mount::{MsFlags, mount, umount},
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub const TESTS: &[Test] = &[
    Test {
        name: "install: kubelet sees one event, of a complete driver",
        needs: &[Need::Root],
        run: first_installation,
    },
    Test {
        name: "install: a second time changes nothing",
        needs: &[Need::Root],
        run: second_time,
    },
    Test {
        name: "install: the executable is replaced last, and again when attach changes",
        needs: &[Need::Root],
        run: upgrade,
    },
    Test {
        name: "install: what was cut is completed",
        needs: &[Need::Root],
        run: leftovers,
    },
    Test {
        name: "install: a mistake in the configuration is named and nothing is written",
        needs: &[Need::Root],
        run: mistakes,
    },
    Test {
        name: "install: names are those that Kubernetes accepts",
        needs: &[],
        run: names,
    },
    Test {
        name: "install: attach does not change while volumes are mounted, and nothing is uninstalled",
        needs: &[Need::Root],
        run: while_mounted,
    },
    Test {
        name: "install: a line for init that was lost or damaged is written again, as kubelet was told",
        needs: &[Need::Root],
        run: damaged_line,
    },
    Test {
        name: "install: an empty configuration is refused",
        needs: &[Need::Root],
        run: empty_configuration,
    },
    Test {
        name: "install: a configuration that was lost is told, and not replaced by the defaults",
        needs: &[Need::Root],
        run: lost_configuration,
    },
    Test {
        name: "install --watch: repairs the driver until it is told to stop",
        needs: &[Need::Root],
        run: watch,
    },
    Test {
        name: "uninstall: removes what install wrote, and nothing else",
        needs: &[Need::Root],
        run: uninstall,
    },
];

const NAME: &str = "example.com/flexvol";

/// A plugin directory and configurations.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir_in(arena()).expect("a directory");
        fs::create_dir(root.path().join("plugins")).expect("a plugin directory");
        Node(root)
    }

    fn plugins(&self) -> PathBuf {
        self.0.path().join("plugins")
    }

    fn home(&self) -> PathBuf {
        self.plugins().join("example.com~flexvol")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home().join(name)
    }

    fn configuration(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("config.toml");
        fs::write(&path, text).expect("write the configuration");
        path
    }

    fn run(&self, verb: &str, more: &[&str]) -> Assert {
        let mut command = flexvol();
        command.args([verb, "--name", NAME, "--plugin-dir"]);
        command.arg(self.plugins()).args(more).assert()
    }

    fn install(&self, configuration: &str) -> Assert {
        let path = self.configuration(configuration);
        self.run("install", &["--config", path.to_str().unwrap()])
    }

    /// Device, inode and time of each file: what changes when a file is replaced or written.
    fn identities(&self) -> Vec<(String, u64, i64, i64)> {
        let mut files: Vec<_> = fs::read_dir(self.home())
            .expect("list the driver's directory")
            .map(|entry| {
                let entry = entry.expect("list the driver's directory");
                let metadata = entry.metadata().expect("stat");
                let name = entry.file_name().into_string().expect("a plain name");
                (
                    name,
                    metadata.ino(),
                    metadata.ctime(),
                    metadata.ctime_nsec(),
                )
            })
            .collect();
        files.sort();
        files
    }

    fn names(&self) -> Vec<String> {
        self.identities()
            .into_iter()
            .map(|(name, ..)| name)
            .collect()
    }

    fn init(&self) -> String {
        let output = std::process::Command::new(self.file("flexvol"))
            .arg("init")
            .output()
            .expect("run init");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// The names of the events that kubelet does not ignore in a directory, since this was made.
struct Watcher(Inotify);

impl Watcher {
    fn of(directory: &Path) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).expect("inotify");
        // What kubelet asks for (github.com/fsnotify/fsnotify, inotify backend).
        let events = AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_DELETE;
        inotify.add_watch(directory, events).expect("watch");
        Watcher(inotify)
    }

    fn seen(&self) -> Vec<(String, AddWatchFlags)> {
        let mut seen = Vec::new();
        while let Ok(events) = self.0.read_events() {
            for event in events {
                let name = event.name.unwrap_or_default().into_string().unwrap();
                if !name.is_empty() && !name.starts_with('.') {
                    seen.push((name, event.mask & !AddWatchFlags::IN_ISDIR));
                }
            }
        }
        seen
    }
}

fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).expect("text")
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).expect("text")
}

fn first_installation(_: &Points) {
    let node = Node::new();
    let watcher = Watcher::of(&node.plugins());
    node.install("backend = \"loop\"\n").success();
    let once = ("example.com~flexvol".to_owned(), AddWatchFlags::IN_MOVED_TO);
    assert_eq!(watcher.seen(), [once]);
    assert_eq!(node.names(), [".flexvol.init", ".flexvol.toml", "flexvol"]);
    for (path, mode) in [
        (node.home(), 0o755),
        (node.file("flexvol"), 0o755),
        (node.file(".flexvol.toml"), 0o644),
        (node.file(".flexvol.init"), 0o644),
    ] {
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.mode() & 0o7777, mode, "{}", path.display());
        assert_eq!(metadata.uid(), 0);
    }
    let line = fs::read_to_string(node.file(".flexvol.init")).unwrap();
    assert_eq!(node.init(), line);
    assert!(line.contains("\"attach\":false"), "{line}");
}

fn second_time(_: &Points) {
    let node = Node::new();
    node.install("attach = false\n").success();
    let before = node.identities();
    let watcher = Watcher::of(&node.home());
    let again = node.install("attach = false\n").success();
    assert!(stdout(&again).starts_with("unchanged: "), "{again}");
    // The configuration that is there stays where none is given.
    let again = node.run("install", &[]).success();
    assert!(stdout(&again).starts_with("unchanged: "), "{again}");
    assert_eq!(node.identities(), before);
    assert_eq!(watcher.seen(), []);
}

fn upgrade(points: &Points) {
    let node = Node::new();
    node.install("log = \"info\"\n").success();
    let replaced = ("flexvol".to_owned(), AddWatchFlags::IN_MOVED_TO);
    let watcher = Watcher::of(&node.home());

    // A configuration that changes nothing of init is no news to kubelet.
    let assert = node.install("growth = \"offline\"\n").success();
    assert!(
        stdout(&assert).ends_with("written: .flexvol.toml\n"),
        "{assert}"
    );
    assert_eq!(watcher.seen(), []);
    points.add(1);

    // Attach is: the executable that did not change is replaced all the same.
    let assert = node.install("attach = true\n").success();
    let written = "written: .flexvol.toml, .flexvol.init, flexvol\n";
    assert!(stdout(&assert).ends_with(written), "{assert}");
    assert_eq!(watcher.seen(), std::slice::from_ref(&replaced));
    assert!(node.init().contains("\"attach\":true"));
    points.add(1);

    // Another executable, as after an upgrade.
    fs::write(node.file("flexvol"), "another one").unwrap();
    watcher.seen();
    node.run("install", &[]).success();
    assert_eq!(watcher.seen(), [replaced]);
    assert!(node.init().contains("\"attach\":true"));
    assert_eq!(node.names(), [".flexvol.init", ".flexvol.toml", "flexvol"]);
}

fn leftovers(points: &Points) {
    let node = Node::new();
    let stage = node.plugins().join(".example.com~flexvol");
    fs::create_dir(&stage).unwrap();
    fs::write(stage.join("flexvol"), "half").unwrap();
    node.run("install", &[]).success();
    assert!(!stage.exists());
    points.add(1);

    // Cut between the line and the executable: kubelet was never told to ask again.
    let stage = node.file(".staged");
    fs::create_dir(&stage).unwrap();
    fs::write(stage.join("flexvol"), "half").unwrap();
    let assert = node.run("install", &[]).success();
    assert!(stdout(&assert).ends_with("written: flexvol\n"), "{assert}");
    assert!(!stage.exists());
    points.add(1);

    // Kubelet follows no link after its restart.
    let elsewhere = node.0.path().join("elsewhere");
    fs::rename(node.home(), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, node.home()).unwrap();
    let assert = node.run("install", &[]).failure();
    assert!(stderr(&assert).contains("is no directory"), "{assert}");
}

fn mistakes(points: &Points) {
    let node = Node::new();
    for (text, said) in [
        ("backend = \"lop\"\n", "lop"),
        ("attach = \"yes\"\n", "line 1"),
        ("\natach = true\n", "line 2"),
        ("[pools.default]\npath = \"relative\"\n", "absolute"),
        ("= 1\n", "line 1"),
    ] {
        let assert = node.install(text).failure().code(1);
        assert!(stderr(&assert).contains(said), "{text:?}: {assert}");
        assert!(!node.home().exists(), "{text:?}");
        points.add(1);
    }
    node.run("install", &["--config", "/nonexistent"])
        .failure()
        .code(1);
    assert_eq!(fs::read_dir(node.plugins()).unwrap().count(), 0);
}

fn names(points: &Points) {
    for name in ["flexvol", "a/b/c", "UPPER/x", "a/-b", "../x", "a/.."] {
        let mut command = flexvol();
        let assert = command.args(["install", "--name", name]).assert();
        assert.failure().code(2);
        points.add(1);
    }
}

/// A volume that a pod has.
struct Mounted(PathBuf);

impl Mounted {
    fn of(node: &Node) -> Self {
        let pods = node.0.path().join("kubelet/pods/uid/volumes");
        let dir = pods.join("example.com~flexvol/pv");
        fs::create_dir_all(&dir).unwrap();
        let (kind, none) = (Some("tmpfs"), None::<&str>);
        mount(kind, &dir, kind, MsFlags::empty(), none).unwrap();
        Mounted(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        umount(&self.0).expect("unmount the volume");
    }
}

fn damaged_line(points: &Points) {
    let node = Node::new();
    node.install("attach = true\n").success();
    let line = fs::read_to_string(node.file(".flexvol.init")).unwrap();
    let damage = |text: Option<&str>| match text {
        Some(text) => fs::write(node.file(".flexvol.init"), text).unwrap(),
        None => fs::remove_file(node.file(".flexvol.init")).unwrap(),
    };
    let volume = Mounted::of(&node);
    for text in [
        Some(""),
        Some("garbage"),
        Some("{\"status\":\"Success\"}\n"),
        None,
    ] {
        damage(text);
        let assert = node.install("attach = false\n").failure().code(1);
        assert!(stderr(&assert).contains("attach from true"), "{assert}");
        node.run("install", &[]).success();
        let mended = fs::read_to_string(node.file(".flexvol.init")).unwrap();
        assert_eq!(mended, line, "{text:?}");
        points.add(1);
    }

    // What has mistakes by now tells it all the same.
    damage(None);
    fs::write(node.file(".flexvol.toml"), "attach = true\nlargest = 0\n").unwrap();
    let assert = node.install("attach = false\n").failure().code(1);
    assert!(stderr(&assert).contains("attach from true"), "{assert}");

    // The executable alone answers its default.
    fs::remove_file(node.file(".flexvol.toml")).unwrap();
    let assert = node.install("attach = true\n").failure().code(1);
    assert!(stderr(&assert).contains("attach from false"), "{assert}");

    // Nothing tells anything.
    damage(Some(""));
    fs::write(node.file(".flexvol.toml"), "= 1").unwrap();
    let assert = node.install("attach = true\n").success();
    assert!(stderr(&assert).contains("nothing tells"), "{assert}");
    assert_eq!(node.init(), line);
    drop(volume);
}

fn empty_configuration(points: &Points) {
    let node = Node::new();
    for text in ["", " \n\t\n"] {
        let assert = node.install(text).failure().code(1);
        assert!(stderr(&assert).contains("is empty"), "{assert}");
        assert!(!node.home().exists());
        points.add(1);
    }
    node.install("# the defaults\n").success();
    let installed = fs::read_to_string(node.file(".flexvol.toml")).unwrap();
    let (first, rest) = installed.split_once('\n').unwrap();
    assert!(first.starts_with("# Nothing was configured"), "{first}");
    assert_eq!(rest, "# the defaults\n");
    assert!(stdout(&node.install("# the defaults\n").success()).starts_with("unchanged"));
}

fn lost_configuration(points: &Points) {
    let node = Node::new();
    let file = node.file(".flexvol.toml");
    assert_eq!(stderr(&node.run("install", &[]).success()), "");
    let defaults = fs::read_to_string(&file).unwrap();
    for left in [None, Some(""), Some("# cut he")] {
        match left {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        fs::remove_file(node.file("flexvol")).unwrap();
        let assert = node.run("install", &[]).success();
        assert!(stdout(&assert).ends_with("written: flexvol\n"), "{assert}");
        assert!(stderr(&assert).contains("--config FILE"), "{assert}");
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), left);
        node.install("attach = false\n").success();
        points.add(1);
    }
    fs::write(&file, defaults).unwrap();
    assert_eq!(stderr(&node.run("install", &[]).success()), "");
}

fn while_mounted(points: &Points) {
    let node = Node::new();
    node.install("attach = false\n").success();
    let before = node.identities();
    let volume = Mounted::of(&node);
    let changed = node.install("attach = true\n").failure().code(1);
    let removed = node.run("uninstall", &[]).failure().code(1);
    let same = node.install("attach = false\n");
    drop(volume);
    for assert in [changed, removed] {
        let said = stderr(&assert);
        assert!(
            said.contains("mounted") && said.contains("kubectl drain"),
            "{said}"
        );
        points.add(1);
    }
    same.success();
    assert_eq!(node.identities(), before);

    // A mount namespace that another process made meanwhile has the mount too, until that ends.
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.install("attach = true\n").try_success().is_err() {
        assert!(Instant::now() < deadline, "it is mounted nowhere any more");
        thread::sleep(Duration::from_millis(100));
    }
    node.run("uninstall", &[]).success();
}

/// A process that ends with the test.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(points: &Points) {
    let node = Node::new();
    let configuration = node.configuration("attach = false\n");
    let mut command = flexvol();
    command.args([
        "install", "--watch", "--every", "2", "--name", NAME, "--config",
    ]);
    command.arg(configuration).arg("--plugin-dir");
    command.arg(node.plugins()).stdout(Stdio::piped());
    let mut watching = Watching(command.spawn().expect("start"));
    let output = watching.0.stdout.take().expect("its output");
    let mut lines = BufReader::new(output)
        .lines()
        .map(|line| line.expect("text"));
    let mut says = |text: &str| {
        let line = lines.next().expect("a line");
        assert!(line.contains(text), "{line:?} does not say {text:?}");
        points.add(1);
    };
    says("installed ");
    says("watching ");
    fs::remove_file(node.file("flexvol")).unwrap();
    says("written: flexvol");
    fs::remove_dir_all(node.plugins()).unwrap();
    says("written: .flexvol.toml, .flexvol.init, flexvol");
    fs::set_permissions(node.file("flexvol"), fs::Permissions::from_mode(0o600)).unwrap();
    says("written: flexvol");
    // What changes at every look is perhaps half written.
    for line in 0..20 {
        node.configuration(&format!("growth = \"offline\"\n# {line}\n"));
        thread::sleep(Duration::from_millis(250));
        let installed = fs::read_to_string(node.file(".flexvol.toml")).unwrap();
        assert_eq!(installed, "attach = false\n");
    }
    node.configuration("attach = true\n");
    says("written: .flexvol.toml, .flexvol.init, flexvol");
    assert!(node.init().contains("\"attach\":true"));
    let pid = Pid::from_raw(watching.0.id().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    let status = watching.0.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{status}");
}

fn uninstall(points: &Points) {
    let node = Node::new();
    node.install("log = \"info\"\n").success();
    fs::write(node.file("vendors-own"), "").unwrap();
    let assert = node.run("uninstall", &[]).failure().code(1);
    assert!(stderr(&assert).contains("vendors-own"), "{assert}");
    assert!(node.file("flexvol").exists());
    fs::remove_file(node.file("vendors-own")).unwrap();
    points.add(1);

    let watcher = Watcher::of(&node.home());
    node.run("uninstall", &[]).success();
    let removed = ("flexvol".to_owned(), AddWatchFlags::IN_DELETE);
    assert_eq!(watcher.seen(), [removed]);
    assert_eq!(fs::read_dir(node.plugins()).unwrap().count(), 0);
    let mut again = flexvol();
    again.args(["uninstall", "--driver", NAME, "--plugin-dir"]);
    let again = again.arg(node.plugins()).assert().success();
    assert!(stdout(&again).contains("is not installed"), "{again}");
    points.add(1);

    // A driver of somebody else under this name.
    fs::create_dir(node.home()).unwrap();
    fs::write(node.file("flexvol"), "#!/bin/sh\n").unwrap();
    let assert = node.run("uninstall", &[]).failure().code(1);
    assert!(
        stderr(&assert).contains("not installed by flexvol"),
        "{assert}"
    );
}
