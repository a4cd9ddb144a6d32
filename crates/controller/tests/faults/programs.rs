//! Programs of a world: starts, kills and restarts them.

use crate::world::{SCRIPT, TIMEOUT, World};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A driver of directories, without a file system to grow.
pub const DRIVER: &str = "lab.example/plain";

#[derive(Default)]
pub struct Programs {
    pub running: BTreeMap<String, Child>,
    /// The programs' `PATH`, if it differs from that of the tests.
    paths: Option<&'static str>,
    /// Arguments of each program's last start.
    started: BTreeMap<String, Vec<String>>,
    /// A program that ends at one of its writes, and is restarted.
    killed: Option<Kill>,
}

/// The failpoint of a program, in the format of `FLEXVOL_CONTROLLER_END`.
struct Kill {
    program: &'static str,
    end: String,
    happened: bool,
}

impl World {
    /// Adds a node, and starts a controller and the node's agent.
    pub fn start_on_a_node(&mut self) {
        self.node("node");
        self.start_controller(&["--rate=1000"]);
        self.start_agent("node", &[]);
    }

    /// Like [`start_on_a_node`](Self::start_on_a_node), with a claim `data` whose driver answers late.
    pub fn start_with_a_late_driver(&mut self) {
        self.class("late", &json!({"parameters": {"fault": "late"}}));
        self.start_on_a_node();
        self.claim("data", "late");
    }

    /// Starts a controller with a long lease, because a busy machine renews late and most tests are not about leases.
    pub fn start_controller(&mut self, more: &[&str]) {
        self.start_leader(120, more);
    }

    /// Starts a controller with this lease duration.
    pub fn start_leader(&mut self, seconds: u16, more: &[&str]) {
        let lasts = format!("--lease-seconds={seconds}");
        let own = ["--identity=one", &lasts];
        self.start_program("controller", "controller", &[&own[..], more].concat());
    }

    /// Hides all other programs, as in our image.
    pub fn without_programs(&mut self) {
        self.programs.paths = Some("/nonexistent");
    }

    /// Gives programs a name of the API server instead of an address.
    pub fn name_server(&self) {
        let text = self.server.kubeconfig().replace("127.0.0.1", "localhost");
        fs::write(self.path("kubeconfig"), text).unwrap();
    }

    /// Starts the agent of a node, with storage of its own.
    pub fn start_agent(&mut self, node: &str, more: &[&str]) {
        let plugins = self.path(&format!("{node}/plugins"));
        if !Path::new(&plugins).exists() {
            self.install(node);
        }
        let own = [format!("--node={node}"), format!("--plugin-dir={plugins}")];
        let own = own.each_ref().map(String::as_str);
        self.start_program(node, "agent", &[&own[..], more].concat());
    }

    pub fn install(&self, node: &str) {
        let storage = self.path(&format!("{node}/storage"));
        fs::create_dir_all(&storage).unwrap();
        let log = format!("#!/bin/sh\necho \"$*\" >>{}\n", self.path("calls"));
        let script =
            SCRIPT
                .replace("/var/lib/lab/plain", &storage)
                .replacen("#!/bin/sh\n", &log, 1);
        self.install_script(node, &script);
    }

    /// Installs another script as a node's driver.
    pub fn install_script(&self, node: &str, script: &str) {
        let place = self.path(&format!("{node}/plugins/lab.example~plain"));
        fs::create_dir_all(&place).unwrap();
        let unfinished = Path::new(&place).join(".unfinished");
        fs::write(&unfinished, script).unwrap();
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(unfinished, Path::new(&place).join("plain")).unwrap();
    }

    fn start_program(&mut self, name: &str, verb: &str, more: &[&str]) {
        self.start_program_of(name, verb, DRIVER, more);
    }

    /// Starts a program for another driver, or for one with a second provisioner name.
    pub fn start_program_of(&mut self, name: &str, verb: &str, driver: &str, more: &[&str]) {
        let own = [
            verb.to_owned(),
            format!("--driver={driver}"),
            format!("--kubeconfig={}", self.path("kubeconfig")),
        ];
        let more = more.iter().map(ToString::to_string);
        self.programs
            .started
            .insert(name.to_owned(), own.into_iter().chain(more).collect());
        self.spawn(name);
    }

    fn spawn(&mut self, name: &str) {
        let log = self.path(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let kill = self.programs.killed.as_ref();
        let kill = kill.filter(|kill| kill.program == name && !kill.happened);
        let program = Command::new(env!("CARGO_BIN_EXE_flexvol-controller"))
            .args(&self.programs.started[name])
            .envs(self.programs.paths.map(|paths| ("PATH", paths)))
            .envs(kill.map(|kill| ("FLEXVOL_CONTROLLER_END", &kill.end)))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn();
        self.programs
            .running
            .insert(name.to_owned(), program.unwrap());
    }

    /// The command `check` for a class.
    pub fn check_command(&mut self, class: &str) -> Command {
        self.claims += 1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexvol-controller"));
        command
            .args(["check", "--namespace=default", "--class", class])
            .args(["--size=10Mi", "--larger-size=20Mi"])
            .arg(format!("--kubeconfig={}", self.path("kubeconfig")));
        command
    }

    /// Runs the command `check` for a class. Returns whether it succeeded, and what it said.
    pub fn check(&mut self, class: &str, more: &[&str]) -> (bool, String) {
        let output = self.check_command(class).args(more).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// Sets a failpoint of a program, which is restarted during the next wait.
    pub fn will_end(&mut self, program: &'static str, end: String) {
        self.programs.killed = Some(Kill {
            program,
            end,
            happened: false,
        });
    }

    /// Whether the program has ended at its failpoint.
    pub fn has_ended(&self) -> bool {
        self.programs
            .killed
            .as_ref()
            .is_some_and(|kill| kill.happened)
    }

    pub fn restart_killed(&mut self) -> Result<(), String> {
        let mut ended = Vec::new();
        for (name, program) in &mut self.programs.running {
            if let Some(status) = program.try_wait().unwrap() {
                ended.push((name.clone(), status));
            }
        }
        for (name, status) in ended {
            match &mut self.programs.killed {
                Some(kill) if kill.program == name && !kill.happened => kill.happened = true,
                _ => return Err(format!("{name} ended: {status}")),
            }
            self.spawn(&name);
        }
        Ok(())
    }

    /// Kills a program: `controller`, or the agent of a node.
    pub fn kill(&mut self, name: &str) {
        let mut program = self.programs.running.remove(name).unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
    }

    /// The kernel's report of a program's memory, in KiB.
    pub fn memory(&self, name: &str, field: &str) -> u64 {
        let status = format!("/proc/{}/status", self.programs.running[name].id());
        let status = fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.unwrap().split_whitespace().next().unwrap();
        number.parse().unwrap()
    }

    /// Waits until a program exits by itself.
    pub fn wait_ended(&mut self, name: &str) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        let program = self.programs.running.get_mut(name).unwrap();
        while program.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                return Err(format!("waiting for the end of {name} in vain"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Starts a second controller, for this driver alone.
    pub fn start_another_controller(&mut self, driver: &str) {
        let more = [
            "--identity=two",
            "--namespace=other",
            "--lease-seconds=120",
            "--rate=1000",
        ];
        self.start_program_of("another", "controller", driver, &more);
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in self.running.values_mut() {
            // It may have exited by itself.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// Returns an unused address to listen on, outside of the ephemeral ports (`net.ipv4.ip_local_port_range`), which a
/// flood uses.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(process::id() % 10_000).unwrap_or_default();
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (first + next) % 20_000;
        if let Ok(free) = TcpListener::bind(("127.0.0.1", port)) {
            return free.local_addr().unwrap();
        }
    }
}
