//! The verb `scripts/lab chart`: checks the chart, and that what is written from it equals its output.

mod conventions;
mod plain;
mod refused;
mod releases;
mod render;
mod values;

use crate::project::project;
use anyhow::{Context, Result, ensure};
use clap::Args;
use flexvol_lab::kubernetes::run;
use plain::PLAIN;
use releases::ELSEWHERE;
use render::{chart, deploy, helm};
use std::fs;

/// Check the chart, and that the plain manifests and the page about values are what it says
#[derive(Debug, Args)]
pub struct Chart {
    /// Write the plain manifests, and the page about values
    #[arg(long)]
    write: bool,
}

/// The files with values in `deploy/chart/ci`.
const SETS: [&str; 3] = ["default", "drivers", "everything"];

impl Chart {
    pub fn run(&self) -> Result<()> {
        let text = fs::read_to_string(chart().join("Chart.yaml")).context("read the chart")?;
        for key in ["version", "appVersion"] {
            let line = format!("{key}: {}", env!("CARGO_PKG_VERSION"));
            ensure!(
                text.lines().any(|found| found == line),
                "deploy/chart/Chart.yaml has no line {line:?}, the version of the executables"
            );
        }
        for set in SETS {
            let mut lint = helm()?;
            lint.args(["lint", "--strict"]).arg(chart());
            lint.arg("--values").arg(render::values(set));
            run(&mut lint).with_context(|| format!("check the chart with {set}"))?;
        }
        for elsewhere in &ELSEWHERE {
            elsewhere.check()?;
        }
        conventions::check()?;
        refused::check()?;
        let mut stale = Vec::new();
        let mut written = vec![(values::file(), values::page()?)];
        for plain in &PLAIN {
            written.push((deploy().join(plain.file), plain.text()?));
        }
        for (file, wanted) in written {
            if fs::read_to_string(&file).is_ok_and(|found| found == wanted) {
                continue;
            }
            if self.write {
                fs::write(&file, wanted).with_context(|| format!("write {}", file.display()))?;
            } else {
                let name = file.strip_prefix(project()).unwrap_or(&file);
                stale.push(name.display().to_string());
            }
        }
        ensure!(
            stale.is_empty(),
            "{} are not what the chart says; run scripts/lab chart --write",
            stale.join(", ")
        );
        Ok(())
    }
}
