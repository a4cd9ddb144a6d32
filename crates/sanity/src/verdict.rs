//! The verdict of a check, and the reasons why a check stops early.

use crate::{
    callout::call::{Call, Outcome},
    redact::masked,
};
use anyhow::anyhow;

/// The verdict of a check. `Ok` is a pass.
pub type Verdict = Result<(), Stop>;

/// Why a check stopped early.
#[derive(Debug)]
pub enum Stop {
    /// The driver did something wrong.
    Fault(Box<Fault>),
    /// The driver reports that it does not support this.
    NotApplicable(String),
    /// A requirement of the check was not met.
    Skipped(String),
    /// The tester failed.
    Error(anyhow::Error),
}

impl Stop {
    /// Turns it into an error with secrets masked, where no driver is judged.
    pub fn error(self, masks: &[String]) -> anyhow::Error {
        match self {
            Stop::Error(error) => error,
            Stop::NotApplicable(why) | Stop::Skipped(why) => anyhow!(why),
            Stop::Fault(fault) => {
                let found = format!("{}, and {}", fault.expected, fault.found);
                let answer = fault.call.map(|call| call.answer(masks));
                let answer = answer.map_or_else(String::new, |answer| format!(": {answer}"));
                anyhow!(masked(found, masks) + &answer)
            }
        }
    }
}

/// What a driver did wrong.
#[derive(Debug)]
pub struct Fault {
    pub expected: String,
    pub found: String,
    /// The call that was wrong. None if the fault was seen later.
    pub call: Option<Call>,
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Stop::Error(error)
    }
}

/// A fault that was seen outside of a call.
pub fn fault(expected: impl Into<String>, found: impl Into<String>) -> Stop {
    Stop::Fault(Box::new(Fault {
        expected: expected.into(),
        found: found.into(),
        call: None,
    }))
}

/// A fault of this call.
pub fn wrong(call: &Call, expected: impl Into<String>, found: impl Into<String>) -> Stop {
    Stop::Fault(Box::new(Fault {
        expected: expected.into(),
        found: found.into(),
        call: Some(call.clone()),
    }))
}

/// Checks that the reply can be parsed, whatever its status.
pub fn readable(call: &Call) -> Verdict {
    match call.outcome() {
        Outcome::Broken(why) => Err(wrong(call, "a reply", why)),
        _ => Ok(()),
    }
}

/// The driver says that it does not do this.
pub fn not_applicable(why: impl Into<String>) -> Stop {
    Stop::NotApplicable(why.into())
}
