//! Faults of the node and actions of people. Each is undone on drop, even if its test failed, because later
//! scenarios use the same node.

use crate::{lab::DRIVERS, scenario::Scenario};
use flexvol_lab::kubernetes::{Cluster, Component, wait_until};
use flexvol_testing::volume_id;
use nix::sys::signal::Signal;
use std::{fs, fs::File, thread, time::Duration};

/// A stopped component.
pub struct Stopped<'a> {
    scenario: &'a Scenario,
    component: Component,
}

impl<'a> Stopped<'a> {
    #[track_caller]
    pub fn by(scenario: &'a Scenario, component: Component, signal: Signal) -> Self {
        let stopped = scenario.lab().cluster().stop(component, signal);
        stopped.unwrap_or_else(|e| panic!("{e}"));
        Stopped {
            scenario,
            component,
        }
    }

    /// Starts it again and waits until it answers.
    pub fn start(self) {}
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let cluster = self.scenario.lab().cluster();
        let started = cluster
            .start(self.component)
            .and_then(|()| answers(cluster, self.component));
        if !thread::panicking() {
            started.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// A component with additional arguments.
pub struct Changed<'a> {
    scenario: &'a Scenario,
    component: Component,
}

impl<'a> Changed<'a> {
    #[track_caller]
    pub fn with(scenario: &'a Scenario, component: Component, more: &[&str]) -> Self {
        let cluster = scenario.lab().cluster();
        let changed = cluster
            .stop(component, Signal::SIGTERM)
            .and_then(|()| cluster.start_with(component, more));
        changed.unwrap_or_else(|e| panic!("{e}"));
        Changed {
            scenario,
            component,
        }
    }

    /// Runs it as before.
    pub fn back(self) {}
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        let cluster = self.scenario.lab().cluster();
        let restarted = cluster
            .stop(self.component, Signal::SIGTERM)
            .and_then(|()| cluster.start(self.component));
        if !thread::panicking() {
            restarted.unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// Waits until kubelet answers. Other components are only started.
fn answers(cluster: &Cluster, component: Component) -> anyhow::Result<()> {
    if component != Component::Kubelet {
        return Ok(());
    }
    wait_until("kubelet to answer", Duration::from_secs(60), || {
        let path = "/api/v1/nodes/node/proxy/healthz";
        Ok(cluster.kubectl(&["get", "--raw", path]).is_ok())
    })
}

/// A volume on which another callout seems to work: its lock is held.
pub struct Busy(File);

impl Busy {
    #[track_caller]
    pub fn volume(scenario: &Scenario, name: &str) -> Self {
        let options = scenario.options(name);
        let lock = format!(
            "/run/flexvol/lock/{}",
            volume_id(options["handle"].as_str().unwrap())
        );
        let lock = scenario.lab().cluster().node().path(&lock);
        let file = File::options()
            .append(true)
            .create(true)
            .open(lock)
            .unwrap();
        file.lock().unwrap();
        Busy(file)
    }

    /// Releases the lock.
    pub fn end(self) {
        self.0.unlock().unwrap();
    }
}

/// A recorded driver with an extended configuration.
pub struct Configured<'a> {
    scenario: &'a Scenario,
    driver: &'static str,
    before: String,
}

impl<'a> Configured<'a> {
    /// Extends the configuration of the pool, which is the last section.
    #[track_caller]
    pub fn with(scenario: &'a Scenario, driver: &'static str, more: &str) -> Self {
        let (_, name) = driver.split_once('/').unwrap();
        let home = format!("{DRIVERS}/{}/.{name}.toml", driver.replace('/', "~"));
        let before = fs::read_to_string(scenario.lab().cluster().file(&home)).unwrap();
        let configured = Configured {
            scenario,
            driver,
            before,
        };
        configured.install(&format!("{}{more}", configured.before));
        configured
    }

    fn install(&self, configuration: &str) {
        let lab = self.scenario.lab();
        let file = "/var/lib/lab/changed.toml";
        fs::write(lab.cluster().file(file), configuration).unwrap();
        let driver = ["--name", self.driver, "--plugin-dir", DRIVERS];
        lab.run(
            "flexvol",
            &[&["install", "--config", file], &driver[..]].concat(),
        );
    }

    /// Restores the previous configuration.
    pub fn restore(self) {}
}

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        self.install(&self.before);
    }
}
