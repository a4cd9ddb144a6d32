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

/// Writes what kubelet of this release reads.
///
/// A small machine has no room to reserve, may be fuller than kubelet likes, may have swap, and
/// may have only the older control groups.
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
        // How much kubelet may ask of the API server: the default since 1.27, before which many
        // pods at once waited for that alone.
        "kubeAPIBurst": 100,
        "kubeAPIQPS": 50,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": false,
        // A volume that is attached is mounted only when the node's status has said that it is in
        // use; ten seconds is the default.
        "nodeStatusUpdateFrequency": "2s",
        "oomScoreAdj": 0,
        "resolvConf": "",
        // How soon a running pod's volumes are looked at again; a minute is the default.
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

/// Kubelet's arguments: what its file cannot say.
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
