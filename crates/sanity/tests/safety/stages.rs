//! Drivers with three stages: faults in the node's stage are found even if the pod's stage is correct.

use crate::{Verdict, vendor::Vendor};
use serde_json::Value;

const SUCCESS: &str = r#"echo '{"status":"Success"}'; exit 0;;"#;

/// The faulty answers of an otherwise correct driver, the check that finds them, and the callout that it blames.
struct Wrong {
    arms: String,
    check: &'static str,
    callout: &'static str,
}

pub fn of_the_node() -> Verdict {
    let mount =
        "blkid \"$3\" >/dev/null || mkfs.xfs -q \"$3\" >/dev/null; mount -o nouuid \"$3\" \"$2\"";
    for wrong in [
        Wrong {
            arms: format!("unmountdevice) ! mountpoint -q \"$2\" || umount -l \"$2\"; {SUCCESS}"),
            check: "umt.busy",
            callout: "unmountdevice",
        },
        Wrong {
            arms: "unmount) ! $real \"$@\" | grep Success || exit 0; echo umount: busy; exit 1;;"
                .to_owned(),
            check: "umt.busy",
            callout: "unmount",
        },
        Wrong {
            arms: format!("mountdevice) {mount}; {SUCCESS}"),
            check: "mnt.repeat-no-stack",
            callout: "mountdevice",
        },
        Wrong {
            arms: format!("mountdevice) mountpoint -q \"$2\" || {{ {mount}; }}; {SUCCESS}"),
            check: "mnt.other-thing-mounted-there",
            callout: "mountdevice",
        },
    ] {
        let vendor = Vendor::new("three-stages");
        vendor.configure("");
        for (arms, outcome) in [("", "passed"), (wrong.arms.as_str(), "failed")] {
            vendor.instead(arms);
            let words = ["run", "--format", "json", "--filter", wrong.check];
            let output = vendor.tester(&words).output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let check = &report["checks"][0];
            assert_eq!(check["outcome"], outcome, "{arms}: {report:#}");
            let call = check["failing"]["command"].as_str().unwrap_or_default();
            let blamed = format!("/broken {} /", wrong.callout);
            assert!(outcome == "passed" || call.contains(&blamed), "{call}");
        }
    }
    Ok(())
}
