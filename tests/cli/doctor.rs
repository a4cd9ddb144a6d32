//! The verb `doctor`: reports what a node lacks.

use crate::flexvol;
use assert_cmd::assert::{Assert, OutputAssertExt};
use flexvol_testing::{Need, Points, arena, tests};
use serde_json::Value;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

tests! {
    "doctor: every check that is not ok has a remedy, and a failed one the exit code 1", &[Need::Root]
        => remedies;
    "doctor: a driver and its pool are well, and are told when they are not", &[Need::Root]
        => driver_and_pool;
    "doctor: a configuration that was lost is told from one that never was", &[Need::Root]
        => lost_configuration;
    "doctor, install: the plugin directory of a running kubelet is found", &[Need::Root]
        => running_kubelet;
}

/// A plugin directory, a pool, and a driver on it.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let node = Node(tempfile::tempdir_in(arena()).unwrap());
        fs::create_dir(node.plugins()).unwrap();
        fs::create_dir(node.pool()).unwrap();
        fs::set_permissions(node.pool(), fs::Permissions::from_mode(0o700)).unwrap();
        node
    }

    fn plugins(&self) -> PathBuf {
        self.0.path().join("plugins")
    }

    fn pool(&self) -> PathBuf {
        self.0.path().join("pool")
    }

    fn installed(&self, file: &str) -> PathBuf {
        self.plugins().join("example.net~disk").join(file)
    }

    fn install(&self) {
        let text = format!("backend = \"loop\"\n[pools.a]\npath = {:?}\n", self.pool());
        let file = self.0.path().join("config.toml");
        fs::write(&file, text).unwrap();
        let mut command = flexvol();
        command.args(["install", "--name", "example.net/disk", "--config"]);
        command.arg(file).arg("--plugin-dir").arg(self.plugins());
        command.assert().success();
    }

    fn doctor(&self) -> Vec<Value> {
        checks(&run(&self.plugins()))
    }

    /// Checks verdict, finding and remedy of one check.
    #[track_caller]
    fn expect(&self, about: &str, verdict: &str, said: &str) {
        let checks = self.doctor();
        let check = checks.iter().find(|check| check["check"] == about);
        let check = check.unwrap_or_else(|| panic!("no {about:?} in {checks:#?}"));
        assert_eq!(check["verdict"], verdict, "{check}");
        assert!(check.to_string().contains(said), "no {said:?} in {check}");
    }
}

fn run(plugins: &Path) -> Assert {
    let mut command = flexvol();
    command.args(["doctor", "--output", "json", "--plugin-dir"]);
    command.arg(plugins).assert()
}

fn checks(assert: &Assert) -> Vec<Value> {
    serde_json::from_slice(&assert.get_output().stdout).unwrap_or_else(|e| panic!("{e}: {assert}"))
}

fn remedies(points: &Points) {
    let node = Node::new();
    let assert = run(&node.plugins()).failure().code(1);
    for check in checks(&assert) {
        let is_ok = check["verdict"] == "ok";
        assert_eq!(check.get("remedy").is_none(), is_ok, "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
        points.add(1);
    }
    let mut command = flexvol();
    let table = command
        .arg("doctor")
        .arg("--plugin-dir")
        .arg(node.plugins());
    let table = table.assert().failure().code(1);
    let text = String::from_utf8_lossy(&table.get_output().stdout).into_owned();
    assert!(text.starts_with("VERDICT   CHECK"), "{text}");
    assert!(
        text.contains("FAIL") && text.contains("\nTo fix:\n"),
        "{text}"
    );
}

fn driver_and_pool(points: &Points) {
    const DRIVER: &str = "driver example.net/disk";
    const CONFIGURATION: &str = "configuration of example.net/disk";
    const POOL: &str = "pool a of example.net/disk";
    let node = Node::new();
    node.expect("driver", "fail", "flexvol install");
    node.install();
    node.expect(POOL, "fail", "flexvol pool init");
    flexvol()
        .args(["pool", "init"])
        .arg(node.pool())
        .assert()
        .success();
    node.expect("plugin directory", "ok", "plugins");
    node.expect(DRIVER, "ok", "disk");
    node.expect(CONFIGURATION, "ok", ".disk.toml");
    node.expect(POOL, "ok", "volumes: 0");
    points.add(6);

    fs::set_permissions(node.pool(), fs::Permissions::from_mode(0o777)).unwrap();
    node.expect(POOL, "fail", "chmod go-w");
    fs::set_permissions(node.pool(), fs::Permissions::from_mode(0o700)).unwrap();

    let configuration = node.installed(".disk.toml");
    let right = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, format!("attach = true\n{right}")).unwrap();
    node.expect(CONFIGURATION, "warn", "flexvol install");
    fs::write(&configuration, format!("atach = true\n{right}")).unwrap();
    node.expect(CONFIGURATION, "fail", "atach");
    fs::remove_file(&configuration).unwrap();
    node.expect(CONFIGURATION, "fail", "there is no backend");
    // The host of a control plane needs no pools.
    let controller = format!("role = \"controller\"\n{right}").replace("/pool", "/nowhere");
    fs::write(&configuration, controller).unwrap();
    assert!(node.doctor().iter().all(|check| check["check"] != POOL));
    fs::write(&configuration, right).unwrap();

    fs::write(node.installed("disk"), "#!/bin/sh\nexit 1\n").unwrap();
    node.expect(DRIVER, "fail", "flexvol install");
    node.install();
    fs::set_permissions(node.installed("disk"), fs::Permissions::from_mode(0o777)).unwrap();
    node.expect(DRIVER, "fail", "others than root");

    fs::set_permissions(node.plugins(), fs::Permissions::from_mode(0o777)).unwrap();
    node.expect("plugin directory", "fail", "chmod 755");
    points.add(6);
}

fn lost_configuration(_: &Points) {
    const CONFIGURATION: &str = "configuration of example.net/loop";
    let node = Node::new();
    let file = node.0.path().join("config.toml");
    let install = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = flexvol();
        command.args(["install", "--name", "example.net/loop", "--config"]);
        command.arg(&file).arg("--plugin-dir").arg(node.plugins());
        command.assert().success();
    };
    let installed = node.plugins().join("example.net~loop/.loop.toml");
    install("# the defaults\n");
    node.expect(CONFIGURATION, "ok", ".loop.toml");
    install("attach = false\n");
    for cut in ["", "# a hea"] {
        fs::write(&installed, cut).unwrap();
        node.expect(CONFIGURATION, "fail", "says nothing");
        node.expect(CONFIGURATION, "fail", "how long deleted volumes are kept");
    }
    fs::remove_file(&installed).unwrap();
    node.expect(CONFIGURATION, "fail", "the defaults are in force");
    node.expect(CONFIGURATION, "fail", "how long deleted volumes are kept");
    install("attach = true\n");
    fs::remove_file(&installed).unwrap();
    node.expect(CONFIGURATION, "fail", "than kubelet was told");
}

/// A process that looks like a kubelet in /proc. Killed on drop.
pub struct Kubelet(pub Child);

impl Kubelet {
    pub fn start(plugins: &Path) -> Self {
        let child = Command::new("/bin/sh")
            .arg0("kubelet")
            .args(["-c", "read forever", "sh", "--volume-plugin-dir"])
            .arg(plugins)
            .stdin(Stdio::piped())
            .spawn();
        Kubelet::seen(child.unwrap())
    }

    /// Starts one in a mount namespace in which the path is another directory.
    fn elsewhere(plugins: &Path) -> Self {
        let script = "mount -t tmpfs other \"$1\" && exec -a kubelet sh -c 'read forever' sh --volume-plugin-dir \"$1\"";
        let child = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
                script,
                "bash",
            ])
            .arg(plugins)
            .stdin(Stdio::piped())
            .spawn();
        Kubelet::seen(child.unwrap())
    }

    /// Waits until the process shows the command line of kubelet, because it has none at first.
    pub fn seen(child: Child) -> Self {
        let command_line = format!("/proc/{}/cmdline", child.id());
        // If the program fails to start, the command line stays empty.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read(&command_line).unwrap().starts_with(b"kubelet") {
            assert!(Instant::now() < deadline, "the kubelet did not start");
            thread::sleep(Duration::from_millis(5));
        }
        Kubelet(child)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn running_kubelet(_: &Points) {
    let node = Node::new();
    let _another_cluster = Kubelet::elsewhere(&node.plugins());
    let kubelet = Kubelet::start(&node.plugins());
    let known_from = format!("kubelet (process {})", kubelet.0.id());
    let install = flexvol()
        .args(["install", "--name", "example.net/loop"])
        .assert()
        .success();
    let said = String::from_utf8_lossy(&install.get_output().stdout).into_owned();
    assert!(said.contains(&known_from), "{said}");
    assert!(node.plugins().join("example.net~loop/loop").exists());

    let mut command = flexvol();
    let found = checks(&command.args(["doctor", "-o", "json"]).assert());
    let check = |about: &str| found.iter().find(|check| check["check"] == about).unwrap();
    assert_eq!(check("plugin directory")["verdict"], "ok");
    // The path is not shown to every user, but it was found.
    assert!(
        !check("mount propagation")["found"]
            .as_str()
            .unwrap()
            .is_empty()
    );
}
