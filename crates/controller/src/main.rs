//! `flexvol-controller`: the controller, the agent, and commands for administrators.
#![forbid(unsafe_code)]

mod args;

use anyhow::{Context as _, Result, anyhow};
use args::{
    AgentArguments, CheckArguments, Cli, Common, ControllerArguments, EnterArguments,
    RecoverArguments, StatusArguments, Verb,
};
use clap::Parser;
use flexvol_controller::{
    admission,
    agent::{
        Agent,
        exec::{Drivers, deadline},
        nsenter,
    },
    cli::{
        check, recover,
        status::{self, StatusOptions},
    },
    client::{self, Budget, Fence},
    leader,
    placement::Nodes,
    reconcile::{self, storage_capacity, volume::Context},
    server::probes::{self, Ready},
    support::{log, metrics::Metrics},
};
use kube::Client;
use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    let has_reader = matches!(verb, Verb::Status(_) | Verb::Recover(_) | Verb::Check(_));
    let result = match verb {
        // Has to run before threads exist.
        Verb::Enter(EnterArguments {
            agent,
            mounts,
            program,
        }) => nsenter::enter(agent, mounts.as_deref(), &program),
        Verb::Controller(arguments) => block_on(until_terminated(controller(arguments))),
        Verb::Agent(arguments) => block_on(until_terminated(agent(arguments))),
        Verb::Status(arguments) => block_on(unless_interrupted(show(arguments))),
        Verb::Recover(arguments) => block_on(unless_interrupted(recover(arguments))),
        Verb::Check(arguments) => block_on(check(arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if has_reader => {
            // A failed write to standard error cannot be reported.
            let _ = writeln!(
                io::stderr(),
                "flexvol-controller: {}",
                client::error_message(&error)
            );
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
    runtime.block_on(work)
}

/// Runs a program until it is terminated. Each of its steps may be interrupted, so it needs no cleanup.
async fn until_terminated(work: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("hear signals")?;
    tokio::select! {
        done = work => done,
        _ = terminated.recv() => Ok(()),
    }
}

/// Runs a command, which has failed if it is terminated. The first process of a container is not ended by a signal that
/// it does not hear.
async fn unless_interrupted(work: impl Future<Output = Result<()>>) -> Result<()> {
    let interrupted = interrupted()?;
    tokio::select! {
        done = work => done,
        error = interrupted => Err(error),
    }
}

fn interrupted() -> Result<impl Future<Output = anyhow::Error>> {
    let hear = |kind| signal(kind).context("hear signals");
    let (mut interrupt, mut terminate) = (
        hear(SignalKind::interrupt())?,
        hear(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        anyhow!("interrupted before its end")
    })
}

/// Returns the option's value, or else the environment variable that manifests set.
fn option_or_env(option: Option<String>, flag: &str, variable: &str) -> Result<String> {
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
        Some(address) => probes::serve(address, metrics.clone(), ready).await,
        None => Ok(()),
    }
}

async fn controller(arguments: ControllerArguments) -> Result<()> {
    let identity = option_or_env(arguments.identity.clone(), "--identity", "POD_NAME")?;
    let namespace = option_or_env(arguments.namespace.clone(), "--namespace", "POD_NAMESPACE")
        .unwrap_or_else(|_| "flexvol".to_owned());
    let metrics = Metrics::default();
    let fence = Fence::default();
    let common = &arguments.common;
    let budget = Budget::of(arguments.rate);
    let kubeconfig = kubeconfig(common.kubeconfig.as_deref());
    let connect = |budget| {
        client::connect(
            kubeconfig.as_deref(),
            budget,
            fence.clone(),
            metrics.clone(),
        )
    };
    let client = connect(budget).await?;
    // A client of its own: with many nodes, publishing makes many requests, and no claim may wait for them.
    let publisher = connect(Budget {
        rate: 50.0,
        burst: 10,
        yields: false,
    })
    .await?;
    let silence = Duration::from_secs(arguments.silence_seconds);
    let ours = common.ours()?;
    let nodes = Arc::new(Nodes::new(silence));
    let context = Context::new(
        client.clone(),
        ours.clone(),
        Arc::clone(&nodes),
        metrics.clone(),
    );
    let leading = Arc::new(AtomicBool::new(false));
    let (this, leads) = (Arc::clone(&context), Arc::clone(&leading));
    let certified = webhooks(&arguments, &namespace, &client, &leading, &metrics).await?;
    let ready = move || certified() && (!leads.load(Ordering::Relaxed) || this.is_ready());
    listen(common, &metrics, Arc::new(ready)).await?;
    let term = leader::Term::new(arguments.lease_seconds);
    let lease = format!("{}-controller", arguments.instance);
    leader::lead(&client, &namespace, &lease, &identity, term, fence).await?;
    leading.store(true, Ordering::Relaxed);
    metrics.leading.set(1);
    let this = Arc::clone(&context);
    tokio::spawn(storage_capacity::publish(
        publisher,
        namespace,
        arguments.deployment,
        ours,
        nodes,
        move || this.is_ready(),
    ));
    reconcile::run(context).await;
    Ok(())
}

/// Serves webhooks, if configured, and returns a check that their certificate is valid.
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
    let common = &arguments.common;
    let kubeconfig = kubeconfig(common.kubeconfig.as_deref());
    let (reads, fence) = (admission::READS, Fence::default());
    let reader = client::connect(kubeconfig.as_deref(), reads, fence, metrics.clone()).await?;
    let settings = admission::Settings {
        address,
        namespace: namespace.to_owned(),
        instance: arguments.instance.clone(),
        lifetime: Duration::from_secs(arguments.certificate_seconds),
        ours: common.ours()?,
        silence: Duration::from_secs(arguments.silence_seconds),
    };
    let (writer, leading) = (writer.clone(), Arc::clone(leading));
    let certified = admission::start(settings, writer, reader, leading, metrics.clone())?;
    Ok(Arc::new(certified))
}

async fn agent(arguments: AgentArguments) -> Result<()> {
    check_namespace(arguments.mounts.as_deref())?;
    let node = option_or_env(arguments.node, "--node", "NODE_NAME")?;
    let metrics = Metrics::default();
    let common = &arguments.common;
    let budget = Budget::of(arguments.rate);
    let kubeconfig = kubeconfig(common.kubeconfig.as_deref());
    let client = client::connect(
        kubeconfig.as_deref(),
        budget,
        Fence::default(),
        metrics.clone(),
    )
    .await?;
    let drivers = Drivers {
        plugins: arguments.plugin_dir,
        mounts: arguments.mounts,
        deadline: deadline(arguments.deadline),
    };
    let ours = common.ours()?;
    let heartbeat = Duration::from_secs(arguments.heartbeat_seconds);
    let agent = Agent::new(client, node, ours, drivers, heartbeat, metrics.clone());
    let this = Arc::clone(&agent);
    listen(common, &metrics, Arc::new(move || this.is_ready())).await?;
    agent.run().await;
    Ok(())
}

async fn person(kubeconfig: Option<&Path>) -> Result<Client> {
    let kubeconfig = self::kubeconfig(kubeconfig);
    client::connect_person(kubeconfig.as_deref()).await
}

async fn show(arguments: StatusArguments) -> Result<()> {
    let client = person(arguments.kubeconfig.as_deref()).await?;
    let options = StatusOptions {
        all: arguments.all,
        namespace: arguments.namespace,
        output: arguments.output,
    };
    loop {
        print(&status::show(&client, &options).await?)?;
        if !arguments.watch {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(arguments.interval.into())).await;
    }
}

async fn recover(arguments: RecoverArguments) -> Result<()> {
    let client = person(arguments.kubeconfig.as_deref()).await?;
    let namespace = arguments.namespace;
    let wanted = recover::RecoverOptions {
        namespace: namespace.unwrap_or_else(|| client.default_namespace().to_owned()),
        name: arguments.name,
        size: arguments.size,
        namespace_uid: arguments.namespace_uid,
        dry_run: arguments.dry_run,
        patience: Duration::from_secs(arguments.timeout.into()),
    };
    recover::recover(&client, &wanted, &|text| print(&format!("{text}\n"))).await
}

async fn check(arguments: CheckArguments) -> Result<()> {
    let client = person(arguments.kubeconfig.as_deref()).await?;
    let namespace = arguments.namespace;
    let wanted = check::CheckOptions {
        namespace: namespace.unwrap_or_else(|| client.default_namespace().to_owned()),
        class: arguments.class,
        size: arguments.size,
        larger_size: arguments.larger_size,
        patience: Duration::from_secs(arguments.timeout.into()),
    };
    // The claim is deleted whether or not anybody reads.
    let say = |text: &str| drop(print(&format!("{text}\n")));
    check::check(&client, &wanted, &say, interrupted()?).await
}

fn print(text: &str) -> Result<()> {
    let mut output = io::stdout();
    output.write_all(text.as_bytes()).context("print")
}

/// Fails if `mounts` is this process's own mount namespace. Without `hostPID`, process 1 is one of the pod's, often this
/// one, and volumes that a driver mounts in its namespace are invisible to the node.
fn check_namespace(mounts: Option<&Path>) -> Result<()> {
    let Some(mounts) = mounts else { return Ok(()) };
    let there = fs::metadata(mounts).with_context(|| format!("find {}", mounts.display()))?;
    let here = fs::metadata("/proc/self/ns/mnt").context("find the own mount namespace")?;
    let same = |a: &fs::Metadata, b: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        (a.dev(), a.ino()) == (b.dev(), b.ino())
    };
    anyhow::ensure!(
        !same(&there, &here),
        "{} is this process's own mount namespace, not the host's; the pod needs hostPID: true",
        mounts.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_do_not_run_in_the_mount_namespace_of_the_agent() {
        assert!(check_namespace(None).is_ok());
        let own = check_namespace(Some(Path::new("/proc/self/ns/mnt"))).expect_err("its own");
        assert!(own.to_string().contains("hostPID: true"), "{own}");
        assert!(check_namespace(Some(Path::new("/proc/self/ns/pid"))).is_ok());
    }
}
