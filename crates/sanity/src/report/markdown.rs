//! The report in plain language, to be pasted into an issue.

use super::{Report, reason};
use crate::check::{Level, result::Ended};
use std::fmt::Write as _;

impl Report {
    pub fn markdown(&self) -> String {
        let must = self.count(Some(Level::Must));
        let all = self.count(None);
        let mut text = format!(
            "## FlexVolume driver {}\n\nTested with flexvol-sanity {}: {} of {} must checks passed",
            self.driver,
            env!("CARGO_PKG_VERSION"),
            must.passed,
            must.applicable(),
        );
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "; of all levels {} passed, {} failed, {} do not apply, {} were left out, {} could not be run.",
            all.passed, all.failed, all.not_applicable, all.left, all.errors
        );
        if self.is_interrupted() {
            text += "\nThe run was interrupted: what had not ended by then counts as left out.\n";
        }
        for cause in self.causes() {
            let _ = writeln!(
                text,
                "\nMend {} first (it fails where {}). Probably for the same reason these fail: {}.",
                cause.check,
                cause.fault,
                cause.others.join(", ")
            );
        }
        for level in [Level::Must, Level::Should, Level::Warn] {
            for one in self.finished.iter().filter(|one| one.check.level == level) {
                let Ended::Failed(failure) = &one.ended else {
                    continue;
                };
                let check = one.check;
                let _ = writeln!(
                    text,
                    "\n### {} ({level})\n\n{} Expected: {}. Found: {}.\n\n{} {}",
                    check.name,
                    sentence(check.what),
                    failure.expected,
                    failure.found,
                    sentence(check.why),
                    sentence(check.mend)
                );
                let mut lines = String::new();
                for (what, seen) in self.evidence(failure) {
                    let mark = match what {
                        "call" => "$ ",
                        "changed" => "# ",
                        _ => "",
                    };
                    let _ = writeln!(lines, "{mark}{seen}");
                }
                let fence = fence(&lines);
                let _ = write!(text, "\n{fence}console\n{lines}{fence}\n");
                let _ = writeln!(text, "\nSource: {}", check.source);
            }
        }
        let left: Vec<_> = self
            .finished
            .iter()
            .flat_map(|one| one.leftovers.iter().map(|what| (one.check.name, what)))
            .collect();
        if !left.is_empty() {
            let _ = writeln!(text, "\n### Left behind by the driver\n");
            for (name, what) in left {
                let _ = writeln!(text, "- {name}: {what}");
            }
        }
        let rest: Vec<_> = self
            .finished
            .iter()
            .filter(|one| !matches!(one.ended, Ended::Passed | Ended::Failed(_)))
            .collect();
        if !rest.is_empty() {
            let _ = writeln!(text, "\n### Not judged\n");
            for one in rest {
                let why = reason(&one.ended).unwrap_or_default();
                let _ = writeln!(text, "- {}: {why}", one.check.name);
            }
        }
        text
    }
}

/// Returns a code fence that does not occur in the text.
fn fence(text: &str) -> String {
    let runs = text.split(|c| c != '`').map(str::len);
    "`".repeat(runs.max().map_or(3, |longest| longest.max(2) + 1))
}

/// Capitalizes the text and ends it with a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    let text: String = first.into_iter().chain(letters).collect();
    if text.ends_with('.') {
        text
    } else {
        text + "."
    }
}

#[cfg(test)]
mod tests {
    use super::fence;

    #[test]
    fn no_text_ends_its_own_fence() {
        assert_eq!(fence(""), "```");
        assert_eq!(fence("a `b` c"), "```");
        assert_eq!(fence("```\n# a title\n````x"), "`````");
    }
}
