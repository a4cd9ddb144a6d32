//! Paths: on the host, in the node's home, and in the node.

use std::path::{Path, PathBuf};

/// Directory of labs on the host. It belongs to root, so its content is trusted.
#[must_use]
pub fn labs() -> &'static Path {
    Path::new("/var/cache/flexvol-lab")
}

/// In the node: default plugin directory of kubelet and the controller manager.
pub const PLUGINS: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// In the node: mount point of the data disk, the default place of drivers' pools.
pub const DISK: &str = "/var/lib/flexvol";

/// In the node: keys and configuration of components.
pub const CONFIGURATION: &str = "/var/lib/lab";

/// In the node: the programs of Kubernetes.
pub const PROGRAMS: &str = "/var/lib/lab/kubernetes";

/// In the node: files that vanish at a reboot, such as process ids.
pub const RUN: &str = "/run/lab";

/// In the node: the administrator's kubeconfig.
pub const KUBECONFIG: &str = "/var/lib/lab/kubeconfig";

/// The node's address, on its loopback interface. Kubelet refuses 127.0.0.1.
pub const ADDRESS: &str = "10.77.0.1";

/// Address range of services. Only the first address can be reached in the node.
pub const SERVICES: &str = "10.78.0.0/24";

/// First address of the range, the API server's.
pub const SERVICE: &str = "10.78.0.1";

/// A directory of the host that the node sees at another path and keeps over a reboot.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Name in the node's home.
    pub name: &'static str,
    /// Path in the node. The directory is made on the host where it is missing.
    pub place: &'static str,
}

/// Directories that the node does not share with the host: everything its components write to.
pub const KEPT: [Kept; 5] = [
    Kept {
        name: "lib",
        place: "/var/lib",
    },
    Kept {
        name: "log",
        place: "/var/log",
    },
    Kept {
        name: "libexec",
        place: "/usr/libexec",
    },
    Kept {
        name: "bin",
        place: "/usr/local/bin",
    },
    Kept {
        name: "etc",
        place: "/etc/flexvol",
    },
];

/// Directory on the host of one node.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// Returns the home at a path.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Home(path.to_owned())
    }

    /// Returns the path of the home.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a path in the home outside the node's files.
    #[must_use]
    pub fn own(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the host's path of one of [`KEPT`].
    #[must_use]
    pub fn kept(&self, kept: Kept) -> PathBuf {
        self.0.join("node").join(kept.name)
    }

    /// Returns the host's path of a file in the node, which must be in [`KEPT`]. Works while the node is down.
    ///
    /// # Panics
    /// When the file is not in [`KEPT`].
    #[must_use]
    pub fn file(&self, in_node: &str) -> PathBuf {
        let found = KEPT.iter().find_map(|kept| {
            let below = Path::new(in_node).strip_prefix(kept.place).ok()?;
            Some(self.kept(*kept).join(below))
        });
        found.unwrap_or_else(|| panic!("{in_node} is not kept"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_node_have_a_place_on_the_machine() {
        let home = Home::at(Path::new("/lab"));
        assert_eq!(
            home.file(KUBECONFIG),
            Path::new("/lab/node/lib/lab/kubeconfig")
        );
        assert_eq!(
            home.file(PLUGINS),
            Path::new("/lab/node/libexec/kubernetes/kubelet-plugins/volume/exec")
        );
    }
}
