//! Everything that is tested with a real Kubernetes, one release after the other.

use anyhow::{Context, Result, ensure};
use flexvol_lab::kubernetes::{Programs, Version, contract};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// The document with the table, and what stands before the table in it.
const DOCUMENT: &str = "docs/kubernetes.md";
const MARK: &str = "<!-- scripts/lab kubernetes test --every --write -->\n";

/// What one release did: by scenario, what stands in its cell.
struct Column {
    version: Version,
    cells: Vec<(String, String)>,
}

/// The project, whose tests are run.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the contract tests of a release and returns the command that runs them.
pub fn contract(version: Version) -> Result<Command> {
    let tests = contract::build(version, &project().join("tests/kubernetes/contract"))?;
    let executable = env::current_exe().context("find this executable")?;
    // The drivers are beside it: they were built with it.
    let drivers = executable.parent().context("find its directory")?;
    contract::command(&tests, version, drivers)
}

/// Runs the tests of these releases and prints a table of them.
pub fn run(versions: &[Version], write: bool) -> Result<()> {
    let project = project();
    let mut failed = false;
    let mut columns = Vec::new();
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command
            .current_dir(&project)
            .args(arguments)
            .stdin(Stdio::null());
        command
    };
    let built = cargo(&["build", "--quiet", "--locked", "--workspace", "--bins"]).status();
    ensure!(
        built.context("run cargo")?.success(),
        "the drivers do not build"
    );
    for &version in versions {
        let started = Instant::now();
        Programs::of(version)?;
        println!(
            "Kubernetes {version}: built, {} s",
            started.elapsed().as_secs()
        );
        let mut cells = Vec::new();
        let (passed, seconds) = timed(&mut contract(version)?)?;
        failed |= !passed;
        cells.push((
            "Kubernetes' own plugin code on the installed drivers".to_owned(),
            cell(passed, seconds),
        ));
        let report = env::temp_dir().join(format!("flexvol-report-{}", std::process::id()));
        let mut scenarios = cargo(&["test", "--quiet", "--locked", "--test", "kubernetes"]);
        scenarios
            .env("FLEXVOL_KUBERNETES", version.to_string())
            .env("FLEXVOL_REPORT", &report);
        let (passed, _) = timed(&mut scenarios)?;
        failed |= !passed;
        let lines = fs::read_to_string(&report).context("read the report of the scenarios")?;
        fs::remove_file(&report).context("remove the report of the scenarios")?;
        for line in lines.lines() {
            let mut fields = line.splitn(3, '\t');
            let mut field = || fields.next().context("a line of the report");
            let (outcome, seconds, name) = (field()?, field()?, field()?);
            cells.push((name.to_owned(), cell(outcome == "passed", seconds.parse()?)));
        }
        columns.push(Column { version, cells });
    }
    let table = table(&columns);
    print!("{table}");
    if write {
        let file = project.join(DOCUMENT);
        let text = fs::read_to_string(&file).with_context(|| format!("read {DOCUMENT}"))?;
        let (before, _) = text
            .split_once(MARK)
            .context("the place of the table in the document")?;
        fs::write(&file, format!("{before}{MARK}\n{table}"))
            .with_context(|| format!("write {DOCUMENT}"))?;
    }
    ensure!(!failed, "some of it failed");
    Ok(())
}

fn timed(command: &mut Command) -> Result<(bool, f64)> {
    let started = Instant::now();
    let program: &OsStr = command.get_program();
    let what = format!("run {}", program.display());
    let status = command.status().with_context(|| what)?;
    Ok((status.success(), started.elapsed().as_secs_f64()))
}

fn cell(passed: bool, seconds: f64) -> String {
    if passed {
        format!("ok, {seconds:.0} s")
    } else {
        "**FAILED**".to_owned()
    }
}

/// Scenarios by releases, in the order in which the first release ran them.
fn table(columns: &[Column]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|column| &column.cells) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let heads: String = columns
        .iter()
        .map(|column| format!(" {} |", column.version))
        .collect();
    let mut text = format!(
        "| scenario |{heads}\n|---|{}\n",
        "---|".repeat(columns.len())
    );
    for name in names {
        text += &format!("| {name} |");
        for column in columns {
            let cells: BTreeMap<_, _> = column
                .cells
                .iter()
                .map(|(name, cell)| (name.as_str(), cell))
                .collect();
            text += &format!(" {} |", cells.get(name).map_or("not run", |cell| cell));
        }
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_release_did_not_run_is_said() {
        let column = |version: &str, names: &[&str]| Column {
            version: version.parse().unwrap(),
            cells: names
                .iter()
                .map(|name| (name.to_string(), cell(true, 1.6)))
                .collect(),
        };
        let columns = [column("1.37.1", &["a", "b"]), column("1.20.2", &["b"])];
        assert_eq!(
            table(&columns),
            "| scenario | v1.37.1 | v1.20.2 |\n|---|---|---|\n| a | ok, 2 s | not run |\n| b | ok, 2 s | ok, 2 s |\n"
        );
    }
}
