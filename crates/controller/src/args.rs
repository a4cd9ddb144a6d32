//! Command line arguments.

use clap::{Args, Parser, Subcommand, value_parser};
use flexvol_controller::{
    agent::{HEARTBEAT, exec::DEADLINE},
    cli::status::Output,
    drivers::{Driver, Repeated, ServedDrivers},
    placement::SILENCE,
};
use flexvol_sdk::Bytes;
use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

/// Provisioner, expander and deleter for FlexVolume drivers
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

/// Longest lifetime of a certificate in seconds: ten years. A longer one is a typing error, and may end at a date that
/// a certificate cannot express.
pub const LONGEST_CERTIFICATE: u64 = 3650 * 86400;

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Decide what is to be done for each claim; one in a cluster leads
    Controller(ControllerArguments),
    /// Call this node's drivers as the controller orders; one on each node
    Agent(AgentArguments),
    /// Show volumes being provisioned, expanding, pending or failed, and why
    Status(StatusArguments),
    /// Cancel an expansion that cannot succeed, so that the claim requests what it has
    Recover(RecoverArguments),
    /// Make a claim, grow and delete it, and say what was seen
    Check(CheckArguments),
    /// Enter a mount namespace and become a program; what agents call drivers by
    #[command(hide = true)]
    Enter(EnterArguments),
}

#[derive(Debug, Args)]
pub struct Common {
    /// A FlexVolume driver, vendor/driver, which is the provisioner of its storage classes; as
    /// vendor/driver=NAME another name of the provisioner, by which the scheduler looks for room
    #[arg(long = "driver", required = true, value_name = "NAME")]
    pub drivers: Vec<Driver>,
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address for health and metrics endpoints: /healthz, /readyz, /metrics [default: disabled]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
}

impl Common {
    pub fn ours(&self) -> Result<ServedDrivers, Repeated> {
        ServedDrivers::of(&self.drivers)
    }
}

#[derive(Debug, Args)]
pub struct ControllerArguments {
    #[command(flatten)]
    pub common: Common,
    /// The namespace of the lease [default: $POD_NAMESPACE, or else flexvol]
    #[arg(long)]
    pub namespace: Option<String>,
    /// What this installation is called: its lease NAME-controller, the webhooks' configurations NAME, their Service and
    /// Secret NAME-webhook
    #[arg(long, default_value = "flexvol", value_name = "NAME")]
    pub instance: String,
    /// The Deployment of this process, in the same namespace, with which goes what the scheduler is told of
    /// room [default: it goes with what agents say of their nodes]
    #[arg(long, value_name = "NAME")]
    pub deployment: Option<String>,
    /// Who this process is; no two that run may have the same [default: $POD_NAME]
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    /// How long others wait before they take the lease of a leader that is silent
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub lease_seconds: u16,
    /// After how long a node counts as away if its agent is silent: three heartbeats, and something
    #[arg(long, default_value_t = SILENCE.as_secs(), value_name = "SECONDS")]
    pub silence_seconds: u64,
    /// Requests to the API server a second [default: as many as it lets us, or 20 if it has no priority and fairness]
    #[arg(long, value_name = "NUMBER")]
    pub rate: Option<f64>,
    /// Address for admission webhooks [default: disabled]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub webhooks: Option<SocketAddr>,
    /// How long the webhooks' certificate lasts; it is renewed after two thirds of it
    #[arg(long, default_value_t = 90 * 86400, value_name = "SECONDS", value_parser = value_parser!(u64).range(30..=LONGEST_CERTIFICATE))]
    pub certificate_seconds: u64,
}

#[derive(Debug, Args)]
pub struct AgentArguments {
    #[command(flatten)]
    pub common: Common,
    /// The node's name in Kubernetes [default: $NODE_NAME]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Where kubelet finds drivers
    #[arg(
        long,
        default_value = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
        value_name = "DIRECTORY"
    )]
    pub plugin_dir: PathBuf,
    /// The mount namespace in which drivers run: /proc/1/ns/mnt in a pod with hostPID
    #[arg(long, value_name = "FILE")]
    pub mounts: Option<PathBuf>,
    /// How often the node is told to be there, and what is on it, at least
    #[arg(long, default_value_t = HEARTBEAT.as_secs(), value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=3600))]
    pub heartbeat_seconds: u64,
    /// How long a driver may take before it is killed, 3600 at most
    #[arg(long, default_value_t = DEADLINE.as_secs(), value_name = "SECONDS")]
    pub deadline: u64,
    /// Requests to the API server a second [default: as many as it lets us, or 20 if it has no priority and fairness]
    #[arg(long, value_name = "NUMBER")]
    pub rate: Option<f64>,
}

#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n  flexvol-controller status -n shop\n  flexvol-controller status --all -o json\n\n",
    "Exit status: 0 done, 1 failed, 2 wrong usage",
))]
pub struct StatusArguments {
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Show also those that are settled
    #[arg(long)]
    pub all: bool,
    /// Only claims of this namespace [default: all]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// table, wide, json, yaml or name
    #[arg(
        long,
        short,
        value_enum,
        default_value = "table",
        hide_possible_values = true
    )]
    pub output: Output,
    /// Keep running, and show it again every interval
    #[arg(long)]
    pub watch: bool,
    /// How often --watch shows it
    #[arg(long, default_value_t = 2, value_name = "SECONDS", requires = "watch", value_parser = value_parser!(u16).range(1..))]
    pub interval: u16,
}

#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n  flexvol-controller recover data -n shop --dry-run\n  flexvol-controller recover data -n shop --size 2Gi\n\n",
    "Exit status: 0 done, 1 failed, 2 wrong usage",
))]
pub struct RecoverArguments {
    /// The claim
    #[arg(value_name = "CLAIM")]
    pub name: String,
    /// Its namespace [default: as the kubeconfig says]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// What it requests then [default: what its storage has]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Bytes>,
    /// The UID of the namespace that shall have the data, where it was deleted and recreated since a former run
    #[arg(long, value_name = "UID")]
    pub namespace_uid: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// How long Kubernetes may take for each part of its own
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u32,
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The storage class of the claim, whose volumeBindingMode is Immediate: no pod uses the claim
    #[arg(long, value_name = "NAME")]
    pub class: String,
    /// The claim's namespace [default: as the kubeconfig says]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// What the claim asks for
    #[arg(long, default_value = "320Mi", value_name = "SIZE")]
    pub size: Bytes,
    /// What it asks for then
    #[arg(long, default_value = "384Mi", value_name = "SIZE")]
    pub larger_size: Bytes,
    /// How long each part may take
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub timeout: u32,
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct EnterArguments {
    /// Who calls; the program ends with it
    #[arg(long)]
    pub agent: u32,
    #[arg(long)]
    pub mounts: Option<PathBuf>,
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_may_be_said_with_another_name_of_its_provisioner() {
        let asked = |driver: &str| {
            let driver = format!("--driver={driver}");
            Cli::try_parse_from(["flexvol-controller", "controller", &driver])
        };
        let Verb::Controller(arguments) = asked("a/b=b.a").unwrap().verb else {
            panic!("it is a controller");
        };
        assert_eq!(
            arguments.common.ours().unwrap().scheduled("b.a"),
            Some("a/b")
        );
        let refused = asked("a/b=b/a").unwrap_err().to_string();
        assert!(refused.contains("name of a CSIDriver"), "{refused}");
    }

    #[test]
    fn a_certificate_lasts_for_ten_years_at_most() {
        let asked = |seconds: u64| {
            let lasting = format!("--certificate-seconds={seconds}");
            Cli::try_parse_from(["flexvol-controller", "controller", "--driver=a/b", &lasting])
        };
        assert!(asked(29).is_err());
        assert!(asked(LONGEST_CERTIFICATE).is_ok());
        assert!(asked(LONGEST_CERTIFICATE + 1).is_err());
        assert!(asked(u64::MAX).is_err());
    }

    #[test]
    fn a_deadline_that_was_accepted_by_former_versions_ends_no_agent() {
        for seconds in [0, 7200, u64::MAX] {
            let deadline = format!("--deadline={seconds}");
            let asked =
                Cli::try_parse_from(["flexvol-controller", "agent", "--driver=a/b", &deadline]);
            assert!(asked.is_ok(), "{asked:?}");
        }
    }
}
