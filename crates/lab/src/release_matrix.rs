//! Everything that is tested with a real Kubernetes, one release after the other.

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
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

/// The document with the table, and what stands before the table in it.
const DOCUMENT: &str = "docs/evidence/kubernetes.md";
const MARK: &str = "<!-- scripts/lab kubernetes test --write -->\n";

/// Held while contract tests run.
static CONTRACT: Mutex<()> = Mutex::new(());

/// What one release did.
struct Column {
    version: Version,
    scenarios: Vec<Scenario>,
    /// Whether every test passed, also those that are no scenario.
    passed: bool,
}

impl Column {
    /// A release that could not be had.
    fn without_results(version: Version) -> Self {
        Column {
            version,
            scenarios: Vec::new(),
            passed: false,
        }
    }
}

/// Builds the contract tests of a release and returns the command that runs them.
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

/// The directory of this executable, in which are the drivers that were built with it.
fn beside() -> Result<PathBuf> {
    let executable = env::current_exe().context("find this executable")?;
    Ok(executable
        .parent()
        .context("find its directory")?
        .to_owned())
}

/// Runs the tests of these releases, so many at a time, and prints a table of them. The arguments are the
/// scenarios'.
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
                // In the head of the loop the lock would be held through its body.
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

/// Runs the tests of one release. Beside others it writes to a file, whose name is printed.
fn release(version: Version, beside_others: bool, arguments: &[String]) -> Result<Column> {
    let started = Instant::now();
    Programs::of(version)?;
    println!(
        "Kubernetes {version}: built, {} s",
        started.elapsed().as_secs()
    );
    let place = beside()?;
    let file = |kind: &str| place.join(format!("kubernetes-{version}.{kind}"));
    let (log, report) = (file("log"), file("report"));
    for old in [&log, &report] {
        // Of an earlier run, if there was one.
        let _ = fs::remove_file(old);
    }
    let output = || -> Result<Stdio> {
        if !beside_others {
            return Ok(Stdio::inherit());
        }
        let file = OpenOptions::new().append(true).create(true).open(&log);
        Ok(file.context("open the log of the tests")?.into())
    };
    let timed = |mut command: Command| -> Result<(bool, f64)> {
        let started = Instant::now();
        let what = format!("run {}", command.get_program().display());
        let status = command.stdout(output()?).stderr(output()?).status();
        Ok((
            status.context(what)?.success(),
            started.elapsed().as_secs_f64(),
        ))
    };
    let (contract_passed, seconds) = {
        // Each takes most of the inotify instances that the kernel gives one user.
        let _alone = hold(&CONTRACT);
        timed(contract(version)?)?
    };
    let mut scenarios = vec![(
        "Kubernetes' own plugin code on the installed drivers".to_owned(),
        contract_passed.then_some(seconds),
    )];
    let mut nodes = cargo(&["test", "--quiet", "--locked", "--test", "kubernetes"]);
    if std::env::var_os("FLEXVOL_BUILT").is_some() {
        nodes.arg("--workspace");
    }
    nodes
        .arg("--")
        .args(arguments)
        .env("FLEXVOL_KUBERNETES", version.to_string())
        .env("FLEXVOL_REPORT", &report);
    let (nodes_passed, seconds) = timed(nodes)?;
    // A run that failed before its first scenario wrote none.
    if report.exists() {
        scenarios.extend(read_report(&report)?);
    }
    let passed = contract_passed && nodes_passed;
    if beside_others {
        let word = if passed { "passed" } else { "FAILED" };
        println!(
            "Kubernetes {version}: {word}, {seconds:.0} s; {}",
            log.display()
        );
    }
    Ok(Column {
        version,
        scenarios,
        passed,
    })
}

/// Builds the drivers, unless whoever runs this has done so.
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
