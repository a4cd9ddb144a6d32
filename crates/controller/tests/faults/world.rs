//! A world: both programs and drivers, with a double of the API server.

use crate::programs::{DRIVER, Programs};
use flexvol_apiserver::{Key, Kubernetes, Server};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The driver of the tests with a real Kubernetes.
pub const SCRIPT: &str = include_str!("../../../../tests/kubernetes/plain.sh");

/// Timeout of waits: longer than a late request and its consequences.
pub const TIMEOUT: Duration = Duration::from_secs(180);

pub const MEBI: u64 = 1 << 20;

/// The annotation by which the scheduler chooses a claim's node.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub struct World {
    /// Dropped first, before what the programs use.
    pub programs: Programs,
    pub server: Server,
    dir: TempDir,
    /// The largest size so far of each volume's storage.
    largest: BTreeMap<String, u64>,
    /// Number of claims that were created.
    pub claims: usize,
    /// Whether the driver may be asked for less than there is: nobody knows better if its answer was lost.
    pub may_ask_for_less: bool,
}

impl World {
    /// Starts a world without programs, with a class of the driver.
    pub fn start() -> Self {
        Self::beside(Kubernetes { expands: true })
    }

    /// Like [`start`](Self::start), with these of Kubernetes' own controllers.
    pub fn beside(kubernetes: Kubernetes) -> Self {
        let server = Server::start().unwrap();
        let dir = TempDir::new().unwrap();
        server.play(kubernetes);
        let world = World {
            server,
            dir,
            programs: Programs::default(),
            largest: BTreeMap::new(),
            claims: 0,
            may_ask_for_less: false,
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

    /// Creates a class of the driver, with additional fields.
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

    /// Adds a node of that name.
    pub fn node(&self, name: &str) {
        let labels = json!({"kubernetes.io/hostname": name});
        self.make(
            "Node",
            json!({"metadata": {"name": name, "labels": labels}}),
        );
    }

    /// Returns an object, or null.
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

    /// Chooses the node of a claim, as the scheduler does.
    pub fn choose_node(&self, name: &str, node: &str) {
        self.edit(
            name,
            &json!({"metadata": {"annotations": {SELECTED_NODE: node}}}),
        );
    }

    /// Waits until the scheduler is asked for another node than it chose for the claim.
    pub fn wait_rescheduling(&mut self, name: &str) -> Result<(), String> {
        self.eventually("the scheduler to be asked for another node", |world| {
            world.the_claim(name)["metadata"]["annotations"][SELECTED_NODE].is_null()
        })
    }

    /// Removes an object together with its finalizers, as an administrator does by force.
    pub fn remove_by_force(&self, key: &Key) {
        let free = json!({"metadata": {"finalizers": null}});
        let mut store = self.server.store();
        store.merge(key, &free).unwrap();
        store.remove(key).unwrap();
    }

    pub fn delete_claim(&self, name: &str) {
        let key = Key::new("PersistentVolumeClaim", "default", name);
        self.server.store().remove(&key).unwrap();
    }

    pub fn is_bound(&self, name: &str) -> bool {
        self.the_claim(name)["status"]["phase"] == "Bound"
    }

    /// Whether an event contains these words.
    pub fn told(&self, words: &str) -> bool {
        let events = self.server.store().all("Event").into_iter();
        let mut messages = events.map(|event| event["message"].to_string());
        messages.any(|message| message.contains(words))
    }

    /// Patches a NodeVolume's status as the command in a message does.
    pub fn carry_out(&self, message: &str) {
        let (_, command) = message.split_once("kubectl patch nodevolume ").unwrap();
        let (name, rest) = command
            .split_once(" --subresource=status --type=merge --patch '")
            .unwrap();
        let patch: Value = serde_json::from_str(rest.trim_end_matches('\'')).unwrap();
        let key = Key::new("NodeVolume", "", name);
        let mut store = self.server.store();
        store.merge_status(&key, &patch["status"]).unwrap();
    }

    pub fn nothing_is_left(&self) -> bool {
        let store = self.server.store();
        let kinds = ["PersistentVolumeClaim", "PersistentVolume", "NodeVolume"];
        let left: usize = kinds.iter().map(|kind| store.count(kind)).sum();
        drop(store);
        left == 0 && self.storage().is_empty()
    }

    /// The node of each existing storage.
    pub fn nodes_of_storage(&self) -> Vec<String> {
        let all = self.storage().into_keys();
        all.map(|name| name.split_once('/').unwrap().0.to_owned())
            .collect()
    }

    /// The sizes of all existing storage, by node and volume.
    pub fn storage(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for node in fs::read_dir(self.dir.path()).unwrap().flatten() {
            let volumes = fs::read_dir(node.path().join("storage"));
            for volume in volumes.into_iter().flatten().flatten() {
                // It has no size while it is being written or removed.
                let text = fs::read_to_string(volume.path().join("size"));
                let size = text.ok().and_then(|text| text.trim().parse().ok());
                let (node, volume) = (node.file_name(), volume.file_name());
                let name = format!("{}/{}", node.display(), volume.display());
                all.insert(name, size.unwrap_or(0));
            }
        }
        all
    }

    /// Waits for a condition, and checks meanwhile that no storage shrinks, nor would if the driver did as it is asked,
    /// that no claim has two storages, and that no program exits by itself.
    pub fn eventually(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so(self) {
            let storage = self.storage();
            if storage.len() > self.claims {
                return Err(format!(
                    "{} claims have storage of {storage:?}",
                    self.claims
                ));
            }
            // A late request may make storage of the same name again.
            self.largest
                .retain(|volume, _| storage.contains_key(volume));
            for (volume, size) in storage {
                let (node, name) = volume.split_once('/').unwrap();
                let less = self.path(&format!("{node}/storage/{name}/asked-for-less"));
                if !self.may_ask_for_less
                    && let Ok(less) = fs::read_to_string(less)
                {
                    return Err(format!("storage of {size} was asked to be {less}"));
                }
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

    /// The names of the programs' logs.
    pub fn log_files(&self) -> impl Iterator<Item = String> {
        let running = self.programs.running.keys();
        running.map(|name| format!("{name}.log"))
    }

    /// All requests, and the programs' logs.
    pub fn log(&self) -> String {
        let mut text = self.server.requests().join("\n");
        for file in self.log_files().chain(["calls".to_owned()]) {
            let said = fs::read_to_string(self.path(&file)).unwrap_or_default();
            text += &format!("\n{file}:\n{said}");
        }
        text
    }
}

/// Runs a story in this world. If it fails, panics with all requests and logs.
pub fn tell(mut world: World, story: impl FnOnce(&mut World) -> Result<(), String>) {
    if let Err(why) = story(&mut world) {
        panic!("{why}\n{}", world.log());
    }
}
