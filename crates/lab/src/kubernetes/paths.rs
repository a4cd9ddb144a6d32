//! Where things are: on the machine, below the node's home, and in the node's own view of files.

use std::path::{Path, PathBuf};

/// The machine's directory for labs, which is root's: what is in it can be believed.
#[must_use]
pub fn labs() -> &'static Path {
    Path::new("/var/cache/flexvol-lab")
}

/// In the node: where kubelet and the controller manager look for drivers, by default.
pub const PLUGINS: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// In the node: the data disk, on which a driver's pools are by default.
pub const DISK: &str = "/var/lib/flexvol";

/// In the node: keys and configuration of its components.
pub const CONFIGURATION: &str = "/var/lib/lab";

/// In the node: the programs of Kubernetes.
pub const PROGRAMS: &str = "/var/lib/lab/kubernetes";

/// In the node: what only lasts until it is rebooted, such as process ids.
pub const RUN: &str = "/run/lab";

/// In the node: how clients reach the API server, as its administrator.
pub const KUBECONFIG: &str = "/var/lib/lab/kubeconfig";

/// The node's own address, on its loopback interface: kubelet refuses 127.0.0.1.
pub const ADDRESS: &str = "10.77.0.1";

/// The addresses of services. Nothing in the node leads to any but the first.
pub const SERVICES: &str = "10.78.0.0/24";

/// The first of them, which is the API server's.
pub const SERVICE: &str = "10.78.0.1";

/// A directory of the machine that the node sees elsewhere, and keeps over a reboot.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Below the node's home.
    pub name: &'static str,
    /// In the node; every Debian has it.
    pub place: &'static str,
}

/// What the node does not share with the machine: all that its components write.
pub const KEPT: [Kept; 4] = [
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
];

/// A directory of the machine that holds one node.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// The home at a path.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Home(path.to_owned())
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Something in it that is not part of the node's files.
    #[must_use]
    pub fn own(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where the machine keeps one of [`KEPT`].
    #[must_use]
    pub fn kept(&self, kept: Kept) -> PathBuf {
        self.0.join("node").join(kept.name)
    }

    /// A file of the node, on the machine, also while the node is down; it must be in [`KEPT`].
    ///
    /// # Panics
    /// When nothing there is kept.
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
