//! The programs of a cluster, and their command lines.

use super::{
    containerd, kubelet,
    paths::{ADDRESS, CONFIGURATION, KUBECONFIG, PLUGINS, PROGRAMS, SERVICES},
    version::Version,
};

/// A long-running program of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The database.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers, including the attach/detach controller.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// The container runtime.
    Containerd,
    /// The node's agent, which calls drivers.
    Kubelet,
}

/// Relation of pods to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Pods have no tokens and need no service accounts.
    Apart,
    /// Pods reach the API server through its service, with the tokens of their service accounts.
    Clients,
}

impl Pods {
    /// Returns the API server's port. Nothing forwards the service's port, so the server listens on it itself.
    #[must_use]
    pub const fn server_port(self) -> u16 {
        match self {
            Pods::Apart => 6443,
            Pods::Clients => 443,
        }
    }
}

/// File of the administrator's token, the only one.
pub const TOKENS: &str = "/var/lib/lab/tokens.csv";

/// Key that signs service account tokens.
pub const KEY: &str = "/var/lib/lab/service-accounts.key";

impl Component {
    /// All components, in a possible start order.
    pub const ALL: [Component; 6] = [
        Component::Etcd,
        Component::Containerd,
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::Kubelet,
    ];

    /// Returns the program's name.
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

    /// Returns the program's path in the node.
    #[must_use]
    pub fn program(self) -> String {
        match self {
            Component::Etcd | Component::Containerd => format!("/usr/bin/{}", self.name()),
            _ => format!("{PROGRAMS}/{}", self.name()),
        }
    }

    /// Returns the arguments for a release of Kubernetes.
    #[must_use]
    pub fn arguments(self, version: Version, pods: Pods) -> Vec<String> {
        let clients = pods == Pods::Clients;
        let arguments: &[&str] = match self {
            Component::Etcd => &[
                "--data-dir=/var/lib/etcd",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
            Component::ApiServer => &[
                "--etcd-servers=http://127.0.0.1:2379",
                if clients {
                    "--bind-address=0.0.0.0"
                } else {
                    "--bind-address=127.0.0.1"
                },
                &format!("--secure-port={}", pods.server_port()),
                &format!("--advertise-address={ADDRESS}"),
                &format!("--cert-dir={CONFIGURATION}/apiserver"),
                &format!("--token-auth-file={TOKENS}"),
                "--authorization-mode=RBAC",
                &format!("--service-cluster-ip-range={SERVICES}"),
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-account-key-file={KEY}"),
                &format!("--service-account-signing-key-file={KEY}"),
                "--kubelet-preferred-address-types=InternalIP",
                "--allow-privileged",
                if clients {
                    "--enable-admission-plugins=ServiceAccount"
                } else {
                    "--disable-admission-plugins=ServiceAccount"
                },
            ],
            Component::ControllerManager => &[
                &format!("--kubeconfig={KUBECONFIG}"),
                &format!("--flex-volume-plugin-dir={PLUGINS}"),
                // Interval of checks of attached volumes; the default is a minute.
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
        let mut arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        if clients && self == Component::ApiServer {
            // Webhooks in pods are called at the pods' addresses, because nothing forwards service addresses.
            arguments.push("--enable-aggregator-routing".to_owned());
        }
        if clients && self == Component::ControllerManager {
            // The signing key of service account tokens, and the certificate by which pods trust the API server.
            arguments.push(format!("--service-account-private-key-file={KEY}"));
            arguments.push(format!(
                "--root-ca-file={CONFIGURATION}/apiserver/apiserver.crt"
            ));
        }
        arguments
    }
}
