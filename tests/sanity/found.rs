//! The result of a run of the tester, and whether it is as expected.

use super::applicable::Reason;
use flexvol_testing::Points;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The result of a run.
#[derive(Debug)]
pub struct Found {
    pub exit: i32,
    checks: Vec<Value>,
}

impl Found {
    /// Parses the tester's JSON.
    ///
    /// # Errors
    /// When it is not a report.
    pub fn of(report: &str, exit: i32) -> Result<Self, String> {
        let report: Value = serde_json::from_str(report).map_err(|error| error.to_string())?;
        let checks = report["checks"].as_array().ok_or("there are no checks")?;
        Ok(Found {
            exit,
            checks: checks.clone(),
        })
    }

    /// The checks with this outcome, and their reasons.
    pub fn which(&self, outcome: &str) -> BTreeMap<&str, &str> {
        let ended = self
            .checks
            .iter()
            .filter(|check| check["outcome"] == outcome);
        ended
            .map(|check| (text(check, "check"), text(check, "reason")))
            .collect()
    }

    /// The names of failed checks, without warnings.
    pub fn failed(&self) -> BTreeSet<&str> {
        let failed = self
            .checks
            .iter()
            .filter(|check| check["outcome"] == "failed");
        failed
            .filter(|check| check["level"] != "warn")
            .map(|check| text(check, "check"))
            .collect()
    }

    /// The names of all checks, in the order of the report.
    pub fn all(&self) -> Vec<&str> {
        let names = self.checks.iter().map(|check| text(check, "check"));
        names.collect()
    }

    /// The whole report about one check.
    pub fn about(&self, name: &str) -> String {
        let check = self.checks.iter().find(|check| check["check"] == name);
        format!("{:#}", check.unwrap_or(&Value::Null))
    }
}

fn text<'a>(check: &'a Value, key: &str) -> &'a str {
    check[key].as_str().unwrap_or_default()
}

/// Checks that nothing failed, what was left out is in `left`, and what does not apply is listed.
///
/// # Panics
/// When one of these does not hold.
pub fn passes(found: &Found, lists: &[&[Reason]], left: &[&str], points: &Points) {
    let failed: Vec<_> = found
        .failed()
        .iter()
        .map(|name| found.about(name))
        .collect();
    assert!(failed.is_empty(), "failed: {}", failed.join("\n"));
    // 3 means that nothing failed but something was left out.
    assert!([0, 3].contains(&found.exit), "exit status {}", found.exit);
    assert_eq!(found.which("error"), BTreeMap::new());
    let reasons: Vec<_> = lists.iter().copied().flatten().collect();
    for (name, why) in found.which("not-applicable") {
        let listed = reasons
            .iter()
            .any(|(part, reason)| name.starts_with(part) && why == *reason);
        assert!(listed, "{name} does not apply ({why}), and is not listed");
    }
    for (part, _) in reasons {
        let known = found
            .which("not-applicable")
            .keys()
            .any(|name| name.starts_with(part));
        assert!(known, "{part} is listed and applies");
    }
    let out = found.which("left");
    let only: Vec<_> = out.keys().filter(|name| !left.contains(name)).collect();
    assert!(only.is_empty(), "left out: {out:?}");
    points.add(found.which("passed").len() as u64);
}
