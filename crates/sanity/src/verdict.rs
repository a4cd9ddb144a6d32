//! How a check judges a driver, and why it stops before its end.

use crate::{
    callout::call::{Call, Outcome},
    redact::masked,
};
use anyhow::anyhow;

/// Nothing to say is a pass.
pub type Verdict = Result<(), Stop>;

/// Why a check ended before its end.
#[derive(Debug)]
pub enum Stop {
    /// The driver is wrong.
    Fault(Box<Fault>),
    /// The driver says statically that it does not do this.
    NotApplicable(String),
    /// Something that the check needs was not given.
    Left(String),
    /// The tester could not do it.
    Error(anyhow::Error),
}

impl Stop {
    /// The same where no driver is judged, without the words that nobody should see.
    pub fn error(self, masks: &[String]) -> anyhow::Error {
        match self {
            Stop::Error(error) => error,
            Stop::NotApplicable(why) | Stop::Left(why) => anyhow!(why),
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
    /// The call that was wrong; none where it was seen afterwards.
    pub call: Option<Call>,
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Stop::Error(error)
    }
}

/// The driver did something wrong, seen outside of any one call.
pub fn fault(expected: impl Into<String>, found: impl Into<String>) -> Stop {
    Stop::Fault(Box::new(Fault {
        expected: expected.into(),
        found: found.into(),
        call: None,
    }))
}

/// This call was wrong.
pub fn wrong(call: &Call, expected: impl Into<String>, found: impl Into<String>) -> Stop {
    Stop::Fault(Box::new(Fault {
        expected: expected.into(),
        found: found.into(),
        call: Some(call.clone()),
    }))
}

/// Any reply will do, as long as it is one.
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
