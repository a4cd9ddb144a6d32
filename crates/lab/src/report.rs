//! Reports of scenario runs.

use anyhow::{Context, Result};
use std::{fs, path::Path};

/// Name of a scenario, and its duration in seconds if it passed.
pub type Scenario = (String, Option<f64>);

/// Parses the file that `FLEXVOL_REPORT` named in a run.
pub fn read_report(file: &Path) -> Result<Vec<Scenario>> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let scenario = |line: &str| {
        let mut fields = line.splitn(3, '\t');
        let mut field = || fields.next().context("a line of the report");
        let (outcome, seconds, name) = (field()?, field()?, field()?);
        let seconds: f64 = seconds.parse().context("seconds in the report")?;
        Ok((name.to_owned(), (outcome == "passed").then_some(seconds)))
    };
    text.lines().map(scenario).collect()
}
