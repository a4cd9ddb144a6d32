//! Observations and waits of scenarios while things happen to the node.

use crate::{objects::name_of, scenario::Scenario};
use flexvol_lab::kubernetes::run;
use serde_json::Value;
use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

impl Scenario {
    /// The ID of the pod's container, which changes with a restart of the container.
    #[track_caller]
    pub fn container(&self, pod: &Value) -> String {
        let (namespace, name) = name_of(pod);
        let status = self.get(namespace, "pod", name)["status"]["containerStatuses"][0].clone();
        status["containerID"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Waits until kubelet knows a running pod. After its start kubelet learns of pods one by one.
    #[track_caller]
    pub fn wait_known(&self, pod: &Value) {
        let (namespace, name) = name_of(pod);
        let exec = ["exec", name, "--namespace", namespace, "--", "true"];
        self.eventually(&format!("kubelet to know pod {name}"), || {
            self.lab().cluster().kubectl(&exec).is_ok()
        });
    }

    /// Waits until an enlarged claim waits for the node.
    #[track_caller]
    pub fn wait_pending(&self, name: &str) {
        self.eventually(&format!("claim {name} to wait for the node"), || {
            let claim = self.claim("default", name);
            let conditions = claim["status"]["conditions"].to_string();
            conditions.contains("FileSystemResizePending")
        });
    }

    /// kubelet's directory of a pod's volume, as seen from the machine.
    #[track_caller]
    pub fn directory(&self, pod: &Value, driver: &str, volume: &str) -> PathBuf {
        let volumes = self.directory_of(pod).join("volumes");
        let directory = volumes.join(driver.replace('/', "~")).join(volume);
        let node = self.lab().cluster().node();
        node.path(directory.to_str().unwrap())
    }

    /// Waits until a callout about a volume is running.
    #[track_caller]
    pub fn wait_begun(&self, callout: &str, volume: &str) {
        // Polls without a pause, because it may run for only a few milliseconds.
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.processes(&[callout, volume]).is_empty() {
            assert!(
                Instant::now() < deadline,
                "{callout} of {volume} did not run"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the processes of callouts about a volume.
    pub fn kill_callouts(&self, volume: &str) {
        for process in self.processes(&["kubernetes.io/pvOrVolumeName", volume]) {
            let mut kill = self.lab().cluster().node().command("/bin/kill");
            // It may have ended meanwhile.
            let _ = run(kill.args(["-s", "KILL", &process]));
        }
    }

    /// The node's processes whose arguments contain all of these texts.
    fn processes(&self, texts: &[&str]) -> Vec<String> {
        let proc = self.lab().cluster().node().path("/proc");
        let found = fs::read_dir(proc).unwrap().flatten().filter(|process| {
            // A process that ended meanwhile has no arguments.
            let words = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            texts.iter().all(|text| words.contains(text))
        });
        found
            .map(|process| process.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Whether kubelet has removed the directories of all pods.
    pub fn no_pods_on_disk(&self) -> bool {
        let pods = self.lab().cluster().node().path("/var/lib/kubelet/pods");
        fs::read_dir(pods).map_or(true, |mut pods| pods.next().is_none())
    }
}
