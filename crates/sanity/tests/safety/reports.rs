//! The report of a failure.

use crate::{Verdict, vendor::Vendor};
use std::fs;

/// A fault, and the report that a check must give.
struct Expected {
    fault: &'static str,
    check: &'static str,
    /// The constant part of the call's command line.
    call: &'static str,
    changed: &'static str,
}

/// A failure visible in a call, one visible only afterwards, and one whose call changes nothing.
const FAILURES: [Expected; 3] = [
    Expected {
        fault: "stacks-mounts",
        check: "mnt.repeat-no-stack",
        call: "broken mount ",
        changed: "+ xfs of /dev/loop",
    },
    Expected {
        fault: "deletes-on-unmount",
        check: "umt.keeps-data",
        call: "broken mount ",
        changed: "+ /dev/loop",
    },
    Expected {
        fault: "says-failed",
        check: "out.status-word",
        call: "broken mount ",
        // Other processes on this machine have loop devices too.
        changed: "",
    },
];

pub fn evidence() -> Verdict {
    for expected in FAILURES {
        let vendor = Vendor::new(expected.fault);
        vendor.configure("");
        for format in ["pretty", "junit", "json"] {
            let output = vendor
                .tester(&["run", "--format", format, "--filter", expected.check])
                .arg("--report")
                .arg(vendor.path("report.md"))
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            shown(&expected, format, &String::from_utf8_lossy(&output.stdout));
        }
        let report = fs::read_to_string(vendor.path("report.md")).unwrap();
        shown(&expected, "markdown", &report);
    }
    Ok(())
}

fn shown(expected: &Expected, format: &str, text: &str) {
    let Expected {
        fault,
        check,
        call,
        changed,
    } = expected;
    let input = match format {
        "junit" => " &lt;/dev/null",
        _ => " </dev/null",
    };
    let driver = format!("/example.com~broken/{call}");
    for word in [check, "env -i PATH=/", &driver, input, changed] {
        assert!(
            text.contains(word),
            "{fault}, {format}: no {word:?} in {text}"
        );
    }
    let tells_seconds = |rest: &str| {
        let seconds = rest.split_once(" s)").map(|(seconds, _)| seconds.parse());
        matches!(seconds, Some(Ok(0.0_f64..)))
    };
    assert!(
        text.split("(exit 0, ").skip(1).any(tells_seconds),
        "{fault}, {format}: no seconds in {text}"
    );
}
