//! `flexvol-controller`: the cluster's half of flexvol.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, value_parser};
use flexvol_controller::{
    admission,
    agent::{
        Agent, HEARTBEAT,
        call::{DEADLINE, Drivers},
    },
    api::{self, Budget, Fence},
    controller::Controller,
    enter, leader, log,
    metrics::Metrics,
    nodes::SILENCE,
    recover,
    serve::{self, Ready},
    status,
};
use flexvol_sdk::Bytes;
use kube::Client;
use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Makes, grows and deletes the volumes of claims, with any FlexVolume driver
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Ten years: whatever is wanted beyond is a mistake, and later dates are none.
const LONGEST_CERTIFICATE: u64 = 3650 * 86400;

#[derive(Debug, Subcommand)]
enum Verb {
    /// Decide what is to be done for each claim; one in a cluster leads
    Controller(ControllerArguments),
    /// Call this node's drivers as the controller orders; one on each node
    Agent(AgentArguments),
    /// Show the volumes that are being made, grow, wait or fail, and why
    Status(StatusArguments),
    /// Take back a growth that cannot be had, so that a claim asks for what it has
    Recover(RecoverArguments),
    /// Enter a mount namespace and become a program; what agents call drivers by
    #[command(hide = true)]
    Enter(EnterArguments),
}

#[derive(Debug, Args)]
struct Common {
    /// A FlexVolume driver, vendor/driver; it is also the provisioner of its storage classes
    #[arg(long = "driver", required = true, value_name = "NAME")]
    drivers: Vec<String>,
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are answered [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Args)]
struct ControllerArguments {
    #[command(flatten)]
    common: Common,
    /// The namespace of the lease [default: $POD_NAMESPACE, or else flexvol]
    #[arg(long)]
    namespace: Option<String>,
    /// Who this process is; no two that run may have the same [default: $POD_NAME]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// How long others wait before they take the lease of a leader that is silent
    #[arg(long, default_value_t = 15, value_name = "SECONDS")]
    lease_seconds: u16,
    /// After how long a node counts as away if its agent is silent: three heartbeats, and something
    #[arg(long, default_value_t = SILENCE.as_secs(), value_name = "SECONDS")]
    silence_seconds: u64,
    /// Requests to the API server a second
    #[arg(long, default_value_t = 20.0, value_name = "NUMBER")]
    rate: f64,
    /// Where admission webhooks are served [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    webhooks: Option<SocketAddr>,
    /// How long the webhooks' certificate lasts; it is renewed after two thirds of it
    #[arg(long, default_value_t = 90 * 86400, value_name = "SECONDS", value_parser = value_parser!(u64).range(30..=LONGEST_CERTIFICATE))]
    certificate_seconds: u64,
}

#[derive(Debug, Args)]
struct AgentArguments {
    #[command(flatten)]
    common: Common,
    /// The node's name in Kubernetes [default: $NODE_NAME]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Where kubelet finds drivers
    #[arg(
        long,
        default_value = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
        value_name = "DIRECTORY"
    )]
    plugin_dir: PathBuf,
    /// The mount namespace in which drivers run: /proc/1/ns/mnt in a pod with hostPID
    #[arg(long, value_name = "FILE")]
    mounts: Option<PathBuf>,
    /// How often the node is told to be there, and what is on it, at least
    #[arg(long, default_value_t = HEARTBEAT.as_secs(), value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=3600))]
    heartbeat_seconds: u64,
    /// How long a driver may take before it is killed
    #[arg(long, default_value_t = DEADLINE.as_secs(), value_name = "SECONDS")]
    deadline: u64,
    /// Requests to the API server a second
    #[arg(long, default_value_t = 20.0, value_name = "NUMBER")]
    rate: f64,
}

#[derive(Debug, Args)]
struct StatusArguments {
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Show also those that are settled
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
struct RecoverArguments {
    /// The claim
    #[arg(value_name = "CLAIM")]
    name: String,
    /// Its namespace [default: as the kubeconfig says]
    #[arg(long, short)]
    namespace: Option<String>,
    /// What it shall ask for [default: what its storage has]
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// How long Kubernetes may take for each part of its own
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u32,
    /// How to reach the API server [default: $KUBECONFIG, or else as pods do]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct EnterArguments {
    /// Who calls; the program ends with it
    #[arg(long)]
    agent: u32,
    #[arg(long)]
    mounts: Option<PathBuf>,
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    let has_reader = matches!(verb, Verb::Status(_) | Verb::Recover(_));
    let result = match verb {
        // Before there are threads.
        Verb::Enter(EnterArguments {
            agent,
            mounts,
            program,
        }) => enter::enter(agent, mounts.as_deref(), &program),
        Verb::Controller(arguments) => block_on(controller(arguments)),
        Verb::Agent(arguments) => block_on(agent(arguments)),
        Verb::Status(arguments) => block_on(show(arguments)),
        Verb::Recover(arguments) => block_on(recover(arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if has_reader => {
            // Nobody to tell it.
            let _ = writeln!(io::stderr(), "flexvol-controller: {}", api::words(&error));
            ExitCode::FAILURE
        }
        Err(error) => {
            log::write("error", &format!("{error:#}"), &[]);
            ExitCode::FAILURE
        }
    }
}

fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .context("hear signals")?;
        tokio::select! {
            done = work => done,
            // Every step may be cut anywhere, so there is nothing to finish.
            _ = stop.recv() => Ok(()),
        }
    })
}

/// What was said, or stands in the environment, as manifests put it there.
fn said(option: Option<String>, flag: &str, variable: &str) -> Result<String> {
    option
        .or_else(|| env::var(variable).ok())
        .filter(|value| !value.is_empty())
        .with_context(|| format!("say {flag}, or set {variable}"))
}

fn kubeconfig(option: Option<&Path>) -> Option<PathBuf> {
    option.map(Path::to_owned).or_else(|| {
        env::var_os("KUBECONFIG")
            .filter(|file| !file.is_empty())
            .map(Into::into)
    })
}

async fn listen(common: &Common, metrics: &Metrics, ready: Ready) -> Result<()> {
    match common.listen {
        Some(address) => serve::serve(address, metrics.clone(), ready).await,
        None => Ok(()),
    }
}

async fn controller(arguments: ControllerArguments) -> Result<()> {
    let identity = said(arguments.identity.clone(), "--identity", "POD_NAME")?;
    let namespace = said(arguments.namespace.clone(), "--namespace", "POD_NAMESPACE")
        .unwrap_or_else(|_| "flexvol".to_owned());
    let metrics = Metrics::default();
    let fence = Fence::default();
    let common = &arguments.common;
    let budget = Budget {
        rate: arguments.rate.max(1.0),
        burst: 40,
    };
    let kubeconfig = kubeconfig(common.kubeconfig.as_deref());
    let client = api::connect(
        kubeconfig.as_deref(),
        budget,
        fence.clone(),
        metrics.clone(),
    )
    .await?;
    let silence = Duration::from_secs(arguments.silence_seconds);
    let drivers = common.drivers.clone();
    let controller = Controller::new(client.clone(), drivers, silence, metrics.clone());
    let leading = Arc::new(AtomicBool::new(false));
    let (this, leads) = (Arc::clone(&controller), Arc::clone(&leading));
    let certified = webhooks(&arguments, &namespace, &client, &leading, &metrics).await?;
    // One that waits for the lease is as ready as it can be.
    let ready =
        Arc::new(move || (!leads.load(Ordering::Relaxed) || this.is_ready()) && certified());
    listen(common, &metrics, ready).await?;
    let term = leader::Term::new(arguments.lease_seconds);
    leader::lead(&client, &namespace, &identity, term, fence).await?;
    leading.store(true, Ordering::Relaxed);
    metrics.leading.set(1);
    controller.run().await;
    Ok(())
}

/// Serves webhooks, if they are wanted, and says whether they have a certificate.
async fn webhooks(
    arguments: &ControllerArguments,
    namespace: &str,
    writer: &Client,
    leading: &Arc<AtomicBool>,
    metrics: &Metrics,
) -> Result<Ready> {
    let Some(address) = arguments.webhooks else {
        return Ok(Arc::new(|| true));
    };
    let budget = Budget {
        rate: 50.0,
        burst: 100,
    };
    let common = &arguments.common;
    let kubeconfig = kubeconfig(common.kubeconfig.as_deref());
    let fence = Fence::default();
    let reader = api::connect(kubeconfig.as_deref(), budget, fence, metrics.clone()).await?;
    let settings = admission::Settings {
        address,
        namespace: namespace.to_owned(),
        lifetime: Duration::from_secs(arguments.certificate_seconds),
        drivers: common.drivers.clone(),
        silence: Duration::from_secs(arguments.silence_seconds),
    };
    let (writer, leading) = (writer.clone(), Arc::clone(leading));
    let certified = admission::start(settings, writer, reader, leading, metrics.clone()).await?;
    Ok(Arc::new(certified))
}

async fn agent(arguments: AgentArguments) -> Result<()> {
    check_namespace(arguments.mounts.as_deref())?;
    let node = said(arguments.node, "--node", "NODE_NAME")?;
    let metrics = Metrics::default();
    let common = &arguments.common;
    let budget = Budget {
        rate: arguments.rate.max(1.0),
        burst: 40,
    };
    let kubeconfig = kubeconfig(common.kubeconfig.as_deref());
    let client = api::connect(
        kubeconfig.as_deref(),
        budget,
        Fence::default(),
        metrics.clone(),
    )
    .await?;
    let drivers = Drivers {
        plugins: arguments.plugin_dir,
        mounts: arguments.mounts,
        deadline: Duration::from_secs(arguments.deadline.max(1)),
    };
    let names = common.drivers.clone();
    let heartbeat = Duration::from_secs(arguments.heartbeat_seconds);
    let agent = Agent::new(client, node, names, drivers, heartbeat, metrics.clone());
    let this = Arc::clone(&agent);
    listen(common, &metrics, Arc::new(move || this.is_ready())).await?;
    agent.run().await;
    Ok(())
}

/// The way to the API server for somebody who waits at a terminal.
async fn person(kubeconfig: Option<&Path>) -> Result<Client> {
    let budget = Budget {
        rate: 20.0,
        burst: 40,
    };
    let kubeconfig = self::kubeconfig(kubeconfig);
    let metrics = Metrics::default();
    api::connect(kubeconfig.as_deref(), budget, Fence::default(), metrics).await
}

async fn show(arguments: StatusArguments) -> Result<()> {
    let client = person(arguments.kubeconfig.as_deref()).await?;
    let table = status::table(&client, arguments.all).await?;
    print(&table)
}

async fn recover(arguments: RecoverArguments) -> Result<()> {
    let client = person(arguments.kubeconfig.as_deref()).await?;
    let namespace = arguments.namespace;
    let wanted = recover::Wanted {
        namespace: namespace.unwrap_or_else(|| client.default_namespace().to_owned()),
        name: arguments.name,
        size: arguments.size,
        dry_run: arguments.dry_run,
        patience: Duration::from_secs(arguments.timeout.into()),
    };
    recover::recover(&client, &wanted, &|text| print(&format!("{text}\n"))).await
}

fn print(text: &str) -> Result<()> {
    let mut output = io::stdout();
    output.write_all(text.as_bytes()).context("print")
}

/// In a pod that does not see the host's processes, process 1 is our own, and its mounts are ours:
/// a driver there would make volumes that the node does not see.
fn check_namespace(mounts: Option<&Path>) -> Result<()> {
    let Some(mounts) = mounts else { return Ok(()) };
    let there = fs::metadata(mounts).with_context(|| format!("find {}", mounts.display()))?;
    let here = fs::metadata("/proc/self/ns/mnt").context("find the own mount namespace")?;
    let same = |a: &fs::Metadata, b: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        (a.dev(), a.ino()) == (b.dev(), b.ino())
    };
    anyhow::ensure!(
        process::id() == 1 || !same(&there, &here),
        "{} is this process's own mount namespace, not the host's; the pod needs hostPID: true",
        mounts.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
