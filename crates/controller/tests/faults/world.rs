//! Both programs and drivers, beside a double of the API server.

use flexvol_apiserver::{Key, Kubernetes, Server};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A driver of directories; its file system needs no growth.
const DRIVER: &str = "lab.example/plain";

/// That of the tests with a real Kubernetes.
pub const SCRIPT: &str = include_str!("../../../../tests/kubernetes/plain.sh");

/// Longer than a request that is answered too late, and what waits for it.
const PATIENCE: Duration = Duration::from_secs(180);

pub const MEBI: u64 = 1 << 20;

pub struct World {
    pub server: Server,
    dir: TempDir,
    programs: BTreeMap<String, Child>,
    /// The most that the storage of each volume had.
    largest: BTreeMap<String, u64>,
    /// How many claims were made.
    claims: usize,
    /// Where other programs are looked for, if it is not where the tests do.
    paths: Option<&'static str>,
    /// How each program was started last.
    started: BTreeMap<String, Vec<String>>,
    /// A program that ends at one of its writes, and is started again.
    killed: Option<Kill>,
}

/// The end of a program, as if it had been killed, as `FLEXVOL_CONTROLLER_END` says it.
struct Kill {
    program: &'static str,
    end: String,
    happened: bool,
}

impl World {
    /// Without any program, and with a class of the driver.
    pub fn start() -> Self {
        Self::beside(Kubernetes { expands: true })
    }

    /// The same, beside these of Kubernetes' own controllers.
    pub fn beside(kubernetes: Kubernetes) -> Self {
        let server = Server::start().unwrap();
        let dir = TempDir::new().unwrap();
        server.play(kubernetes);
        let world = World {
            server,
            dir,
            programs: BTreeMap::new(),
            largest: BTreeMap::new(),
            claims: 0,
            paths: None,
            started: BTreeMap::new(),
            killed: None,
        };
        world.class("plain", &json!({}));
        fs::write(world.path("kubeconfig"), world.server.kubeconfig()).unwrap();
        world
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub fn make(&self, kind: &str, object: Value) {
        let said = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let key = Key::new(kind, said("namespace"), said("name"));
        self.server.store().create(&key, object).unwrap();
    }

    /// Makes a class of the driver, with more than it needs.
    pub fn class(&self, name: &str, more: &Value) {
        let mut class = json!({
            "metadata": {"name": name}, "provisioner": DRIVER, "allowVolumeExpansion": true,
        });
        for (key, value) in more.as_object().unwrap() {
            class[key] = value.clone();
        }
        self.make("StorageClass", class);
    }

    pub fn claim(&mut self, name: &str, class: &str) {
        self.claims += 1;
        self.make(
            "PersistentVolumeClaim",
            json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": class,
                    "resources": {"requests": {"storage": "10Mi"}},
                },
            }),
        );
    }

    /// Kubernetes has a node of that name.
    pub fn node(&self, name: &str) {
        let labels = json!({"kubernetes.io/hostname": name});
        self.make(
            "Node",
            json!({"metadata": {"name": name, "labels": labels}}),
        );
    }

    /// On a busy machine a lease is renewed late, and none of these tests is about leases.
    pub fn start_controller(&mut self, more: &[&str]) {
        self.start_leader(120, more);
    }

    /// Starts a controller whose lease lasts so long.
    pub fn start_leader(&mut self, seconds: u16, more: &[&str]) {
        let lasts = format!("--lease-seconds={seconds}");
        let own = ["--identity=one", &lasts];
        self.start_program("controller", "controller", &[&own[..], more].concat());
    }

    /// As in our image: no other program is there.
    pub fn without_programs(&mut self) {
        self.paths = Some("/nonexistent");
    }

    /// Programs find the API server by a name.
    pub fn name_server(&self) {
        let text = self.server.kubeconfig().replace("127.0.0.1", "localhost");
        fs::write(self.path("kubeconfig"), text).unwrap();
    }

    /// Starts the agent of a node, which has storage of its own.
    pub fn start_agent(&mut self, node: &str, more: &[&str]) {
        let plugins = self.path(&format!("{node}/plugins"));
        if !Path::new(&plugins).exists() {
            self.install(node);
        }
        let own = [format!("--node={node}"), format!("--plugin-dir={plugins}")];
        let own = own.each_ref().map(String::as_str);
        self.start_program(node, "agent", &[&own[..], more].concat());
    }

    fn install(&self, node: &str) {
        let storage = self.path(&format!("{node}/storage"));
        fs::create_dir_all(&storage).unwrap();
        let log = format!("#!/bin/sh\necho \"$*\" >>{}\n", self.path("calls"));
        let script =
            SCRIPT
                .replace("/var/lib/lab/plain", &storage)
                .replacen("#!/bin/sh\n", &log, 1);
        self.install_script(node, &script);
    }

    /// The driver of a node is another script.
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

    fn start_program_of(&mut self, name: &str, verb: &str, driver: &str, more: &[&str]) {
        let own = [
            verb.to_owned(),
            format!("--driver={driver}"),
            format!("--kubeconfig={}", self.path("kubeconfig")),
        ];
        let more = more.iter().map(ToString::to_string);
        self.started
            .insert(name.to_owned(), own.into_iter().chain(more).collect());
        self.spawn(name);
    }

    fn spawn(&mut self, name: &str) {
        let log = self.path(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let kill = self.killed.as_ref();
        let kill = kill.filter(|kill| kill.program == name && !kill.happened);
        let program = Command::new(env!("CARGO_BIN_EXE_flexvol-controller"))
            .args(&self.started[name])
            .envs(self.paths.map(|paths| ("PATH", paths)))
            .envs(kill.map(|kill| ("FLEXVOL_CONTROLLER_END", &kill.end)))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn();
        self.programs.insert(name.to_owned(), program.unwrap());
    }

    /// A program will end at one of its writes, and is started again when something is waited for.
    pub fn will_end(&mut self, program: &'static str, end: String) {
        self.killed = Some(Kill {
            program,
            end,
            happened: false,
        });
    }

    /// Whether a program has ended as it was to.
    pub fn has_ended(&self) -> bool {
        self.killed.as_ref().is_some_and(|kill| kill.happened)
    }

    fn restart_killed(&mut self) -> Result<(), String> {
        let mut ended = Vec::new();
        for (name, program) in &mut self.programs {
            if let Some(status) = program.try_wait().unwrap() {
                ended.push((name.clone(), status));
            }
        }
        for (name, status) in ended {
            match &mut self.killed {
                Some(kill) if kill.program == name && !kill.happened => kill.happened = true,
                _ => return Err(format!("{name} ended: {status}")),
            }
            self.spawn(&name);
        }
        Ok(())
    }

    /// Kills a program: `controller`, or the agent of a node.
    pub fn kill(&mut self, name: &str) {
        let mut program = self.programs.remove(name).unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
    }

    /// What the kernel says of a program's memory, in KiB.
    pub fn memory(&self, name: &str, field: &str) -> u64 {
        let status = format!("/proc/{}/status", self.programs[name].id());
        let status = fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.unwrap().split_whitespace().next().unwrap();
        number.parse().unwrap()
    }

    /// Waits until a program ends by itself.
    pub fn wait_ended(&mut self, name: &str) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let program = self.programs.get_mut(name).unwrap();
        while program.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                return Err(format!("waiting for the end of {name} in vain"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Starts another controller beside the first, for this driver alone.
    pub fn start_another_controller(&mut self, driver: &str) {
        let more = [
            "--identity=two",
            "--namespace=other",
            "--lease-seconds=120",
            "--rate=1000",
        ];
        self.start_program_of("another", "controller", driver, &more);
    }

    /// An object, or nothing.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Value {
        let key = Key::new(kind, namespace, name);
        self.server.store().get(&key).unwrap_or_default()
    }

    pub fn the_claim(&self, name: &str) -> Value {
        self.get("PersistentVolumeClaim", "default", name)
    }

    /// Merges a patch into a claim, as its user does.
    pub fn edit(&self, name: &str, patch: &Value) {
        let key = Key::new("PersistentVolumeClaim", "default", name);
        self.server.store().merge(&key, patch).unwrap();
    }

    pub fn ask_for(&self, name: &str, size: &str) {
        self.edit(
            name,
            &json!({"spec": {"resources": {"requests": {"storage": size}}}}),
        );
    }

    pub fn delete_claim(&self, name: &str) {
        let key = Key::new("PersistentVolumeClaim", "default", name);
        self.server.store().remove(&key).unwrap();
    }

    pub fn is_bound(&self, name: &str) -> bool {
        self.the_claim(name)["status"]["phase"] == "Bound"
    }

    /// Whether somebody was told this.
    pub fn told(&self, words: &str) -> bool {
        let events = self.server.store().all("Event").into_iter();
        let mut messages = events.map(|event| event["message"].to_string());
        messages.any(|message| message.contains(words))
    }

    pub fn nothing_is_left(&self) -> bool {
        let store = self.server.store();
        let kinds = ["PersistentVolumeClaim", "PersistentVolume", "NodeVolume"];
        let left: usize = kinds.iter().map(|kind| store.count(kind)).sum();
        drop(store);
        left == 0 && self.storage().is_empty()
    }

    /// The nodes that have storage, one for each piece.
    pub fn nodes_of_storage(&self) -> Vec<String> {
        let all = self.storage().into_keys();
        all.map(|name| name.split_once('/').unwrap().0.to_owned())
            .collect()
    }

    /// The sizes of all storage there is, by node and volume.
    pub fn storage(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for node in fs::read_dir(self.dir.path()).unwrap().flatten() {
            let volumes = fs::read_dir(node.path().join("storage"));
            for volume in volumes.into_iter().flatten().flatten() {
                // While it is being written or removed it has none.
                let text = fs::read_to_string(volume.path().join("size"));
                let size = text.ok().and_then(|text| text.trim().parse().ok());
                let (node, volume) = (node.file_name(), volume.file_name());
                let name = format!("{}/{}", node.display(), volume.display());
                all.insert(name, size.unwrap_or(0));
            }
        }
        all
    }

    /// Waits until something is so, while no storage shrinks, no claim has two pieces of it, and no program
    /// ends by itself.
    pub fn eventually(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            let storage = self.storage();
            if storage.len() > self.claims {
                return Err(format!(
                    "{} claims have storage of {storage:?}",
                    self.claims
                ));
            }
            // A request that was late may make storage of the same name once more.
            self.largest
                .retain(|volume, _| storage.contains_key(volume));
            for (volume, size) in storage {
                let largest = self.largest.entry(volume).or_default();
                if size > 0 && size < *largest {
                    return Err(format!("storage of {largest} shrank to {size}"));
                }
                *largest = size.max(*largest);
            }
            if Instant::now() > deadline {
                return Err(format!("waiting for {what} in vain"));
            }
            self.restart_killed()?;
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// What was asked, and what the programs said.
    pub fn log(&self) -> String {
        let mut text = self.server.requests().join("\n");
        let logs = self.programs.keys().map(|name| format!("{name}.log"));
        for file in logs.chain(["calls".to_owned()]) {
            let said = fs::read_to_string(self.path(&file)).unwrap_or_default();
            text += &format!("\n{file}:\n{said}");
        }
        text
    }
}

/// Tells a story of this world; where it goes otherwise, with all that was asked and said.
pub fn tell(mut world: World, story: impl FnOnce(&mut World) -> Result<(), String>) {
    if let Err(why) = story(&mut world) {
        panic!("{why}\n{}", world.log());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for program in self.programs.values_mut() {
            // It may have ended by itself.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}
