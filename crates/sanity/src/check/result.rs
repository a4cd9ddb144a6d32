//! How a check ended, with the evidence.

use super::Check;
use crate::{callout::call::Call, redact::shown};
use std::time::Duration;

/// How a check ended.
#[derive(Clone, Debug)]
pub enum Ended {
    Passed,
    Failed(Box<Failure>),
    NotApplicable(String),
    /// Not run, because this is missing.
    Skipped(String),
    /// The run was interrupted before the check ended.
    NotRun,
    /// The tester failed to run it.
    Error(String),
}

/// A fault of the driver, with the evidence.
#[derive(Clone, Debug)]
pub struct Failure {
    pub expected: String,
    pub found: String,
    /// The call that was wrong, or the last call before the fault was seen.
    pub call: Option<Call>,
    /// Mounts and loop devices that appeared or disappeared between the check's beginning and its failure.
    pub changes: Vec<String>,
}

/// A check that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub check: &'static Check,
    pub ended: Ended,
    pub notes: Vec<String>,
    /// All calls of the check, in order.
    pub calls: Vec<Call>,
    /// Mounts and loop devices that the tester had to remove in place of the driver.
    pub leftovers: Vec<String>,
    pub took: Duration,
}

impl Finished {
    /// Masks secrets and removes control characters in all text.
    pub fn shown(mut self, masks: &[String]) -> Self {
        let mask = |text: &mut String| *text = shown(std::mem::take(text), masks);
        match &mut self.ended {
            Ended::Passed | Ended::NotRun => {}
            Ended::Failed(failure) => {
                mask(&mut failure.expected);
                mask(&mut failure.found);
                failure.changes.iter_mut().for_each(mask);
            }
            Ended::NotApplicable(why) | Ended::Skipped(why) | Ended::Error(why) => mask(why),
        }
        self.notes
            .iter_mut()
            .chain(&mut self.leftovers)
            .for_each(mask);
        self
    }
}
