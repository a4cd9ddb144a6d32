//! What people and accidents do to the node. Each is undone when it is dropped, also by a test
//! that failed: the scenarios after it have the same node.

use crate::scenario::Scenario;
use flexvol_lab::kubernetes::{Cluster, Component, wait_until};
use nix::sys::signal::Signal;
use std::{thread, time::Duration};

/// A component that does not run.
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

/// Waits until a component answers; one that has nothing to answer with is only started.
fn answers(cluster: &Cluster, component: Component) -> anyhow::Result<()> {
    if component != Component::Kubelet {
        return Ok(());
    }
    wait_until("kubelet to answer", Duration::from_secs(60), || {
        let path = "/api/v1/nodes/node/proxy/healthz";
        Ok(cluster.kubectl(&["get", "--raw", path]).is_ok())
    })
}
