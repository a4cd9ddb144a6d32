//! Which processes named kubelet are trusted, and for which settings.

use crate::{doctor::Kubelet, flexvol};
use flexvol_testing::{Need, Points, arena, patience, tests};
use nix::{sys::stat::Mode, unistd::mkfifo};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const TOOLS: &[Need] = &[
    Need::Root,
    Need::Tool("setpriv", "util-linux"),
    Need::Tool("unshare", "util-linux"),
];

tests! {
    "install, doctor, list, gc: a process that a pod can have is no kubelet, whatever it is called", TOOLS
        => pretended;
    "doctor, config, list, gc: nothing is run or read where others than root decide what it is", &[Need::Root]
        => others_decide;
    "install: of kubelet's configuration regular files count, as kubelet itself finds them", TOOLS
        => files_of_kubelet;
    "install: kubelets that agree are believed, and of those that do not a person chooses", &[Need::Root]
        => several;
}

/// Ways to start a process as a container's process.
const TENANTS: [&[&str]; 3] = [
    &[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ],
    &["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
    &["unshare", "--user", "--map-root-user"],
];

const SCRIPT: &str = "exec -a kubelet sh -c 'read forever' sh \"$@\"";

/// A process named kubelet that was started in this way.
fn called_kubelet(way: &[&str], argument: &str) -> Kubelet {
    let words = [way, &["bash", "-c", SCRIPT, "bash", argument]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped());
    Kubelet::seen(command.spawn().unwrap())
}

fn root_with(directories: &[&str]) -> TempDir {
    let root = tempfile::tempdir_in(arena()).unwrap();
    for directory in directories {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    root
}

/// Runs a verb, which must not take much time or memory, and returns its output.
fn ends(arguments: &[&str]) -> (Output, String) {
    let mut command = Command::new("prlimit");
    command.args(["--as=1000000000", "--"]);
    let executable = flexvol();
    command.arg(executable.get_program()).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(2) * patience();
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{arguments:?} does not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output, text)
}

/// Installs a script as a driver. It leaves a file when it runs.
fn plant(plugins: &Path, ran: &Path) {
    let home = plugins.join("example.net~planted");
    fs::create_dir_all(&home).unwrap();
    let script = format!("#!/bin/sh\necho > {}\n", ran.display());
    fs::write(home.join("planted"), script).unwrap();
    fs::set_permissions(home.join("planted"), Permissions::from_mode(0o755)).unwrap();
    fs::write(home.join(".planted.init"), "{\"status\":\"Success\"}\n").unwrap();
    let pool = plugins.join("planted-pool");
    let configuration = format!("backend = \"loop\"\n[pools.planted]\npath = {pool:?}\n");
    fs::write(home.join(".planted.toml"), configuration).unwrap();
}

fn pretended(points: &Points) {
    let root = root_with(&["plugins", "tenant"]);
    let [plugins, tenant, ran] = ["plugins", "tenant", "ran"].map(|name| root.path().join(name));
    let fifo = root.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU | Mode::S_IROTH).unwrap();
    let [link, loops] = ["link", "loops"].map(|name| root.path().join(name));
    symlink(&fifo, &link).unwrap();
    symlink(&loops, &loops).unwrap();
    plant(&tenant, &ran);
    let kubelet = Kubelet::start(&plugins);
    let known_from = format!("kubelet (process {})", kubelet.0.id());
    for way in TENANTS {
        for argument in [
            format!("--volume-plugin-dir={}", tenant.display()),
            format!("--volume-plugin-dir={}", loops.display()),
            format!("--volume-plugin-dir={}/x", link.display()),
            format!("--config={}", fifo.display()),
            format!("--config={}", link.display()),
            "--config=/dev/zero".to_owned(),
        ] {
            let _pretends = called_kubelet(way, &argument);
            let (output, text) = ends(&["install", "--name", "example.net/loop"]);
            assert!(output.status.success(), "{way:?} {argument}: {text}");
            assert!(text.contains(&known_from), "{way:?} {argument}: {text}");
            let (_, text) = ends(&["doctor"]);
            assert!(text.contains(&known_from), "{way:?} {argument}: {text}");
            let (_, text) = ends(&["list"]);
            assert!(!text.contains("planted"), "{way:?} {argument}: {text}");
            points.add(3);
        }
    }
    drop(kubelet);
    // Without a real kubelet the tenant's process must not be taken for it.
    let argument = format!("--volume-plugin-dir={}", tenant.display());
    for way in TENANTS {
        let _pretends = called_kubelet(way, &argument);
        for verb in [
            &["doctor"][..],
            &["config"],
            &["list"],
            &["gc", "--dry-run"],
        ] {
            let (_, text) = ends(verb);
            assert!(!text.contains("planted"), "{way:?} {verb:?}: {text}");
            points.add(1);
        }
    }
    assert!(!ran.exists(), "a tenant's program was run");
}

fn others_decide(points: &Points) {
    const EMPTY_DIR: &str =
        "kubelet/pods/0b1e55ed-0000-4000-8000-0000000000aa/volumes/kubernetes.io~empty-dir/x";
    let root = root_with(&[EMPTY_DIR, "way/plugins", "links"]);
    let ran = root.path().join("ran");
    let way = root.path().join("way");
    let of_a_pod = root.path().join(EMPTY_DIR);
    let link = root.path().join("links/plugins");
    symlink(&of_a_pod, &link).unwrap();
    for (plugins, mode, why) in [
        (of_a_pod, 0o755, "belongs to a pod"),
        (link, 0o755, "belongs to a pod"),
        (way.join("plugins"), 0o777, "others than root can write"),
        (way.join("plugins"), 0o775, "others than root can write"),
    ] {
        plant(&plugins, &ran);
        fs::set_permissions(&way, Permissions::from_mode(mode)).unwrap();
        let _kubelet = Kubelet::start(&plugins);
        let planted = ["--driver", "example.net/planted"];
        for verb in [
            &["doctor"][..],
            &["config"],
            &["list"],
            &["gc", "--dry-run"],
            &["install", "--name", "example.net/planted"],
            &["list", planted[0], planted[1]],
            &["config", planted[0], planted[1]],
            &["doctor", "--plugin-dir", plugins.to_str().unwrap()],
        ] {
            let (output, text) = ends(verb);
            assert_eq!(output.status.code(), Some(1), "{verb:?}: {text}");
            assert!(text.contains(why), "{verb:?}: {text}");
            assert!(!text.contains("planted-pool"), "{verb:?}: {text}");
            points.add(1);
        }
    }
    assert!(!ran.exists(), "a program was run that others could write");
}

/// Returns the plugin directory that `install` uses if a kubelet has these arguments.
fn installs(arguments: &str) -> String {
    let _kubelet = called_kubelet(&["env"], arguments);
    let (output, text) = ends(&["install", "--name", "example.net/loop"]);
    assert!(output.status.success(), "{arguments}: {text}");
    text
}

fn files_of_kubelet(points: &Points) {
    let root = root_with(&["plugins", "plugins/..data", "drop-ins"]);
    let path = |name: &str| root.path().join(name);
    let text = format!("volumePluginDir: {}\n", path("plugins").display());
    let file = path("plugins/..data/config.yaml");
    fs::write(&file, &text).unwrap();
    symlink("..data/config.yaml", path("plugins/config.yaml")).unwrap();
    symlink(path("plugins/config.yaml"), path("config.yaml")).unwrap();
    mkfifo(&path("drop-ins/2.conf"), Mode::S_IRWXU).unwrap();
    let elsewhere = format!("volumePluginDir: {}\n", path("elsewhere").display());
    let long = elsewhere.clone() + &"#".repeat(2 << 20);
    fs::write(path("drop-ins/3.conf"), long).unwrap();
    // The file with the last name takes precedence, also in a subdirectory.
    fs::write(path("drop-ins/1.conf"), elsewhere).unwrap();
    fs::create_dir(path("drop-ins/2")).unwrap();
    fs::write(path("drop-ins/2/0.conf"), &text).unwrap();
    for argument in [
        format!("--config={}", file.display()),
        format!("--config={}", path("config.yaml").display()),
        format!("--config-dir={}", path("drop-ins").display()),
    ] {
        let said = installs(&argument);
        assert!(said.contains(&*path("plugins").to_string_lossy()), "{said}");
        points.add(1);
    }
}

fn several(points: &Points) {
    let root = root_with(&["plugins", "other"]);
    let [plugins, other]: [PathBuf; 2] = ["plugins", "other"].map(|name| root.path().join(name));
    let _one = Kubelet::start(&plugins);
    let two = Kubelet::start(&plugins);
    let (output, text) = ends(&["install", "--name", "example.net/loop"]);
    assert!(output.status.success(), "{text}");
    drop(two);
    let _three = Kubelet::start(&other);
    let (output, text) = ends(&["install", "--name", "example.net/loop"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("more than one plugin directory"), "{text}");
    assert!(text.contains("--plugin-dir"), "{text}");
    points.add(2);
}
