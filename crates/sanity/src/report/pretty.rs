//! The report for people at a terminal.

use super::{Report, reason, word};
use crate::check::{
    Check, Level,
    result::{Ended, Finished},
};
use std::{fmt::Write as _, time::Duration};

/// How many calls before the failed one are shown.
const BEFORE: usize = 6;

/// The line that is printed when a check has ended, at a terminal with the time that the others may take.
pub fn progress(one: &Finished, number: usize, of: usize, left: Option<Duration>) -> String {
    let left = left.map(|left| format!(", about {} s left", left.as_secs()));
    let mut line = format!(
        "[{number:3}/{of}] {:14} {:6} {} ({:.1} s{})",
        match word(&one.ended) {
            "left" => "left out",
            word => word,
        },
        one.check.level,
        one.check.name,
        one.took.as_secs_f64(),
        left.unwrap_or_default(),
    );
    for note in &one.notes {
        // Writing to a string does not fail.
        let _ = write!(line, "\n          {note}");
    }
    for what in &one.leftovers {
        let _ = write!(line, "\n          left behind: {what}");
    }
    line
}

/// The explanation of a check.
pub fn explained(check: &Check) -> String {
    let needs = check.needs_in_words();
    format!(
        "{} ({}, needs {needs})\n  rule: {}\n  why: {}\n  who broke it: {}\n  how to mend: {}\n  source: {}\n",
        check.name, check.level, check.what, check.why, check.broke, check.mend, check.source
    )
}

impl Report {
    pub(super) fn pretty(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        for one in &self.finished {
            let Ended::Failed(failure) = &one.ended else {
                if let Ended::Error(why) = &one.ended {
                    let _ = writeln!(text, "\n{}: could not be run: {why}", one.check.name);
                }
                continue;
            };
            let check = one.check;
            let _ = writeln!(
                text,
                "\n{} ({}): {}\n  expected: {}\n  found:    {}",
                check.name, check.level, check.what, failure.expected, failure.found
            );
            for (what, seen) in self.evidence(failure) {
                let _ = writeln!(text, "  {:9} {seen}", format!("{what}:"));
            }
            let skip = one.calls.len().saturating_sub(BEFORE);
            for call in &one.calls[skip..] {
                let _ = writeln!(
                    text,
                    "    $ {}\n      {}",
                    call.command(&self.masks),
                    call.answer(&self.masks)
                );
            }
            let _ = writeln!(
                text,
                "  why:      {}\n  mend:     {}",
                check.why, check.mend
            );
        }
        for cause in self.causes() {
            let _ = writeln!(
                text,
                "\nprobably one cause, mend {} first ({}):\n  {}",
                cause.check,
                cause.fault,
                cause.others.join(", ")
            );
        }
        for one in self.finished.iter().filter(|one| !one.leftovers.is_empty()) {
            let (name, left) = (one.check.name, one.leftovers.join(", "));
            let _ = writeln!(text, "\n{name}: left behind and removed: {left}");
        }
        self.list(&mut text, "not applicable", |ended| {
            matches!(ended, Ended::NotApplicable(_))
        });
        self.list(&mut text, "left out", |ended| {
            matches!(ended, Ended::Skipped(_) | Ended::NotRun)
        });
        let _ = writeln!(
            text,
            "\n{:8} {:>7} {:>7} {:>15} {:>9} {:>7}",
            "", "passed", "failed", "not applicable", "left out", "errors"
        );
        for level in [Level::Must, Level::Should, Level::Warn] {
            let count = self.count(Some(level));
            let _ = writeln!(
                text,
                "{level:8} {:>7} {:>7} {:>15} {:>9} {:>7}",
                count.passed, count.failed, count.not_applicable, count.left, count.errors
            );
        }
        if self.is_interrupted() {
            text += "the run was interrupted\n";
        }
        let must = self.count(Some(Level::Must));
        let _ = match self.score() {
            Some(score) => writeln!(
                text,
                "score of {}: {score} % ({} of {} must checks)",
                self.driver,
                must.passed,
                must.applicable()
            ),
            None => writeln!(
                text,
                "score of {}: none, no must check was run",
                self.driver
            ),
        };
        text
    }

    fn list(&self, text: &mut String, title: &str, which: fn(&Ended) -> bool) {
        let chosen: Vec<_> = self
            .finished
            .iter()
            .filter(|one| which(&one.ended))
            .collect();
        if chosen.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{title}:");
        for one in chosen {
            let why = reason(&one.ended).unwrap_or_default();
            let _ = writeln!(text, "  {:32} {why}", one.check.name);
        }
    }
}
