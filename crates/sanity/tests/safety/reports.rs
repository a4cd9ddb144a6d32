//! What a report says of a failure.

use crate::{Verdict, vendor::Vendor};
use std::fs;

/// What one fault makes a check say.
struct Expected {
    fault: &'static str,
    check: &'static str,
    /// The words of the call, as far as they are known.
    call: &'static str,
    changed: &'static str,
}

/// A failure that a call shows, one that is seen afterwards, and one of a call that changes nothing.
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
        // Others on this machine have loop devices too.
        changed: "",
    },
];

pub fn evidence() -> Verdict {
    for expected in FAILURES {
        let vendor = Vendor::new(expected.fault);
        vendor.configure("");
        for format in ["pretty", "tap", "junit", "json"] {
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
    for word in [
        check,
        "env -i PATH=/",
        &driver,
        input,
        "(exit 0, 0.",
        changed,
    ] {
        assert!(
            text.contains(word),
            "{fault}, {format}: no {word:?} in {text}"
        );
    }
}

/// A device of the recording stands for the one that the driver named for the same volume.
pub fn replayed_device() -> Verdict {
    let vendor = Vendor::new("attached");
    vendor.configure("");
    let options = r#"{"kubernetes.io/pvOrVolumeName":"recorded"}"#;
    let at = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/v/d/mounts/recorded";
    let calls = [
        vec!["attach", options, "n"],
        vec!["waitforattach", "/dev/xvdq", options],
        vec!["mountdevice", at, "/dev/xvdq", options],
        vec!["unmountdevice", at],
        vec!["detach", "recorded", "n"],
    ];
    let line = |argv| {
        let call = serde_json::json!({ "argv": argv, "reply": { "status": "Success" } });
        format!("{call}\n")
    };
    fs::write(vendor.path("calls.jsonl"), calls.map(line).concat()).unwrap();
    // It mounts nothing but a device that is there.
    let failure = r#"{"status":"Failure","message":"there is no such device"}"#;
    let no_device = "waitforattach) device=$2;; mountdevice) device=$3;; *) device=/dev/null;;";
    vendor.instead(&format!(
        "init) ;; *) case $1 in {no_device} esac; [ -e \"$device\" ] || {{ echo '{failure}'; exit 0; }};;"
    ));
    let recording = vendor.path("calls.jsonl");
    let words = ["replay", recording.to_str().unwrap()];
    let output = vendor.tester(&words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("5 calls made, 0 answered otherwise"),
        "{output:?}"
    );
    Ok(())
}

/// The calls of a recording have what the run was given, and what it has no use for is refused.
pub fn replayed() -> Verdict {
    let vendor = Vendor::new("");
    let log = vendor.path("log");
    let script = format!(
        "case \"$1\" in\n\
         init) echo '{{\"status\":\"Success\",\"capabilities\":{{\"attach\":false}}}}' ;;\n\
         *) echo \"$1 $3\" >>{}\n\
         echo '{{\"status\":\"Failure\",\"message\":\"no\"}}' ;;\n\
         esac",
        log.display()
    );
    fs::remove_file(vendor.path("example.com~broken/broken")).unwrap();
    vendor.script("example.com~broken/broken", &script);
    vendor.configure("[secrets]\npassword = 'new one'");
    let config = fs::read_to_string(vendor.path("sanity.toml")).unwrap();
    fs::write(
        vendor.path("sanity.toml"),
        format!("fs_type = 'ext4'\n{config}"),
    )
    .unwrap();
    let options = r#"{"kubernetes.io/fsType":"xfs","kubernetes.io/pvOrVolumeName":"recorded","kubernetes.io/secret/key":"b2xk","pool":"old"}"#;
    let call = serde_json::json!({
        "argv": ["mount", "/var/lib/kubelet/pods/1/volumes/v~d/recorded", options],
        "reply": { "status": "Failure" },
    });
    fs::write(vendor.path("calls.jsonl"), format!("{call}\n")).unwrap();
    let recording = vendor.path("calls.jsonl");
    let words = ["replay", recording.to_str().unwrap()];
    let output = vendor.tester(&words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("1 calls made, 0 answered otherwise"),
        "{output:?}"
    );
    let log = fs::read_to_string(log).unwrap();
    let asked = log
        .lines()
        .rfind(|line| line.starts_with("mount "))
        .unwrap();
    for word in [
        r#""kubernetes.io/fsType":"ext4""#,
        r#""kubernetes.io/secret/password":"bmV3IG9uZQ==""#,
        r#""image":"/"#,
        "/volumes/sanity-",
    ] {
        assert!(asked.contains(word), "no {word} in {asked}");
    }
    for word in ["b2xk", "old", "recorded"] {
        assert!(!asked.contains(word), "{word} in {asked}");
    }
    for word in ["--format=json", "--filter=out.", "--jobs=2"] {
        let output = vendor.tester(&words).arg(word).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{word}");
    }
    Ok(())
}
