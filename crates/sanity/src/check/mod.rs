//! What a check is, and how each ended.

pub mod result;

use crate::{bench::Bench, verdict::Verdict};
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

impl Check {
    /// What it cannot do without, in words.
    pub fn needs_in_words(&self) -> String {
        let needs: Vec<_> = self.needs.iter().map(ToString::to_string).collect();
        if needs.is_empty() {
            return "nothing".to_owned();
        }
        needs.join(", ")
    }
}
