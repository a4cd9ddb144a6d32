//! `flexvol doctor`: reports what this node lacks, with remedies.

mod filesystems;
mod installed;
mod kernel;
mod kubernetes;
mod raid;

use super::{output::Output, print, table::table, terminal};
use crate::{
    backends::{BACKENDS, PoolConfig, Pools},
    check::{Check, Verdict},
    config::Config,
    installed::Installed,
    plugin::{DriverName, drivers},
};
use anyhow::{Context, Result, bail};
use clap::Args;
use flexvol_storage::Role;
use std::{cmp::Reverse, path::PathBuf};

/// Check this node's prerequisites and print how to fix problems
///
/// Looks at the kernel, its file systems and their tools, kubelet's plugin directory, the mount
/// propagation, the drivers that are installed and their pools. Files are made and removed to see
/// whether they can be, and a thin pool with overcommit that is not active is activated for a moment
/// to ask how full it is; nothing else changes. With a failed check the exit code is 1.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol doctor",
    "flexvol doctor --driver example.com/disk -o json",
))]
pub struct Doctor {
    /// Only this driver [default: all that flexvol installed]
    #[arg(long = "driver", alias = "name", value_name = "VENDOR/DRIVER")]
    name: Option<DriverName>,

    /// Kubelet's plugin directory [default: found as `flexvol install` finds it]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,

    /// table, wide (lines are not broken), json, yaml or name
    #[arg(
        long,
        short,
        value_enum,
        default_value = "table",
        hide_possible_values = true
    )]
    output: Output,
}

/// One driver to check.
struct Subject {
    /// The driver's name; `None` for this executable if nothing is installed.
    name: Option<DriverName>,
    installed: Installed,
    /// The configuration; `None` if it cannot be used, which another check explains.
    config: Option<Config>,
}

impl Doctor {
    pub fn run(self, here: &Installed) -> Result<()> {
        let (plugin_dir, mut checks) = kubernetes::plugin_dir(self.plugin_dir.as_deref());
        let drivers = plugin_dir.as_deref().map_or(Ok(Vec::new()), drivers);
        let drivers = drivers.unwrap_or_else(|error| {
            let remedy = "see to it that root alone can write it, and install the driver again";
            checks.push(Check::fail("drivers", super::report(&error), remedy));
            Vec::new()
        });
        let mut subjects: Vec<Subject> = drivers
            .into_iter()
            .filter(|(name, _)| self.name.as_ref().is_none_or(|only| only == name))
            .map(|(name, installed)| Subject {
                config: Config::load(&installed).ok(),
                name: Some(name),
                installed,
            })
            .collect();
        if subjects.is_empty() {
            checks.push(installed::none(self.name.as_ref()));
            subjects.push(Subject {
                name: None,
                installed: here.clone(),
                config: Config::load(here).ok(),
            });
        }
        let configs: Vec<&Config> = subjects
            .iter()
            .filter_map(|subject| subject.config.as_ref())
            .filter(|config| config.role == Role::Node)
            .collect();
        checks.splice(0..0, kernel::checks());
        checks.extend(filesystems::checks(&configs));
        checks.extend(raid::checks(&configs));
        checks.extend(backends(&configs));
        checks.extend(kubernetes::checks());
        for subject in &subjects {
            checks.extend(installed::checks(subject));
            checks.extend(pools(subject));
        }
        // The worst first; those of one verdict stay in the order of their subjects.
        checks.sort_by_key(|check| Reverse(check.verdict));
        let all = serde_json::to_value(&checks).context("write JSON")?;
        if !self.output.structured(&all)? {
            match self.output {
                Output::Name => checks
                    .iter()
                    .try_for_each(|check| print(format_args!("{}", check.about)))?,
                table => {
                    // What reads a pipe looks for whole texts.
                    let is_wide = table == Output::Wide || !terminal::is_output();
                    show(&checks, is_wide)?;
                }
            }
        }
        match count(&checks, Verdict::Fail) {
            0 => Ok(()),
            failed => bail!("{failed} of {} checks failed", checks.len()),
        }
    }
}

/// Checks what the backends need on the node.
fn backends(configs: &[&Config]) -> Vec<Check> {
    let checks = BACKENDS.iter().flat_map(|backend| {
        let own = configs.iter().filter(|it| it.backend.name == backend.name);
        let own: Vec<&Pools> = own.map(|config| &config.pools).collect();
        match own.is_empty() {
            true => Vec::new(),
            false => (backend.node_checks)(&own),
        }
    });
    checks.collect()
}

/// Checks the pools of a driver. A control plane host has none of the nodes' storage.
fn pools(subject: &Subject) -> Vec<Check> {
    let config = subject.config.as_ref();
    let Some(config) = config.filter(|config| config.role == Role::Node) else {
        return Vec::new();
    };
    let mut checks = (config.backend.pool_checks)(&config.pools);
    checks.extend(config.pools.iter().filter_map(unbounded));
    for check in &mut checks {
        check.about = match &subject.name {
            Some(driver) => format!("pool {} of {driver}", check.about),
            None => format!("pool {}", check.about),
        };
    }
    checks
}

/// Warns about a pool that keeps deleted volumes without a limit: a namespace's quota counts only existing claims.
fn unbounded((name, pool): (&String, &PoolConfig)) -> Option<Check> {
    let policy = &pool.policy;
    let keeps = policy.keep_deleted.is_some_and(|keep| !keep.is_zero());
    (keeps && policy.keep_at_most.is_none()).then(|| {
        Check::warn(
            name,
            "volumes that were deleted are kept, and may take all of it: they count in nobody's quota",
            "say how much of it is for them: keep_at_most = \"10%\"",
        )
    })
}

fn count(checks: &[Check], verdict: Verdict) -> usize {
    checks
        .iter()
        .filter(|check| check.verdict == verdict)
        .count()
}

fn show(checks: &[Check], wide: bool) -> Result<()> {
    let rows: Vec<Vec<String>> = checks
        .iter()
        .flat_map(|check| {
            let mut first = [check.verdict.as_str(), &check.about];
            let lines = match wide {
                true => vec![check.found.clone()],
                false => wrapped(&check.found),
            };
            lines
                .into_iter()
                .map(move |line| {
                    let [verdict, about] = std::mem::take(&mut first);
                    vec![verdict.to_owned(), about.to_owned(), line]
                })
                .collect::<Vec<_>>()
        })
        .collect();
    table(&["VERDICT", "CHECK", "FOUND"], &rows)?;
    let remedies: Vec<_> = checks
        .iter()
        .filter_map(|check| Some((check, check.remedy.as_ref()?)))
        .collect();
    if !remedies.is_empty() {
        print(format_args!("\nTo fix:"))?;
    }
    for (check, remedy) in remedies {
        print(format_args!("  {}: {remedy}", check.about))?;
    }
    let [failed, warned, ok] =
        [Verdict::Fail, Verdict::Warn, Verdict::Ok].map(|verdict| count(checks, verdict));
    print(format_args!(
        "\n{failed} failed, {warned} warnings, {ok} ok"
    ))
}

/// Breaks a text between words into lines that fit beside the other columns.
fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 72;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
