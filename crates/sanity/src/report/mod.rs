//! Reports of a run, for people and for machines.

mod causes;
mod json;
mod junit;
mod markdown;
mod pretty;

pub use pretty::{explained, progress};

use crate::{
    check::{
        Level,
        result::{Ended, Failure, Finished},
    },
    run::Run,
};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::io::{self, Write as _};

/// Prints to stdout. A closed pipe is no error.
///
/// # Errors
/// When it cannot be written for any other reason.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("print"),
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Format {
    /// For people: progress, what failed, and a table
    Pretty,
    /// JUnit's XML, as most CI systems read it
    Junit,
    /// One object with everything
    Json,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Report {
    pub driver: String,
    pub executable: String,
    pub masks: Vec<String>,
    /// In the order of the checks; empty until the run has ended.
    pub finished: Vec<Finished>,
}

/// Number of checks by outcome.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub not_applicable: usize,
    pub left: usize,
    pub errors: usize,
}

impl Count {
    /// Checks that passed or failed.
    pub fn applicable(self) -> usize {
        self.passed + self.failed
    }
}

impl Report {
    pub fn new(run: &Run) -> Self {
        Report {
            driver: format!("{}/{}", run.name.0, run.name.1),
            executable: run.executable.display().to_string(),
            masks: run.masks.clone(),
            finished: Vec::new(),
        }
    }

    pub fn is_interrupted(&self) -> bool {
        let mut ended = self.finished.iter().map(|one| &one.ended);
        ended.any(|ended| matches!(ended, Ended::NotRun))
    }

    pub fn count(&self, level: Option<Level>) -> Count {
        let mut count = Count::default();
        let counted = |one: &&Finished| level.is_none_or(|level| one.check.level == level);
        for one in self.finished.iter().filter(counted) {
            *match one.ended {
                Ended::Passed => &mut count.passed,
                Ended::Failed(_) => &mut count.failed,
                Ended::NotApplicable(_) => &mut count.not_applicable,
                Ended::Skipped(_) | Ended::NotRun => &mut count.left,
                Ended::Error(_) => &mut count.errors,
            } += 1;
        }
        count
    }

    /// Percentage of passed checks among the must checks that passed or failed; none if there are none.
    pub fn score(&self) -> Option<usize> {
        let must = self.count(Some(Level::Must));
        (must.applicable() > 0).then(|| must.passed * 100 / must.applicable())
    }

    /// The exit status. Warnings do not count as failures.
    pub fn exit(&self) -> u8 {
        let heavy = [Level::Must, Level::Should].map(|level| self.count(Some(level)));
        let all = self.count(None);
        if heavy.iter().any(|count| count.failed > 0) || all.errors > 0 {
            1
        } else if all.left > 0 {
            3
        } else {
            0
        }
    }

    pub fn text(&self, format: Format) -> String {
        match format {
            Format::Pretty => self.pretty(),
            Format::Junit => self.junit(),
            Format::Json => self.json(),
        }
    }
}

impl Report {
    /// The evidence of a failure, each item with a label: the call, its answer, and what changed on the
    /// machine.
    fn evidence(&self, failure: &Failure) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(call) = &failure.call {
            lines.push(("call", call.command(&self.masks)));
            lines.push(("answer", call.answer(&self.masks)));
        }
        for change in &failure.changes {
            lines.push(("changed", change.clone()));
        }
        if failure.changes.is_empty() {
            let same = "no mount and no loop device came or went";
            lines.push(("changed", same.to_owned()));
        }
        lines
    }
}

/// The word for an outcome, in every format.
pub fn word(ended: &Ended) -> &'static str {
    match ended {
        Ended::Passed => "passed",
        Ended::Failed(_) => "failed",
        Ended::NotApplicable(_) => "not-applicable",
        Ended::Skipped(_) | Ended::NotRun => "left",
        Ended::Error(_) => "error",
    }
}

/// Why a check ended so, in one line, if there is a reason.
pub fn reason(ended: &Ended) -> Option<String> {
    match ended {
        Ended::Passed => None,
        Ended::Failed(failure) => Some(format!(
            "expected: {}; found: {}",
            failure.expected, failure.found
        )),
        Ended::NotApplicable(why) | Ended::Error(why) => Some(why.clone()),
        Ended::NotRun => Some("the run was interrupted before it ended".to_owned()),
        Ended::Skipped(what) => Some(format!("needs {what}")),
    }
}
