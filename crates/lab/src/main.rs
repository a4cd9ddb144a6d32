//! `flexvol-lab`: real Kubernetes nodes and a virtual machine, for tests and manual use; and checks of the chart.

#![allow(clippy::print_stdout, reason = "what a person asked for")]

mod chart;
mod machine;
mod matrix_table;
mod project;
mod release_matrix;
mod report;
mod requirements;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use flexvol_lab::{
    helm,
    kubernetes::{
        Cluster, Component, NodeLifetime, Pods, Programs, VERSIONS, Version, become_init, labs,
    },
};
use std::{
    env,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

/// Real Kubernetes nodes on this machine, and a virtual machine
#[derive(Debug, Parser)]
#[command(name = "scripts/lab")]
enum Lab {
    /// A node with its control plane, in namespaces of their own
    #[command(subcommand)]
    Kubernetes(Kubernetes),
    /// A virtual machine with a Debian kernel, device-mapper, quotas and all capabilities
    #[command(subcommand)]
    Vm(machine::Vm),
    Chart(chart::Chart),
    /// Helm, built from its Go module
    Helm {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The first process of a node
    #[command(hide = true)]
    Init {
        home: PathBuf,
        programs: PathBuf,
        stage: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Kubernetes {
    /// List the releases that can be had, and whether they are built
    Versions,
    /// Build a release's programs, or every one's with --every
    Build {
        #[command(flatten)]
        release: ReleaseArgs,
        /// Every release that is tested
        #[arg(long)]
        every: bool,
    },
    /// Start a node and wait until it is ready
    Up(ReleaseArgs),
    /// Say what runs
    Status(ReleaseArgs),
    /// Run a program in the node, such as kubectl get pods
    Run {
        #[command(flatten)]
        release: ReleaseArgs,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// End the node and remove what it had
    Down(ReleaseArgs),
    /// Run Kubernetes' own volume plugin on the drivers built here, with flags of Go's tests
    Contract {
        #[command(flatten)]
        release: ReleaseArgs,
        /// Such as -test.run PATTERN
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    Requirements(requirements::Write),
    /// Run everything that is tested with a real Kubernetes, and print a table of it
    ///
    /// That is Kubernetes' own plugin code on the installed drivers, and the scenarios on a node.
    Test {
        #[command(flatten)]
        release: ReleaseArgs,
        /// Every release that is tested
        #[arg(long)]
        every: bool,
        /// How many releases at a time
        #[arg(long, value_name = "N", default_value_t = 1)]
        jobs: usize,
        /// Also write what these releases did into docs/evidence/kubernetes.md, and the newest one's into docs/evidence/requirements.md
        #[arg(long)]
        write: bool,
        /// For the scenarios, after --: --seed S, --seconds N or --every-point
        #[arg(last = true)]
        arguments: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct ReleaseArgs {
    /// The release of Kubernetes
    #[arg(long, default_value_t = Version::newest())]
    version: Version,
}

impl ReleaseArgs {
    fn versions(&self, every: bool) -> Vec<Version> {
        if every {
            VERSIONS.to_vec()
        } else {
            vec![self.version]
        }
    }

    fn directory(&self) -> PathBuf {
        labs().join(self.version.to_string())
    }

    fn running(&self) -> Result<Cluster> {
        Cluster::of(&self.directory(), &executable()?)?.with_context(|| {
            format!(
                "no node of {} runs; start one: scripts/lab kubernetes up",
                self.version
            )
        })
    }
}

fn main() -> Result<ExitCode> {
    match Lab::parse() {
        Lab::Init {
            home,
            programs,
            stage,
        } => become_init(&home, &programs, stage.as_deref())?,
        Lab::Kubernetes(verb) => verb.run()?,
        Lab::Chart(verb) => verb.run()?,
        Lab::Helm { arguments } => {
            let error = Command::new(helm::program()?).args(arguments).exec();
            return Err(error).context("start helm");
        }
        Lab::Vm(verb) => return verb.run(),
    }
    Ok(ExitCode::SUCCESS)
}

fn executable() -> Result<PathBuf> {
    env::current_exe().context("find this executable")
}

impl Kubernetes {
    fn run(self) -> Result<()> {
        match self {
            Kubernetes::Versions => {
                for version in VERSIONS {
                    match Programs::seconds(version)? {
                        Some(seconds) => println!("{version:<10} built in {seconds} s"),
                        None => println!("{version:<10} not built"),
                    }
                }
                Ok(())
            }
            Kubernetes::Build { release, every } => {
                for version in release.versions(every) {
                    let started = Instant::now();
                    let programs = Programs::of(version)?;
                    println!(
                        "{version}  {}  {:.0} s",
                        programs.directory().display(),
                        started.elapsed().as_secs_f64()
                    );
                }
                Ok(())
            }
            Kubernetes::Up(release) => {
                let programs = Programs::of(release.version)?;
                let started = Instant::now();
                let cluster = Cluster::up(
                    &release.directory(),
                    programs,
                    &executable()?,
                    NodeLifetime::TakenDown,
                    Pods::Clients,
                )?;
                println!(
                    "Kubernetes {} is ready after {:.1} s; try: scripts/lab kubernetes run --version {} kubectl get nodes",
                    cluster.server_version()?,
                    started.elapsed().as_secs_f64(),
                    release.version
                );
                Ok(())
            }
            Kubernetes::Status(release) => {
                let cluster = release.running()?;
                for component in Component::ALL {
                    match cluster.node().running(component.name()) {
                        Some(pid) => println!("{:<24} process {pid}", component.name()),
                        None => println!("{:<24} not running", component.name()),
                    }
                }
                println!(
                    "server {}, files in {}",
                    cluster.server_version()?,
                    cluster.home().display()
                );
                Ok(())
            }
            Kubernetes::Run { release, command } => {
                let cluster = release.running()?;
                let [program, arguments @ ..] = &command[..] else {
                    bail!("name a program");
                };
                let mut command = cluster.node().command(program);
                let error = command.args(arguments).stdin(Stdio::inherit()).exec();
                Err(error).context("enter the node")
            }
            Kubernetes::Down(release) => Cluster::down(&release.directory()),
            Kubernetes::Contract { release, flags } => {
                let error = release_matrix::contract(release.version)?
                    .args(flags)
                    .exec();
                Err(error).context("run the tests")
            }
            Kubernetes::Requirements(verb) => verb.run(),
            Kubernetes::Test {
                release,
                every,
                jobs,
                write,
                arguments,
            } => release_matrix::run(&release.versions(every), jobs, write, &arguments),
        }
    }
}
