//! The report as one JSON object.

use super::{Report, causes::Cause, reason, word};
use crate::{callout::call::Call, check::result::Ended};
use serde_json::{Value, json};

impl Report {
    pub(super) fn json(&self) -> String {
        let call = |call: &Call| json!({ "command": call.command(&self.masks), "answer": call.answer(&self.masks) });
        let checks: Vec<Value> = self
            .finished
            .iter()
            .map(|one| {
                let mut object = json!({
                    "check": one.check.name,
                    "level": one.check.level.to_string(),
                    "outcome": word(&one.ended),
                    "reason": reason(&one.ended),
                    "notes": one.notes,
                    "left-behind": one.leftovers,
                    "seconds": one.took.as_secs_f64(),
                });
                if let Ended::Failed(failure) = &one.ended {
                    object["failing"] = failure.call.as_ref().map(call).into();
                    object["changes"] = failure.changes.clone().into();
                    object["calls"] = one.calls.iter().map(call).collect();
                }
                object
            })
            .collect();
        let cause = |cause: Cause| json!({ "check": cause.check, "fault": cause.fault, "others": cause.others });
        let causes: Vec<Value> = self.causes().into_iter().map(cause).collect();
        let count = self.count(None);
        let whole = json!({
            "driver": self.driver,
            "executable": self.executable,
            "interrupted": self.is_interrupted(),
            "score": self.score(),
            "passed": count.passed,
            "failed": count.failed,
            "not-applicable": count.not_applicable,
            "left": count.left,
            "errors": count.errors,
            "causes": causes,
            "checks": checks,
        });
        format!("{whole:#}\n")
    }
}
