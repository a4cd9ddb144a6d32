//! Kubelet's configuration.

use super::{
    containerd::SOCKET,
    node,
    paths::{ADDRESS, CONFIGURATION, Home, KUBECONFIG, PLUGINS},
    version::Version,
};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;

const FILE: &str = "/var/lib/lab/kubelet.yaml";

/// Writes the configuration of kubelet for a release.
///
/// It allows for a small machine, which cannot reserve resources, may be rather full, may have swap, and may have only
/// cgroup v1.
pub fn configure(home: &Home, version: Version) -> Result<()> {
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "1Mi"},
        "failSwapOn": false,
        // Rate limit of requests to the API server: the default since 1.27. With the former one many pods wait for it.
        "kubeAPIBurst": 100,
        "kubeAPIQPS": 50,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": false,
        // An attached volume is mounted only after the node's status lists it as in use. The default is ten seconds.
        "nodeStatusUpdateFrequency": "2s",
        "oomScoreAdj": 0,
        "resolvConf": "",
        // Interval of checks of a running pod's volumes; the default is a minute.
        "syncFrequency": "5s",
        "volumePluginDir": PLUGINS,
    });
    if version.minor() >= 27 {
        configuration["containerRuntimeEndpoint"] = format!("unix://{SOCKET}").into();
    }
    if version.minor() >= 31 {
        configuration["failCgroupV1"] = false.into();
    }
    fs::write(home.file(FILE), configuration.to_string()).context("write kubelet's configuration")
}

/// Returns kubelet's arguments, for what its configuration file does not support.
pub fn arguments(version: Version) -> Vec<String> {
    let mut arguments = vec![
        format!("--config={FILE}"),
        format!("--kubeconfig={KUBECONFIG}"),
        format!("--cert-dir={CONFIGURATION}/kubelet"),
        format!("--hostname-override={}", node::NAME),
        format!("--node-ip={ADDRESS}"),
    ];
    if version.minor() < 27 {
        arguments.push(format!("--container-runtime-endpoint=unix://{SOCKET}"));
    }
    if version.minor() < 24 {
        arguments.push("--container-runtime=remote".to_owned());
    }
    arguments
}
