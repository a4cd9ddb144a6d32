//! What a check is, and how it ends.

use crate::{
    bench::Bench,
    callout::call::{Call, Outcome},
    redact::masked,
};
use anyhow::anyhow;
use std::fmt;

/// How much a failure weighs.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Data, pods or secrets are lost, or Kubernetes is stuck.
    Must,
    /// Somebody has to come and look.
    Should,
    /// Worth knowing.
    Warn,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Must => "must",
            Level::Should => "should",
            Level::Warn => "warn",
        })
    }
}

/// What a check cannot do without.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Need {
    /// Mounting.
    Root,
    /// A volume that nobody else uses: an existing one, or one made for the check.
    Volume,
    /// A volume made for the check.
    Fresh,
    /// A fresh volume whose bytes the tester can reach below the driver.
    Block,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::Root => "root",
            Need::Volume => "volume",
            Need::Fresh => "fresh volume",
            Need::Block => "block",
        })
    }
}

/// One named promise that a driver keeps or breaks.
#[derive(Debug)]
pub struct Check {
    /// `group.what`.
    pub name: &'static str,
    pub level: Level,
    pub needs: &'static [Need],
    /// It looks at the whole machine or loads it, and runs when nothing else does.
    pub alone: bool,
    /// The rule.
    pub what: &'static str,
    /// What happens where it is broken.
    pub why: &'static str,
    /// Which kinds of drivers broke it.
    pub broke: &'static str,
    /// What to change in a driver.
    pub mend: &'static str,
    /// Where the rule comes from in Kubernetes or the kernel.
    pub source: &'static str,
    pub run: fn(&Bench) -> Verdict,
}

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
