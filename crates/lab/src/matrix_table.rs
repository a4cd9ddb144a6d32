//! Table of scenario results by release of Kubernetes.

use anyhow::{Context, Result};
use std::fmt;

const NOT_RUN: &str = "not run";

/// Table with a row for each scenario and a column for each release.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table {
    releases: Vec<String>,
    /// Name, and a cell for each release.
    scenarios: Vec<(String, Vec<String>)>,
}

impl Table {
    /// Adds a column: the duration in seconds of each scenario that passed.
    pub fn add(&mut self, release: &str, scenarios: &[(String, Option<f64>)]) {
        let cells = scenarios.iter().map(|(name, took)| {
            let cell = match took {
                Some(seconds) => format!("ok, {seconds:.0} s"),
                None => "**FAILED**".to_owned(),
            };
            (name.clone(), cell)
        });
        self.add_cells(release, cells);
    }

    fn add_cells(&mut self, release: &str, cells: impl Iterator<Item = (String, String)>) {
        let before = self.releases.len();
        self.releases.push(release.to_owned());
        for (_, row) in &mut self.scenarios {
            row.push(NOT_RUN.to_owned());
        }
        for (name, cell) in cells {
            let known = self.scenarios.iter().position(|(known, _)| *known == name);
            let at = known.unwrap_or_else(|| {
                let row = vec![NOT_RUN.to_owned(); before + 1];
                self.scenarios.push((name, row));
                self.scenarios.len() - 1
            });
            self.scenarios[at].1[before] = cell;
        }
    }

    /// Parses a written table.
    pub fn read(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| line.starts_with('|'));
        let cells = |line: &str| -> Vec<String> {
            let line = line.trim_matches('|');
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut head = cells(lines.next().context("the head of the table")?);
        head.remove(0);
        lines.next().context("the line below the head")?;
        let scenarios = lines.map(|line| {
            let mut row = cells(line);
            (row.remove(0), row)
        });
        Ok(Table {
            releases: head,
            scenarios: scenarios.collect(),
        })
    }

    /// Adds missing releases from an older table. Scenarios that are not in this table are dropped.
    #[must_use]
    pub fn or_older(mut self, older: &Table) -> Table {
        for (at, release) in older.releases.iter().enumerate() {
            if self.releases.contains(release) {
                continue;
            }
            let known = older
                .scenarios
                .iter()
                .filter(|(name, _)| self.scenarios.iter().any(|(here, _)| here == name))
                .map(|(name, row)| (name.clone(), row[at].clone()))
                .collect::<Vec<_>>();
            self.add_cells(release, known.into_iter());
        }
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.releases.len();
        writeln!(f, "| scenario | {} |", self.releases.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(columns))?;
        for (name, row) in &self.scenarios {
            writeln!(f, "| {name} | {} |", row.join(" | "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Scenarios<'a> = &'a [(&'a str, Option<f64>)];

    fn table(releases: &[(&str, Scenarios)]) -> Table {
        let mut table = Table::default();
        for (release, scenarios) in releases {
            let owned = scenarios
                .iter()
                .map(|(name, took)| ((*name).to_owned(), *took));
            table.add(release, &owned.collect::<Vec<_>>());
        }
        table
    }

    #[test]
    fn what_failed_and_what_was_not_run_is_said() {
        let table = table(&[
            ("v1.37.1", &[("a", Some(1.6)), ("b", None)]),
            ("v1.20.2", &[("b", Some(2.0))]),
        ]);
        let text = "| scenario | v1.37.1 | v1.20.2 |\n|---|---|---|\n| a | ok, 2 s | not run |\n| b | **FAILED** | ok, 2 s |\n";
        assert_eq!(table.to_string(), text);
        assert_eq!(Table::read(&format!("\n{text}")).unwrap(), table);
    }

    #[test]
    fn a_run_of_one_release_leaves_the_others_as_they_were() {
        let older = table(&[
            ("v1.37.1", &[("a", None), ("gone", Some(1.0))]),
            ("v1.20.2", &[("a", Some(2.0)), ("gone", Some(3.0))]),
        ]);
        let newer = table(&[("v1.37.1", &[("a", Some(4.0)), ("new", Some(5.0))])]);
        let expected = table(&[
            ("v1.37.1", &[("a", Some(4.0)), ("new", Some(5.0))]),
            ("v1.20.2", &[("a", Some(2.0))]),
        ]);
        assert_eq!(newer.or_older(&older), expected);
    }
}
