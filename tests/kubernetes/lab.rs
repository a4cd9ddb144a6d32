//! The cluster that all tests of a run share, with the drivers on its node.

use anyhow::Result;
use flexvol_lab::kubernetes::{
    Cluster, NodeLifetime, PLUGINS, Pods, Programs, Version, labs, run, run_with,
};
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A driver without attach, one with attach, and one without attach for everyone who knows a handle.
pub const DISK: &str = "lab.example/disk";
pub const BLOCK: &str = "lab.example/block";
pub const OPEN: &str = "lab.example/open";

/// Directory of the drivers in the node. kubelet finds forwarders, which record each call.
pub const DRIVERS: &str = "/var/lib/lab/drivers";

/// File in the node with the recorded calls, one JSON object a line.
pub const CALLS: &str = "/var/lib/lab/calls.jsonl";

/// Directory in the node of the pool of all drivers, at the path in the documents.
pub const POOL: &str = "/var/lib/flexvol/pools/default";

static LAB: Mutex<Option<Cluster>> = Mutex::new(None);

/// The cluster of a single test, which takes it down.
static OWN: Mutex<Option<Cluster>> = Mutex::new(None);

/// The release of this run.
pub fn version() -> Version {
    match env::var("FLEXVOL_KUBERNETES") {
        Ok(text) => text.parse().expect("FLEXVOL_KUBERNETES is a version"),
        Err(_) => Version::newest(),
    }
}

/// Exclusive access to the cluster, which the first test starts.
pub struct Lab(MutexGuard<'static, Option<Cluster>>);

impl Lab {
    pub fn take() -> Self {
        let mut lab = LAB.lock().unwrap_or_else(PoisonError::into_inner);
        if lab.is_none() {
            *lab = Some(start());
        }
        Lab(lab)
    }

    /// Starts an empty cluster whose pods can reach its API server.
    pub fn empty() -> Self {
        let mut lab = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        *lab = Some(up(&own_directory(), Pods::Clients));
        Lab(lab)
    }

    pub fn cluster(&self) -> &Cluster {
        self.0.as_ref().unwrap()
    }

    pub fn cluster_mut(&mut self) -> &mut Cluster {
        self.0.as_mut().unwrap()
    }

    /// Runs kubectl and returns its output.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster()
            .kubectl(arguments)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs a program in the node and returns its output.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = self.cluster().node().command(program);
        run(command.args(arguments)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Applies manifests.
    #[track_caller]
    pub fn apply_text(&self, manifests: &str) {
        let mut command = self.cluster().node().command("kubectl");
        let applied = run_with(command.args(["apply", "--filename=-"]), manifests);
        applied.unwrap_or_else(|e| panic!("{e}"));
    }

    /// Runs a verb for people of the driver's executable, for one of the recorded drivers.
    #[track_caller]
    pub fn flexvol(&self, driver: &str, verb: &str, arguments: &[&str]) -> String {
        let driver = ["--driver", driver, "--plugin-dir", DRIVERS];
        self.run("flexvol", &[&[verb], arguments, &driver].concat())
    }

    /// Makes a callout as a person would.
    pub fn call(&self, driver: &str, arguments: &[&str]) -> Result<String> {
        let driver = ["call", "--name", driver, "--plugin-dir", DRIVERS, "--"];
        let mut command = self.cluster().node().command("flexvol");
        run(command.args(driver).args(arguments))
    }
}

/// Everything that a node could change on the machine permanently: kernel settings without a namespace, and
/// directories outside the node's own.
pub fn machine() -> Vec<String> {
    let mut found = Vec::new();
    for setting in [
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    ] {
        let value = fs::read_to_string(Path::new("/proc/sys").join(setting));
        found.push(format!(
            "{setting} {}",
            value.expect("read a setting of the kernel's").trim()
        ));
    }
    for dir in ["/", "/opt", "/etc", "/var", "/usr", "/mnt", "/srv"] {
        let names = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = names
            .map(|entry| entry.path().display().to_string())
            .collect();
        names.sort();
        found.extend(names);
    }
    found
}

/// Takes the cluster down, after the last test.
pub fn end() {
    take_down(&LAB, &directory());
}

/// Takes the cluster of [`Lab::empty`] down.
pub fn end_own() {
    take_down(&OWN, &own_directory());
}

fn take_down(lab: &Mutex<Option<Cluster>>, directory: &Path) {
    let cluster = lab.lock().unwrap_or_else(PoisonError::into_inner).take();
    if cluster.is_some() && env::var_os("FLEXVOL_KEEP").is_none_or(|keep| keep != "1") {
        Cluster::down(directory).expect("take the cluster down");
    }
}

fn directory() -> PathBuf {
    labs().join(format!("tests-{}-{}", version(), std::process::id()))
}

fn own_directory() -> PathBuf {
    labs().join(format!("tests-own-{}-{}", version(), std::process::id()))
}

/// Removes directories of runs that were killed. Their nodes ended with them.
fn sweep() {
    for lab in fs::read_dir(labs()).into_iter().flatten().flatten() {
        let name = lab.file_name().to_string_lossy().into_owned();
        let process = name
            .strip_prefix("tests-")
            .and_then(|name| name.rsplit('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            Cluster::down(&lab.path()).expect("take down an earlier run's cluster");
        }
    }
}

/// The path of an executable of the workspace. cargo puts it beside the driver's for the same target.
pub fn beside(name: &str) -> PathBuf {
    let found = executable().with_file_name(name);
    assert!(
        found.exists(),
        "{} is not built: cargo build --workspace",
        found.display()
    );
    found
}

/// The driver's executable.
pub fn executable() -> PathBuf {
    env::var_os("FLEXVOL_EXECUTABLE").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_flexvol")),
        PathBuf::from,
    )
}

/// Starts a cluster.
fn up(directory: &Path, pods: Pods) -> Cluster {
    let programs = Programs::of(version()).expect("build Kubernetes");
    sweep();
    let lab = beside("flexvol-lab");
    let started = Instant::now();
    let cluster = Cluster::up(
        directory,
        programs,
        &lab,
        NodeLifetime::ThisProcessEnds,
        pods,
    );
    let cluster = cluster.unwrap_or_else(|error| {
        // Lets the next test start a new cluster.
        Cluster::down(directory).expect("take down what was started");
        panic!("{error:#}")
    });
    let server = cluster
        .server_version()
        .expect("ask for the server's version");
    assert_eq!(server, version().to_string());
    println!(
        "server {server}, ready after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    cluster
}

fn start() -> Cluster {
    let cluster = up(&directory(), Pods::Apart);
    place_driver(&cluster);
    let node = |program: &str, arguments: &[&str]| {
        let mut command: Command = cluster.node().command(program);
        run(command.args(arguments)).unwrap_or_else(|e| panic!("{e}"))
    };
    node("flexvol", &["pool", "init", POOL]);
    for (name, more, of_pool) in [
        (DISK, "", ""),
        (BLOCK, "attach = true\n", ""),
        (OPEN, "", "namespaces = \"any\"\n"),
    ] {
        let text = format!(
            "backend = \"loop\"\n{more}[pools.default]\npath = \"{POOL}\"\nreserve = \"64Mi\"\n{of_pool}"
        );
        fs::write(cluster.file("/var/lib/lab/driver.toml"), text).unwrap();
        let config = ["--config", "/var/lib/lab/driver.toml"];
        let install = ["install", "--name", name, "--plugin-dir", DRIVERS];
        node("flexvol", &[&install[..], &config].concat());
        forward(&cluster, name);
    }
    cluster
}

/// Puts the driver's executable into the node.
pub fn place_driver(cluster: &Cluster) {
    let place = cluster.file("/usr/local/bin/flexvol");
    // A running executable cannot be overwritten.
    if place.exists() {
        fs::remove_file(&place).expect("remove the driver from the node");
    }
    fs::copy(executable(), place).expect("copy the driver into the node");
}

/// Installs a driver for kubelet that records each call and forwards it to the real driver.
fn forward(cluster: &Cluster, name: &str) {
    let (_, driver) = name.split_once('/').unwrap();
    let dir = cluster.file(PLUGINS).join(name.replace('/', "~"));
    fs::create_dir_all(&dir).unwrap();
    let script = format!(
        "#!/bin/sh\nexec /usr/local/bin/flexvol call --name {name} --plugin-dir {DRIVERS} --record {CALLS} \
         --caller \"$(cat /proc/$PPID/comm)\" -- \"$@\" 2>/dev/null\n"
    );
    // kubelet calls the driver as soon as the name exists.
    let unfinished = cluster.file(DRIVERS).join("forward");
    fs::write(&unfinished, script).unwrap();
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&unfinished, dir.join(driver)).unwrap();
}
