//! How a check ended, and what one needs to see why.

use super::Check;
use crate::{callout::call::Call, redact::shown};
use std::time::Duration;

/// How a check ended.
#[derive(Debug)]
pub enum Ended {
    Passed,
    Failed(Box<Failure>),
    NotApplicable(String),
    /// Not run, for want of this.
    Left(String),
    /// The tester could not run it.
    Error(String),
}

/// What was wrong, and what one needs to see it.
#[derive(Debug)]
pub struct Failure {
    pub expected: String,
    pub found: String,
    /// The call that was wrong, or the last one before that was seen.
    pub call: Option<Call>,
    /// Mounts and loop devices that came or went from the check's beginning to its failure.
    pub changes: Vec<String>,
}

/// A check that has ended.
#[derive(Debug)]
pub struct Finished {
    pub check: &'static Check,
    pub ended: Ended,
    pub notes: Vec<String>,
    /// What was called, in its order.
    pub calls: Vec<Call>,
    /// What the driver should have removed and the tester did.
    pub left: Vec<String>,
    pub took: Duration,
}

impl Finished {
    /// As people may see it, whoever wrote it.
    pub fn shown(mut self, masks: &[String]) -> Self {
        let mask = |text: &mut String| *text = shown(std::mem::take(text), masks);
        match &mut self.ended {
            Ended::Passed => {}
            Ended::Failed(failure) => {
                mask(&mut failure.expected);
                mask(&mut failure.found);
                failure.changes.iter_mut().for_each(mask);
            }
            Ended::NotApplicable(why) | Ended::Left(why) | Ended::Error(why) => mask(why),
        }
        self.notes.iter_mut().chain(&mut self.left).for_each(mask);
        self
    }
}
