//! Runs all tests with a real Kubernetes, for one or more releases.

use crate::{
    matrix_table::Table,
    project::project,
    report::{Scenario, read_report},
    requirements,
};
use anyhow::{Context, Result, ensure};
use flexvol_lab::kubernetes::{Programs, Version, contract};
use std::{
    cmp::Reverse,
    env,
    fs::{self, OpenOptions},
    io::ErrorKind,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ScopedJoinHandle},
    time::Instant,
};

/// The document with the table, and the mark in front of the table.
const DOCUMENT: &str = "docs/evidence/kubernetes.md";
const MARK: &str = "<!-- scripts/lab kubernetes test --write -->\n";

/// Number of clusters that run shares of the scenarios in parallel, each on a node of its own: scenarios mostly wait.
const SHARES: usize = 2;

/// Held while contract tests run.
static CONTRACT: Mutex<()> = Mutex::new(());

/// Results of one release.
struct Column {
    version: Version,
    scenarios: Vec<Scenario>,
    /// Whether all tests passed, including those that are not scenarios.
    passed: bool,
}

impl Column {
    /// Returns the column of a release whose tests could not be run.
    fn without_results(version: Version) -> Self {
        Column {
            version,
            scenarios: Vec::new(),
            passed: false,
        }
    }
}

/// Builds the contract tests of a release and returns a command that runs them.
pub fn contract(version: Version) -> Result<Command> {
    let drivers = beside()?;
    let tests = drivers.join(format!("contract-{version}"));
    contract::build(
        version,
        &project().join("tests/kubernetes/contract"),
        &tests,
    )?;
    contract::command(&tests, version, &drivers)
}

/// Returns the directory of this executable, which has the drivers built with it.
fn beside() -> Result<PathBuf> {
    let executable = env::current_exe().context("find this executable")?;
    Ok(executable
        .parent()
        .context("find its directory")?
        .to_owned())
}

/// Runs the tests of these releases, `at_a_time` in parallel, and prints a table. `arguments` are for the scenarios.
pub fn run(
    versions: &[Version],
    at_a_time: usize,
    write: bool,
    arguments: &[String],
) -> Result<()> {
    build()?;
    let left = Mutex::new(versions.iter().copied());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                // In a `while let` the lock would be held during the body.
                loop {
                    let next = hold(&left).next();
                    let Some(version) = next else { break };
                    let column =
                        release(version, at_a_time > 1, arguments).unwrap_or_else(|error| {
                            println!("Kubernetes {version}: {error:#}");
                            Column::without_results(version)
                        });
                    hold(&done).push(column);
                }
            });
        }
    });
    let mut columns = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    columns.sort_by_key(|column| Reverse(column.version));
    let mut table = Table::default();
    for column in &columns {
        table.add(&column.version.to_string(), &column.scenarios);
    }
    print!("{table}");
    if write {
        let file = project().join(DOCUMENT);
        let text = fs::read_to_string(&file).with_context(|| format!("read {DOCUMENT}"))?;
        let (before, older) = text
            .split_once(MARK)
            .context("the place of the table in the document")?;
        let table = table.or_older(&Table::read(older)?);
        fs::write(&file, format!("{before}{MARK}\n{table}"))
            .with_context(|| format!("write {DOCUMENT}"))?;
        let newest = columns.first().context("a release that was run")?;
        if newest.version == Version::newest() {
            requirements::write(newest.version, &newest.scenarios)?;
        }
    }
    ensure!(
        columns.iter().all(|column| column.passed),
        "some of it failed"
    );
    Ok(())
}

fn hold<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the tests of one release. If `beside_others`, their output goes to files whose names are printed.
fn release(version: Version, beside_others: bool, arguments: &[String]) -> Result<Column> {
    let started = Instant::now();
    Programs::of(version)?;
    println!(
        "Kubernetes {version}: built, {} s",
        started.elapsed().as_secs()
    );
    let mut logs = Vec::new();
    for share in 1..=SHARES {
        logs.push(new_file(version, share, "log")?);
    }
    let live = (!beside_others).then_some(0);
    let log = |at: usize| (live != Some(at)).then(|| logs[at].as_path());
    let (contract_passed, seconds) = {
        // One at a time: each takes most of the inotify instances that the kernel allows a user.
        let _alone = hold(&CONTRACT);
        timed(contract(version)?, log(0))?
    };
    let mut column = Column {
        version,
        scenarios: vec![(
            "Kubernetes' own plugin code on the installed drivers".to_owned(),
            contract_passed.then_some(seconds),
        )],
        passed: contract_passed,
    };
    let started = Instant::now();
    let shares = thread::scope(|scope| {
        let begin = |share: usize| {
            let log = log(share - 1);
            scope.spawn(move || run_share(version, share, log, arguments))
        };
        let running: Vec<_> = (1..=SHARES).map(begin).collect();
        let ended = running.into_iter().map(ScopedJoinHandle::join);
        ended.collect::<Vec<_>>()
    });
    for share in shares {
        let (passed, scenarios) = share.unwrap_or_else(|panic| resume_unwind(panic))?;
        column.passed &= passed;
        column.scenarios.extend(scenarios);
    }
    if beside_others {
        let word = if column.passed { "passed" } else { "FAILED" };
        let seconds = started.elapsed().as_secs();
        let logs: Vec<_> = logs.iter().map(|log| log.display().to_string()).collect();
        println!(
            "Kubernetes {version}: {word}, {seconds} s; {}",
            logs.join(", ")
        );
    } else {
        for log in &logs[1..] {
            let said =
                fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
            print!("{said}");
        }
    }
    Ok(column)
}

/// Runs a share of the scenarios on a cluster of its own.
fn run_share(
    version: Version,
    share: usize,
    log: Option<&Path>,
    arguments: &[String],
) -> Result<(bool, Vec<Scenario>)> {
    let report = new_file(version, share, "report")?;
    let mut nodes = cargo(&["test", "--quiet", "--locked", "--test", "kubernetes"]);
    if env::var_os("FLEXVOL_BUILT").is_some() {
        nodes.arg("--workspace");
    }
    nodes
        .args(["--", "--share", &format!("{share}/{SHARES}")])
        .args(arguments)
        .env("FLEXVOL_KUBERNETES", version.to_string())
        .env("FLEXVOL_REPORT", &report);
    let (passed, _) = timed(nodes, log)?;
    // A run that fails before its first scenario writes no report.
    let scenarios = match report.exists() {
        true => read_report(&report)?,
        false => Vec::new(),
    };
    Ok((passed, scenarios))
}

/// Returns the path of an output file of a share, after removing the file of an earlier run.
fn new_file(version: Version, share: usize, kind: &str) -> Result<PathBuf> {
    let file = beside()?.join(format!("kubernetes-{version}-{share}.{kind}"));
    match fs::remove_file(&file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", file.display()))
        }
        _ => Ok(file),
    }
}

/// Runs a command, with output appended to `log` if given. Returns whether it succeeded, and its duration in seconds.
fn timed(mut command: Command, log: Option<&Path>) -> Result<(bool, f64)> {
    if let Some(log) = log {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let file = file.with_context(|| format!("open {}", log.display()))?;
        let other = file.try_clone().context("share the file of the log")?;
        command.stdout(file).stderr(other);
    }
    let started = Instant::now();
    let what = format!("run {}", command.get_program().display());
    let status = command.status().context(what)?;
    Ok((status.success(), started.elapsed().as_secs_f64()))
}

/// Builds the drivers, unless the caller has done so.
fn build() -> Result<()> {
    if env::var_os("FLEXVOL_BUILT").is_some_and(|built| built == "1") {
        return Ok(());
    }
    let built = cargo(&["build", "--quiet", "--locked", "--workspace", "--bins"]).status();
    ensure!(
        built.context("run cargo")?.success(),
        "the drivers do not build"
    );
    Ok(())
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .current_dir(project())
        .args(arguments)
        .stdin(Stdio::null());
    command
}
