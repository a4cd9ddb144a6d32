//! Installing: what is completed, refused, reported and kept, once or with `--watch`.

pub mod kubelet;
pub mod mounted;

use crate::flexvol;
use assert_cmd::assert::{Assert, OutputAssertExt};
use flexvol_testing::{Need, Points, arena, tests};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

tests! {
    "install: what was cut is completed", &[Need::Root] => leftovers;
    "install: what was cut twice is completed, and kubelet asks again",
        &[Need::Root, Need::Tool("strace", "strace")] => cut_twice;
    "install: a mistake in the configuration is named and nothing is written", &[Need::Root]
        => mistakes;
    "install: names are those that Kubernetes accepts" => names;
    "install: an empty configuration is refused", &[Need::Root] => empty_configuration;
    "install: a configuration that was lost is told, and not replaced by the defaults", &[Need::Root]
        => lost_configuration;
    "install --watch: repairs the driver until it is told to stop", &[Need::Root] => watch;
}

const NAME: &str = "example.net/flexvol";

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
        self.plugins().join("example.net~flexvol")
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

    /// Device, inode and time of each file, which show whether it was replaced or written.
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

fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).expect("text")
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).expect("text")
}

fn leftovers(points: &Points) {
    let node = Node::new();
    let stage = node.plugins().join(".example.net~flexvol");
    fs::create_dir(&stage).unwrap();
    fs::write(stage.join("flexvol"), "half").unwrap();
    node.run("install", &[]).success();
    assert!(!stage.exists());
    points.add(1);

    // Interrupted between init line and executable: kubelet got no event for the change.
    let stage = node.file(".staged");
    fs::create_dir(&stage).unwrap();
    fs::write(stage.join("flexvol"), "half").unwrap();
    let assert = node.run("install", &[]).success();
    assert!(stdout(&assert).ends_with("written: flexvol\n"), "{assert}");
    assert!(!stage.exists());
    points.add(1);

    // kubelet follows no symbolic link after its restart.
    let elsewhere = node.0.path().join("elsewhere");
    fs::rename(node.home(), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, node.home()).unwrap();
    let assert = node.run("install", &[]).failure();
    assert!(stderr(&assert).contains("is no directory"), "{assert}");
}

fn cut_twice(points: &Points) {
    let node = Node::new();
    node.run("install", &[]).success();
    let stage = node.file(".staged");
    fs::create_dir(&stage).unwrap();
    fs::write(stage.join("flexvol"), "half").unwrap();
    let executable = fs::metadata(node.file("flexvol")).unwrap().ino();
    let failed = std::process::Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=?mkdir,mkdirat"])
        .args(["-e", "inject=?mkdir,mkdirat:error=ENOSPC", "-P"])
        .arg(&stage)
        .arg(flexvol().get_program())
        .args(["install", "--name", NAME, "--plugin-dir"])
        .arg(node.plugins())
        .assert()
        .failure();
    assert!(stderr(&failed).contains("No space left"), "{failed}");
    points.add(1);

    let assert = node.run("install", &[]).success();
    assert!(stdout(&assert).ends_with("written: flexvol\n"), "{assert}");
    let written = fs::metadata(node.file("flexvol")).unwrap().ino();
    assert_ne!(written, executable);
    assert!(!stage.exists());
    points.add(1);
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

/// A process that is killed on drop.
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
    // A configuration that changes between two looks may be incomplete, and is not installed.
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
