//! The container runtime: Debian's containerd and runc, configured for a small machine.

use super::{
    image::PAUSE,
    paths::{Home, SERVICES},
};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;

/// Path of its socket in the node.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// Path of its configuration in the node.
pub const FILE: &str = "/var/lib/lab/containerd.toml";

/// Path of its network configuration in the node.
const NETWORKS: &str = "/var/lib/lab/networks";

/// Directory of CNI plugins in Debian (package containernetworking-plugins).
const NETWORK_PROGRAMS: &str = "/usr/lib/cni";

/// Writes the configuration.
///
/// Containers get no control groups and no own OOM score, because a machine within a container allows neither. Their
/// root file systems are copies, because the host may use an overlay file system, and overlays cannot be nested.
pub fn configure(home: &Home) -> Result<()> {
    let plugin = "plugins.\"io.containerd.grpc.v1.cri\"";
    let text = format!(
        "version = 2\n\
         root = \"/var/lib/containerd\"\n\
         state = \"/run/containerd\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"/var/lib/containerd/opt\"\n\
         [grpc]\naddress = \"{SOCKET}\"\n\
         [{plugin}]\n\
         sandbox_image = \"{PAUSE}\"\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         disable_cgroup = true\n\
         [{plugin}.containerd]\nsnapshotter = \"native\"\n\
         [{plugin}.cni]\nbin_dir = \"{NETWORK_PROGRAMS}\"\nconf_dir = \"{NETWORKS}\"\n"
    );
    fs::write(home.file(FILE), text).context("write containerd's configuration")?;
    let network = json!({
        "cniVersion": "0.3.1",
        "name": "pods",
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "subnet": "10.79.0.0/16",
            "routes": [{"dst": SERVICES}],
            "dataDir": "/run/networks",
        },
    });
    fs::create_dir_all(home.file(NETWORKS))?;
    fs::write(
        home.file(NETWORKS).join("10-pods.conf"),
        network.to_string(),
    )
    .context("write the network's configuration")
}
