//! The report in JUnit's XML format.

use super::{Report, reason};
use crate::check::{Level, result::Ended};
use std::fmt::Write as _;

impl Report {
    pub(super) fn junit(&self) -> String {
        let (count, warnings) = (self.count(None), self.count(Some(Level::Warn)).failed);
        let seconds: f64 = self.finished.iter().map(|one| one.took.as_secs_f64()).sum();
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            r#"<testsuite name="{}" tests="{}" failures="{}" errors="{}" skipped="{}" time="{seconds:.3}">"#,
            escaped(&self.driver),
            self.finished.len(),
            count.failed - warnings,
            count.errors,
            count.left + count.not_applicable + warnings,
        );
        for one in &self.finished {
            let (group, _) = one
                .check
                .name
                .split_once('.')
                .unwrap_or((one.check.name, ""));
            let reason = escaped(&reason(&one.ended).unwrap_or_default());
            let inside = match &one.ended {
                Ended::Passed => String::new(),
                Ended::Failed(failure) => {
                    let seen = self.evidence(failure);
                    let lines = seen.iter().map(|(what, seen)| format!("{what}: {seen}\n"));
                    let lines: String = lines.collect();
                    let (level, lines) = (one.check.level, escaped(&lines));
                    if level == Level::Warn {
                        // CI systems count failures, and a warning must not count as one.
                        let skipped = format!("<skipped message=\"warning: {reason}\"/>");
                        format!("{skipped}<system-out>{lines}</system-out>")
                    } else {
                        format!("<failure type=\"{level}\" message=\"{reason}\">{lines}</failure>")
                    }
                }
                Ended::NotApplicable(_) | Ended::Skipped(_) | Ended::NotRun => {
                    format!("<skipped message=\"{reason}\"/>")
                }
                Ended::Error(_) => format!("<error message=\"{reason}\"/>"),
            };
            let _ = writeln!(
                text,
                "  <testcase classname=\"{group}\" name=\"{}\" time=\"{:.3}\">{inside}</testcase>",
                escaped(one.check.name),
                one.took.as_secs_f64(),
            );
        }
        text + "</testsuite>\n"
    }
}

/// Escapes text for XML 1.0, which allows no control characters but these three, not even escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' | '\r' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::result::{Failure, Finished},
        checks,
    };
    use std::time::Duration;

    #[test]
    fn a_warning_is_no_failure() {
        let failed = |level| Finished {
            check: checks::all().find(|check| check.level == level).unwrap(),
            ended: Ended::Failed(Box::new(Failure {
                expected: "this".to_owned(),
                found: "that".to_owned(),
                call: None,
                changes: Vec::new(),
            })),
            notes: Vec::new(),
            calls: Vec::new(),
            leftovers: Vec::new(),
            took: Duration::ZERO,
        };
        let report = Report {
            driver: "example.com/driver".to_owned(),
            executable: "/bin/driver".to_owned(),
            masks: Vec::new(),
            finished: [Level::Must, Level::Warn].map(failed).into(),
        };
        let text = report.junit();
        assert!(
            text.contains(r#"tests="2" failures="1" errors="0" skipped="1""#),
            "{text}"
        );
        assert_eq!(text.matches("<failure ").count(), 1, "{text}");
        let skipped = r#"<skipped message="warning: expected: this; found: that"/>"#;
        assert!(text.contains(skipped), "{text}");
    }

    #[test]
    fn what_xml_cannot_hold_is_replaced() {
        assert_eq!(
            super::escaped("a<b>&\"\u{1}\n"),
            "a&lt;b&gt;&amp;&quot;\u{fffd}\n"
        );
    }
}
