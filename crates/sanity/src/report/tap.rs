//! Test Anything Protocol, version 13.

use super::{Report, reason};
use crate::run::Ended;
use std::fmt::Write as _;

impl Report {
    pub(super) fn tap(&self) -> String {
        let mut text = format!("TAP version 13\n1..{}\n", self.finished.len());
        for (number, one) in self.finished.iter().enumerate() {
            let number = number + 1;
            let name = one.check.name;
            let reason = reason(&one.ended).unwrap_or_default().replace('\n', " ");
            // Writing to a string does not fail.
            let _ = match &one.ended {
                Ended::Passed => writeln!(text, "ok {number} - {name}"),
                Ended::NotApplicable(_) | Ended::Left(_) => {
                    writeln!(
                        text,
                        "ok {number} - {name} # SKIP {}",
                        reason.replace('#', "no. ")
                    )
                }
                Ended::Failed(failure) => {
                    let todo = if one.check.level == crate::check::Level::Warn {
                        " # TODO warning"
                    } else {
                        ""
                    };
                    let _ = writeln!(text, "not ok {number} - {name}{todo}\n# {reason}");
                    for (what, seen) in self.evidence(failure) {
                        let _ = writeln!(text, "# {what}: {}", seen.replace('\n', "\n# "));
                    }
                    Ok(())
                }
                Ended::Error(_) => writeln!(text, "not ok {number} - {name}\n# {reason}"),
            };
        }
        text
    }
}
