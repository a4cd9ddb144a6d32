//! `flexvol-controller` as controller and agent, with the rights in its manifests.

use crate::{
    lab::{self, DISK, Lab, beside},
    scenario::Scenario,
    webhooks,
};
use flexvol_lab::kubernetes::{PLUGINS, run_with, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fmt, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    time::Duration,
};

/// Path of the program in the node.
const PROGRAM: &str = "/usr/local/bin/flexvol-controller";

/// A driver of directories, which has no file system to grow and fails on demand.
pub const PLAIN: &str = "lab.example/plain";

/// Ports in the node on which controller and agent listen.
pub const CONTROLLER_PORT: &str = "8081";
pub const AGENT_PORT: &str = "8082";

const CONTROLLER: &str = "flexvol-controller";
const AGENT: &str = "flexvol-agent";
const SECOND: &str = "flexvol-controller-2";
const OTHER: &str = "flexvol-agent-other";

/// Arguments of the first controller.
const FIRST: [&str; 3] = [
    "--identity=one",
    "--lease-seconds=20",
    "--listen=127.0.0.1:8081",
];

/// Controller or agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Controller,
    Agent,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Controller => CONTROLLER,
            Program::Agent => AGENT,
        }
    }

    pub fn runs(self, scenario: &Scenario) -> bool {
        let node = scenario.lab().cluster().node();
        node.running(self.name()).is_some()
    }
}

/// Arguments of the agent.
const ON_NODE: [&str; 3] = ["--node=node", "--deadline=10", "--listen=127.0.0.1:8082"];

/// The point at which a program ends itself, as if killed: before one of its writes, or after the response to
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitPoint {
    Before(u32),
    After(u32),
}

impl ExitPoint {
    /// A write beyond the end of any life. The program counts its writes.
    pub const NEVER: ExitPoint = ExitPoint::After(u32::MAX);
}

impl fmt::Display for ExitPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitPoint::Before(write) => write!(f, "before:{write}"),
            ExitPoint::After(write) => write!(f, "after:{write}"),
        }
    }
}

/// Running controller and agent.
pub struct Running(());

/// Runs a scenario with controller and agent, and ends it before they stop, because they delete its volumes.
pub fn with(run: impl FnOnce(&Scenario, &Running)) {
    let scenario = Scenario::begin();
    let result = catch_unwind(AssertUnwindSafe(|| {
        install(scenario.lab());
        let running = Running(());
        running.restart_agent(&scenario, None);
        running.restart_controller(&scenario, None);
        run(&scenario, &running);
        if !running.controller_runs(&scenario) {
            running.restart_controller(&scenario, None);
        }
    }));
    if result.is_err() {
        println!("{}", log(&scenario));
        drop(scenario);
    } else {
        scenario.end();
    }
    let lab = Lab::take();
    for name in [CONTROLLER, AGENT, SECOND, OTHER] {
        lab.cluster().node().stop(name, Signal::SIGKILL).unwrap();
    }
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// The last lines of both logs.
pub fn log(scenario: &Scenario) -> String {
    let tail = |name: &str| {
        let file = scenario
            .lab()
            .cluster()
            .file(&format!("/var/log/{name}.log"));
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(40).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        format!("{name}:\n{}\n", lines.join("\n"))
    };
    tail(CONTROLLER) + &tail(AGENT)
}

impl Running {
    pub fn controller_runs(&self, scenario: &Scenario) -> bool {
        Program::Controller.runs(scenario)
    }

    pub fn agent_runs(&self, scenario: &Scenario) -> bool {
        Program::Agent.runs(scenario)
    }

    /// Restarts the controller. With `exit` it ends itself there.
    pub fn restart_controller(&self, scenario: &Scenario, exit: Option<ExitPoint>) {
        restart(scenario, CONTROLLER, "controller", CONTROLLER, &FIRST, exit);
    }

    /// Restarts the controller with webhooks, whose certificates are valid for so many seconds.
    pub fn restart_with_webhooks(
        &self,
        scenario: &Scenario,
        certificate_seconds: u64,
        exit: Option<ExitPoint>,
    ) {
        let lasting = format!("--certificate-seconds={certificate_seconds}");
        let more = [&FIRST[..], &["--webhooks=0.0.0.0:443", &lasting]].concat();
        restart(scenario, CONTROLLER, "controller", CONTROLLER, &more, exit);
    }

    /// Restarts both, with a heartbeat every two seconds. After eight seconds without one the node counts as
    /// silent.
    pub fn restart_with_short_heartbeats(&self, scenario: &Scenario) {
        let more = [&FIRST[..], &["--silence-seconds=8"]].concat();
        restart(scenario, CONTROLLER, "controller", CONTROLLER, &more, None);
        self.restart_agent_with_short_heartbeats(scenario);
    }

    pub fn restart_agent_with_short_heartbeats(&self, scenario: &Scenario) {
        let more = [&ON_NODE[..], &["--heartbeat-seconds=2"]].concat();
        restart(scenario, AGENT, "agent", AGENT, &more, None);
    }

    /// Restarts both with one more driver.
    pub fn restart_with_driver(&self, scenario: &Scenario, driver: &str) {
        let driver = ["--driver", driver];
        let agent = [&ON_NODE[..], &driver].concat();
        restart(scenario, AGENT, "agent", AGENT, &agent, None);
        let first = [&FIRST[..], &driver].concat();
        restart(scenario, CONTROLLER, "controller", CONTROLLER, &first, None);
    }

    /// Restarts both with one more driver, like `restart_with_short_heartbeats`.
    pub fn restart_with_driver_and_short_heartbeats(&self, scenario: &Scenario, driver: &str) {
        let driver = ["--driver", driver];
        let agent = [&ON_NODE[..], &driver, &["--heartbeat-seconds=2"]].concat();
        restart(scenario, AGENT, "agent", AGENT, &agent, None);
        let first = [&FIRST[..], &driver, &["--silence-seconds=8"]].concat();
        restart(scenario, CONTROLLER, "controller", CONTROLLER, &first, None);
    }

    /// Starts the agent of another node, which runs on this node too, with drivers of its own.
    pub fn start_other_agent(&self, scenario: &Scenario, node: &str, driver: &str, plugins: &str) {
        allow(scenario.lab(), AGENT, Some(node), OTHER);
        let (node, plugins) = (format!("--node={node}"), format!("--plugin-dir={plugins}"));
        let more = [&node, "--heartbeat-seconds=2", &plugins, "--driver", driver];
        restart(scenario, OTHER, "agent", OTHER, &more, None);
    }

    /// Kills the agent of the other node.
    pub fn kill_other_agent(&self, scenario: &Scenario) {
        let node = scenario.lab().cluster().node();
        node.stop(OTHER, Signal::SIGKILL).unwrap();
    }

    /// Kills the agent.
    pub fn kill_agent(&self, scenario: &Scenario) {
        let node = scenario.lab().cluster().node();
        node.stop(AGENT, Signal::SIGKILL).unwrap();
    }

    /// Starts a second controller, which leads when the first does not.
    pub fn start_second(&self, scenario: &Scenario) {
        let more = ["--identity=two", "--lease-seconds=20"];
        restart(scenario, SECOND, "controller", CONTROLLER, &more, None);
    }

    pub fn stop_second(&self, scenario: &Scenario) {
        let node = scenario.lab().cluster().node();
        node.stop(SECOND, Signal::SIGKILL).unwrap();
    }

    /// Sends the first controller a signal.
    pub fn signal_controller(&self, scenario: &Scenario, signal: Signal) {
        let lab = scenario.lab();
        let process = lab
            .cluster()
            .node()
            .running(CONTROLLER)
            .unwrap()
            .to_string();
        let signal = signal.as_str().trim_start_matches("SIG");
        lab.run("/bin/kill", &["-s", signal, &process]);
    }

    /// Restarts the agent. With `exit` it ends itself there.
    pub fn restart_agent(&self, scenario: &Scenario, exit: Option<ExitPoint>) {
        restart(scenario, AGENT, "agent", AGENT, &ON_NODE, exit);
    }
}

/// How many writes a program with an `exit` has begun.
pub fn writes_of(scenario: &Scenario, program: Program) -> u32 {
    let name = program.name();
    let file = format!("/var/log/{name}.log");
    let text = fs::read_to_string(scenario.lab().cluster().file(&file)).unwrap();
    let mut last = text.lines().rev().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        line["number"]
            .as_str()
            .filter(|_| line["msg"] == "writes")?
            .parse()
            .ok()
    });
    last.next().unwrap_or(0)
}

/// The volumes of [`PLAIN`].
pub fn plain_volumes(scenario: &Scenario) -> Vec<String> {
    let place = scenario.lab().cluster().file("/var/lib/lab/plain");
    let volumes = fs::read_dir(place).into_iter().flatten().flatten();
    volumes
        .map(|volume| volume.file_name().to_string_lossy().into_owned())
        .collect()
}

fn restart(
    scenario: &Scenario,
    name: &str,
    verb: &str,
    account: &str,
    more: &[&str],
    exit: Option<ExitPoint>,
) {
    let cluster = scenario.lab().cluster();
    cluster.node().stop(name, Signal::SIGKILL).unwrap();
    let mut arguments = Vec::new();
    if let Some(exit) = exit {
        arguments.push(format!("FLEXVOL_CONTROLLER_END={exit}"));
    }
    arguments.extend([PROGRAM, verb, "--driver", DISK, "--driver", PLAIN].map(str::to_owned));
    arguments.extend(more.iter().map(ToString::to_string));
    arguments.push(format!("--kubeconfig={}", kubeconfig(account)));
    // `env` becomes the program that it starts.
    cluster
        .node()
        .start(name, "/usr/bin/env", &arguments)
        .unwrap();
}

fn kubeconfig(account: &str) -> String {
    format!("/var/lib/lab/{account}.kubeconfig")
}

/// Installs the executable in the node and the manifests with their rights in the cluster.
pub fn install(lab: &Lab) {
    let cluster = lab.cluster();
    let place = cluster.file(PROGRAM);
    if !place.exists() {
        fs::copy(beside("flexvol-controller"), &place).unwrap();
    }
    let plain = cluster.file(PLUGINS).join(PLAIN.replace('/', "~"));
    fs::create_dir_all(&plain).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/plain.sh");
    // Copies the mode, and renames the complete file.
    fs::copy(script, plain.join(".unfinished")).unwrap();
    fs::rename(plain.join(".unfinished"), plain.join("plain")).unwrap();
    let mut manifests = vec!["objects.yaml", "controller.yaml"];
    if webhooks::are_there() {
        manifests.push("controller-policy.yaml");
    }
    if tokens_name_nodes() {
        manifests.push("agents.yaml");
    }
    for manifest in manifests {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("deploy/cluster")
            .join(manifest);
        let text = fs::read_to_string(file).unwrap();
        // The values that the chart would fill in.
        let text = text
            .replace(" in ['example.com/disk']", ".startsWith('lab.example/')")
            .replace(" in ['disk.example.com']", ".endsWith('.lab.example')");
        let known = |line: &&str| rules_are_known() || !line.contains("x-kubernetes-validations");
        let text: Vec<_> = text.lines().filter(known).collect();
        let text = text.join("\n");
        // The workloads run as processes of the node instead.
        let rights: Vec<_> = text
            .split("\n---\n")
            .filter(|object| !object.contains("apiVersion: apps/v1"))
            .collect();
        lab.apply_text(&rights.join("\n---\n"));
    }
    let established = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd",
        "--all",
    ];
    lab.kubectl(&established);
    for account in [CONTROLLER, AGENT] {
        allow(lab, account, (account == AGENT).then_some("node"), account);
    }
    let no_order = || Ok(lab.cluster().kubectl(&["get", "nodevolumes"]).is_ok());
    wait_until(
        "NodeVolumes to be served",
        Duration::from_secs(30),
        no_order,
    )
    .unwrap();
}

/// Writes a kubeconfig of this name for a service account.
fn allow(lab: &Lab, account: &str, node: Option<&str>, name: &str) {
    let token = token(lab, account, node.filter(|_| tokens_name_nodes()));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {
            "server": "https://127.0.0.1:6443",
            "insecure-skip-tls-verify": true,
        }}],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": account}}],
        "current-context": "lab",
    });
    fs::write(lab.cluster().file(&kubeconfig(name)), config.to_string()).unwrap();
}

/// The first release in which a token can be bound to a node and names it, as the token of a pod does.
pub const TOKENS_NAME_NODES: &str = "1.33.0";

pub fn tokens_name_nodes() -> bool {
    lab::version() >= TOKENS_NAME_NODES.parse().unwrap()
}

/// Whether kubectl knows validation rules in schemas.
pub fn rules_are_known() -> bool {
    lab::version() >= "1.23.0".parse().unwrap()
}

/// A token of the service account for the duration of a run, bound to the node if one is given.
pub fn token(lab: &Lab, account: &str, node: Option<&str>) -> String {
    let mut request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "expirationSeconds": 36000},
    });
    if let Some(node) = node {
        let uid = lab.kubectl(&["get", "node", node, "--output=jsonpath={.metadata.uid}"]);
        let bound = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid.trim()});
        request["spec"]["boundObjectRef"] = bound;
    }
    let path = format!("/api/v1/namespaces/flexvol/serviceaccounts/{account}/token");
    let mut command = lab.cluster().node().command("kubectl");
    command.args(["create", "--raw", &path, "--filename=-"]);
    let answer = run_with(&mut command, &request.to_string()).unwrap_or_else(|e| panic!("{e}"));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}
