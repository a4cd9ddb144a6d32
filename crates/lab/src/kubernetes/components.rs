//! The programs of a cluster, and how each is started.

use super::{
    containerd, kubelet,
    paths::{ADDRESS, CONFIGURATION, KUBECONFIG, PLUGINS, PROGRAMS},
    version::Version,
};

/// A program of the cluster that goes on running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The database.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers, among them the one that attaches volumes.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// The container runtime.
    Containerd,
    /// The node's agent, which calls the driver.
    Kubelet,
}

/// The file of the one token, which is an administrator's.
pub const TOKENS: &str = "/var/lib/lab/tokens.csv";

/// The key that signs service accounts' tokens.
pub const KEY: &str = "/var/lib/lab/service-accounts.key";

impl Component {
    /// All of them, in the order in which they can be started.
    pub const ALL: [Component; 6] = [
        Component::Etcd,
        Component::Containerd,
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::Kubelet,
    ];

    /// The program's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Component::Etcd => "etcd",
            Component::ApiServer => "kube-apiserver",
            Component::ControllerManager => "kube-controller-manager",
            Component::Scheduler => "kube-scheduler",
            Component::Containerd => "containerd",
            Component::Kubelet => "kubelet",
        }
    }

    /// The program's path in the node.
    #[must_use]
    pub fn program(self) -> String {
        match self {
            Component::Etcd | Component::Containerd => format!("/usr/bin/{}", self.name()),
            _ => format!("{PROGRAMS}/{}", self.name()),
        }
    }

    /// Its arguments for a release of Kubernetes.
    #[must_use]
    pub fn arguments(self, version: Version) -> Vec<String> {
        let arguments: &[&str] = match self {
            Component::Etcd => &[
                "--data-dir=/var/lib/etcd",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
            Component::ApiServer => &[
                "--etcd-servers=http://127.0.0.1:2379",
                "--bind-address=127.0.0.1",
                &format!("--advertise-address={ADDRESS}"),
                &format!("--cert-dir={CONFIGURATION}/apiserver"),
                &format!("--token-auth-file={TOKENS}"),
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.78.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-account-key-file={KEY}"),
                &format!("--service-account-signing-key-file={KEY}"),
                "--kubelet-preferred-address-types=InternalIP",
                "--disable-admission-plugins=ServiceAccount",
                "--allow-privileged",
            ],
            Component::ControllerManager => &[
                &format!("--kubeconfig={KUBECONFIG}"),
                &format!("--flex-volume-plugin-dir={PLUGINS}"),
                // How soon it asks again what is attached; a minute is the default.
                "--attach-detach-reconcile-sync-period=5s",
                "--leader-elect=false",
            ],
            Component::Scheduler => &[
                &format!("--kubeconfig={KUBECONFIG}"),
                "--leader-elect=false",
            ],
            Component::Containerd => &[&format!("--config={}", containerd::FILE)],
            Component::Kubelet => return kubelet::arguments(version),
        };
        arguments.iter().map(ToString::to_string).collect()
    }
}
