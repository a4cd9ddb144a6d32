//! A scenario makes objects and changes things, and leaves the node as it was before.

mod node;

use crate::{
    baseline::Baseline,
    calls::{Call, calls},
    lab::{DISK, Lab},
    objects::name_of,
};
use flexvol_lab::kubernetes::wait_until;
use serde_json::{Value, json};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

/// Timeout of everything that Kubernetes does by itself.
const PATIENCE: Duration = Duration::from_secs(300);

const MEBI: u64 = 1 << 20;

/// A running scenario. If it failed and is dropped without [`Scenario::end`], everything that it made is removed
/// nevertheless.
pub struct Scenario {
    lab: Lab,
    before: Baseline,
    calls_before: usize,
    ended: bool,
}

impl Scenario {
    pub fn begin() -> Self {
        let lab = Lab::take();
        // Waits until everything of an earlier failed scenario is gone.
        let pods = lab.cluster().node().path("/var/lib/kubelet/pods");
        let none = || Ok(fs::read_dir(&pods).map_or(true, |mut pods| pods.next().is_none()));
        wait_until("earlier pods to go", PATIENCE, none).unwrap_or_else(|e| panic!("{e}"));
        Scenario {
            before: Baseline::of(&lab),
            calls_before: calls(&lab).len(),
            lab,
            ended: false,
        }
    }

    /// A scenario in a cluster of its own, which is removed with everything in it.
    pub fn alone(lab: Lab) -> Self {
        Scenario {
            before: Baseline::default(),
            calls_before: 0,
            lab,
            ended: true,
        }
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn lab_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }

    /// The calls of these callouts about this volume that were made in this scenario.
    pub fn calls(&self, callouts: &[&str], volume: &str) -> Vec<Call> {
        let calls = calls(&self.lab).into_iter().skip(self.calls_before);
        calls
            .filter(|call| callouts.contains(&call.callout()) && call.mentions(volume))
            .collect()
    }

    /// Makes a volume of so many MiB with a persistent volume and a claim of the same name in the namespace, and
    /// waits until it is bound.
    #[track_caller]
    pub fn volume_in(&self, namespace: &str, driver: &str, name: &str, mebibytes: u64) {
        let size = format!("{mebibytes}Mi");
        let arguments = [
            name,
            "--size",
            &size,
            "--namespace",
            namespace,
            "--with-storage-class",
        ];
        self.lab
            .apply_text(&self.lab.flexvol(driver, "create", &arguments));
        let phase = || self.claim(namespace, name)["status"]["phase"].clone();
        self.eventually(&format!("claim {name} to be bound"), || phase() == "Bound");
    }

    /// The same in the default namespace.
    #[track_caller]
    pub fn volume(&self, driver: &str, name: &str, mebibytes: u64) {
        self.volume_in("default", driver, name, mebibytes);
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Value {
        self.get(namespace, "persistentvolumeclaim", name)
    }

    /// Reads an object.
    #[track_caller]
    pub fn get(&self, namespace: &str, kind: &str, name: &str) -> Value {
        let found = self.lab.cluster().object(namespace, kind, name);
        found.unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Makes objects.
    #[track_caller]
    pub fn apply(&self, objects: &[Value]) {
        self.lab
            .cluster()
            .apply(objects)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// Makes a pod and waits until its container runs.
    #[track_caller]
    pub fn run_pod(&self, pod: &Value) {
        self.apply(std::slice::from_ref(pod));
        self.wait_running(pod);
    }

    /// Waits until the pod's container runs.
    #[track_caller]
    pub fn wait_running(&self, pod: &Value) {
        let (namespace, name) = name_of(pod);
        let ready = || {
            let status =
                self.get(namespace, "pod", name)["status"]["containerStatuses"][0]["ready"].clone();
            status == true
        };
        if let Err(error) = wait_until(&format!("pod {name} to run"), PATIENCE, || Ok(ready())) {
            panic!("{error}\n{}", self.events(namespace, name));
        }
    }

    /// The events of an object as kubectl shows them.
    pub fn events(&self, namespace: &str, name: &str) -> String {
        let events = self.lab.cluster().events(namespace, name);
        let events = events.unwrap_or_else(|e| panic!("{e:#}"));
        events
            .iter()
            .map(|(reason, message)| format!("{reason} {message}\n"))
            .collect()
    }

    /// Waits for an event with this text.
    #[track_caller]
    pub fn wait_event(&self, namespace: &str, name: &str, text: &str) {
        self.eventually(&format!("an event of {name} with {text:?}"), || {
            self.events(namespace, name).contains(text)
        });
    }

    /// Deletes a pod and waits until it is gone.
    #[track_caller]
    pub fn delete_pod(&self, pod: &Value) {
        let (namespace, name) = name_of(pod);
        self.lab.kubectl(&[
            "delete",
            "pod",
            name,
            "--namespace",
            namespace,
            "--timeout=150s",
        ]);
    }

    /// Requests another size of a claim.
    #[track_caller]
    pub fn ask_for(&self, name: &str, mebibytes: u64) {
        let patch =
            json!({"spec": {"resources": {"requests": {"storage": format!("{mebibytes}Mi")}}}});
        self.lab
            .kubectl(&["patch", "pvc", name, "--patch", &patch.to_string()]);
    }

    /// Waits until the claim's status has so many MiB and nothing is pending.
    #[track_caller]
    pub fn wait_grown(&self, name: &str, mebibytes: u64) {
        self.wait_grown_to(name, &format!("{mebibytes}Mi"));
    }

    /// The same with the size as it is written in the claim.
    #[track_caller]
    pub fn wait_grown_to(&self, name: &str, size: &str) {
        let mut status = Value::Null;
        let grown = wait_until(&format!("claim {name} to have {size}"), PATIENCE, || {
            status = self.claim("default", name)["status"].clone();
            Ok(status["capacity"]["storage"] == size
                && !status["conditions"].to_string().contains("Resiz"))
        });
        grown.unwrap_or_else(|e| panic!("{e}: {status:#}\n{}", self.events("default", name)));
    }

    /// Runs a command in the pod's container and returns its output.
    #[track_caller]
    pub fn exec(&self, pod: &Value, script: &str) -> String {
        let (namespace, name) = name_of(pod);
        self.lab.kubectl(&[
            "exec",
            name,
            "--namespace",
            namespace,
            "--",
            "sh",
            "-c",
            script,
        ])
    }

    /// Size in MiB of the file system that the pod sees at `/data`, rounded up. It is smaller than the device by the
    /// file system's metadata.
    #[track_caller]
    pub fn size_in(&self, pod: &Value) -> u64 {
        let blocks = self.exec(pod, "stat -f -c '%b %S' /data");
        let numbers: Vec<u64> = blocks
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        (numbers[0] * numbers[1]).div_ceil(MEBI)
    }

    /// The options of a persistent volume.
    #[track_caller]
    pub fn options(&self, name: &str) -> Value {
        self.get("default", "persistentvolume", name)["spec"]["flexVolume"]["options"].clone()
    }

    /// Waits for something that Kubernetes does by itself.
    #[track_caller]
    pub fn eventually(&self, what: &str, mut question: impl FnMut() -> bool) {
        wait_until(what, PATIENCE, || Ok(question())).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Removes everything that was made and waits until the node looks as before: first without any use of a volume,
    /// then without the volumes.
    #[track_caller]
    pub fn end(mut self) {
        self.ended = true;
        self.delete_objects();
        self.wait_as_before("the last pod", Baseline::without_pool);
        self.delete_volumes();
        self.wait_as_before("the last volume", Baseline::clone);
    }

    #[track_caller]
    fn wait_as_before(&self, after: &str, of: fn(&Baseline) -> Baseline) {
        let before = of(&self.before);
        let mut difference = String::new();
        let same = wait_until("the node to look as before", PATIENCE, || {
            difference = before.difference(&of(&Baseline::of(&self.lab)));
            Ok(difference.is_empty())
        });
        assert!(
            same.is_ok(),
            "after {after} the scenario left:\n{difference}"
        );
    }

    fn delete_objects(&self) {
        // Exists only if the scenario filled the disk.
        let _ = fs::remove_file(self.filler());
        let delete = |what: &str| {
            let _ = self.lab.cluster().kubectl(&[
                "delete",
                what,
                "--all",
                "--all-namespaces",
                "--timeout=150s",
            ]);
        };
        delete("pods");
        delete("persistentvolumeclaims");
        delete("persistentvolumes");
        delete("secrets");
        delete("resourcequotas");
        // The next scenario may use the same names. Kubectl would delete hundreds of events one by one.
        let cluster = self.lab.cluster();
        let names = [
            "get",
            "namespaces",
            "--output=jsonpath={.items[*].metadata.name}",
        ];
        for namespace in cluster
            .kubectl(&names)
            .unwrap_or_default()
            .split_whitespace()
        {
            let events = format!("/api/v1/namespaces/{namespace}/events");
            let _ = cluster.kubectl(&["delete", "--raw", &events]);
        }
    }

    fn delete_volumes(&self) {
        for volume in self.volumes() {
            let json = json!({
                "kubernetes.io/pvOrVolumeName": volume["name"],
                "handle": volume["handle"],
                "pool": "default",
            });
            let deleted = self.lab.call(DISK, &["delete", &json.to_string()]);
            if let Err(error) = deleted
                && !thread::panicking()
            {
                panic!("delete {}: {error}", volume["name"]);
            }
        }
    }

    /// The output of `flexvol list`.
    #[track_caller]
    pub fn volumes(&self) -> Vec<Value> {
        let text = self.lab.flexvol(DISK, "list", &["--output", "json"]);
        let list: Value = serde_json::from_str(&text).unwrap();
        list["volumes"]
            .as_array()
            .unwrap_or_else(|| panic!("{text}"))
            .clone()
    }

    /// Runs a command in the pod's container that must fail, and returns its output.
    #[track_caller]
    pub fn exec_fails(&self, pod: &Value, script: &str) -> String {
        let (namespace, name) = name_of(pod);
        let exec = ["exec", name, "--namespace", namespace, "--"];
        let result = self
            .lab
            .cluster()
            .kubectl(&[&exec[..], &["sh", "-c", script]].concat());
        result.expect_err(script).to_string()
    }

    /// Makes a namespace. It stays, because nothing of it is on the node.
    #[track_caller]
    pub fn namespace(&self, name: &str) {
        self.apply(&[json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name},
        })]);
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if !self.ended {
            // The node may be switched off. Then later scenarios fail with messages of their own.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.delete_objects();
                // Volumes can be deleted when the last pod's directories are gone.
                let _ = wait_until("the pods to go", PATIENCE, || Ok(self.no_pods_on_disk()));
                self.delete_volumes();
            }));
        }
    }
}
