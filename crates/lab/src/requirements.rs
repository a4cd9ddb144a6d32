//! Requirements from the designs of volume expansion and storage classes: who meets each, and which scenario proves it.

use crate::{
    project::project,
    report::{Scenario, read_report},
};
use anyhow::{Context, Result};
use clap::Args;
use flexvol_lab::kubernetes::Version;
use std::{fs, path::PathBuf};

/// Tab-separated: number, requirement, who meets it, and proofs. Proofs are scenarios, or paths of tests without a
/// cluster, separated by ` | `.
const REQUIREMENTS: &str = include_str!("../../../tests/kubernetes/requirements.tsv");

/// The document with the table, and the mark in front of the table.
const DOCUMENT: &str = "docs/evidence/requirements.md";
const MARK: &str = "<!-- scripts/lab kubernetes requirements REPORT -->\n";

/// Write the table of requirements, with the results of a run
#[derive(Debug, Args)]
pub struct Write {
    /// What a run of the scenarios wrote, which was started with FLEXVOL_REPORT=FILE
    #[arg(value_name = "FILE")]
    report: PathBuf,
    /// The release of Kubernetes that ran
    #[arg(long, default_value_t = Version::newest())]
    version: Version,
}

impl Write {
    pub fn run(&self) -> Result<()> {
        write(self.version, &read_report(&self.report)?)
    }
}

/// Writes the table with the scenario results of a release into its document.
pub fn write(version: Version, scenarios: &[Scenario]) -> Result<()> {
    let file = project().join(DOCUMENT);
    let text = fs::read_to_string(&file).with_context(|| format!("read {DOCUMENT}"))?;
    let (before, _) = text
        .split_once(MARK)
        .context("the place of the table in the document")?;
    let table = table(version, scenarios)?;
    fs::write(&file, format!("{before}{MARK}\n{table}"))
        .with_context(|| format!("write {DOCUMENT}"))
}

fn table(version: Version, scenarios: &[Scenario]) -> Result<String> {
    let mut text =
        format!("| | requirement | who does it | proved by | {version} |\n|---|---|---|---|---|\n");
    for line in REQUIREMENTS.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let [number, what, who, proofs] = fields[..] else {
            anyhow::bail!("a requirement has four fields: {line:?}");
        };
        let proofs: Vec<_> = proofs
            .split(" | ")
            .filter(|proof| !proof.is_empty())
            .collect();
        let results: Vec<_> = proofs
            .iter()
            .filter(|proof| !is_place(proof))
            .map(|proof| result(proof, scenarios))
            .collect();
        text += &format!(
            "| {number} | {what} | {who} | {} | {} |\n",
            proofs.join("; "),
            results.join("; ")
        );
    }
    Ok(text)
}

/// Whether a proof is the path of a test without a cluster, which is not in the report.
fn is_place(proof: &str) -> bool {
    proof.starts_with("tests/") || proof.starts_with("crates/")
}

fn result(name: &str, scenarios: &[Scenario]) -> &'static str {
    match scenarios.iter().find(|(scenario, _)| scenario == name) {
        Some((_, Some(_))) => "ok",
        Some((_, None)) => "**FAILED**",
        None => "not run",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_there_once_and_what_proves_it_exists() {
        let numbers: Vec<_> = REQUIREMENTS
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned())
            .collect();
        let all: Vec<_> = [('A', 34), ('B', 12), ('C', 13), ('D', 12), ('E', 30)]
            .into_iter()
            .flat_map(|(design, last)| (1..=last).map(move |line| format!("{design}{line}")))
            .collect();
        assert_eq!(numbers, all);
        let project = project();
        let tests = fs::read_dir(project.join("tests/kubernetes")).unwrap();
        let sources: String = tests
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        for line in REQUIREMENTS.lines() {
            let proofs = line.rsplit('\t').next().unwrap().split(" | ");
            for proof in proofs.filter(|proof| !proof.is_empty()) {
                let there = if is_place(proof) {
                    project.join(proof).exists()
                } else {
                    sources.contains(&format!("\n    {proof:?}"))
                };
                assert!(there, "{proof:?} proves nothing: it is not there");
            }
        }
    }

    #[test]
    fn the_document_has_what_the_list_says() {
        let text = fs::read_to_string(project().join(DOCUMENT)).unwrap();
        let (_, written) = text.split_once(MARK).unwrap();
        let without_results = |table: &str| -> Vec<String> {
            let rows = table.trim().lines().skip(2);
            rows.map(|row| row.rsplitn(3, " |").last().unwrap().to_owned())
                .collect()
        };
        let wanted = table(Version::newest(), &[]).unwrap();
        assert_eq!(
            without_results(written),
            without_results(&wanted),
            "write it anew: scripts/lab kubernetes requirements REPORT"
        );
    }

    #[test]
    fn what_failed_or_was_not_run_is_said() {
        let scenarios = [("a".to_owned(), Some(1.0)), ("b".to_owned(), None)];
        assert_eq!(result("a", &scenarios), "ok");
        assert_eq!(result("b", &scenarios), "**FAILED**");
        assert_eq!(result("c", &scenarios), "not run");
    }
}
