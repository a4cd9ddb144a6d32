//! A check, its level and its requirements.

pub mod result;

use crate::{bench::Bench, verdict::Verdict};
use std::fmt;

/// The severity of a failure.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Data, pods or secrets are lost, or Kubernetes is stuck.
    Must,
    /// An administrator has to intervene.
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

/// A requirement of a check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Need {
    /// Root, for mounting.
    Root,
    /// A volume that no pod uses: an existing one, or one made for the check.
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

/// One named rule that a driver keeps or breaks.
#[derive(Debug)]
pub struct Check {
    /// `group.rule`.
    pub name: &'static str,
    pub level: Level,
    pub needs: &'static [Need],
    /// It observes or loads the whole machine, and runs alone.
    pub alone: bool,
    /// The rule.
    pub what: &'static str,
    /// The consequence if the rule is broken.
    pub why: &'static str,
    /// Kinds of drivers that broke it.
    pub broke: &'static str,
    /// How to fix a driver.
    pub mend: &'static str,
    /// Where the rule comes from in Kubernetes or the kernel.
    pub source: &'static str,
    pub run: fn(&Bench) -> Verdict,
}

impl Check {
    /// The requirements, in words.
    pub fn needs_in_words(&self) -> String {
        let needs: Vec<_> = self.needs.iter().map(ToString::to_string).collect();
        if needs.is_empty() {
            return "nothing".to_owned();
        }
        needs.join(", ")
    }
}
