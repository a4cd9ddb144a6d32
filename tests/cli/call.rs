//! The verb `call`: prints the driver's reply unchanged, and the explanation separately.

use crate::flexvol;
use assert_cmd::assert::{Assert, OutputAssertExt};
use flexvol_testing::{Points, tests};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

tests! {
    "call: the reply is on standard output alone, the explanation on standard error" => explanation;
    "call: wrong arguments are explained and answered as the driver answers them"
        => wrong_arguments;
    "call: a driver that kubelet would not understand is told from one that it would"
        => broken_drivers;
    "call --record: appends lines of JSON without secrets" => record;
}

fn call(argv: &[&str]) -> Assert {
    flexvol().arg("call").args(argv).assert()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn stderr(assert: &Assert) -> String {
    text(&assert.get_output().stderr)
}

fn explanation(_: &Points) {
    let direct = flexvol().arg("init").assert().success();
    let reply = text(&direct.get_output().stdout);
    let assert = call(&["init"]).success().stdout(reply);
    assert!(
        stderr(&assert).contains("kubelet takes it as done"),
        "{assert}"
    );
}

fn wrong_arguments(points: &Points) {
    let zfs = r#"{"kubernetes.io/fsType":"zfs","kubernetes.io/pvOrVolumeName":"a","requestBytes":"1048576"}"#;
    let not_ours = "file system \"zfs\" is not one of ext3, ext4, xfs, btrfs";
    for (argv, said) in [
        (&["mount", "/dir"][..], "usage   mount DIR JSON"),
        (&["expandfs", "{}", "", "/d", "1", "2"], "cannot shrink"),
        (&["unmount", "--", "-x"], "usage   unmount DIR"),
        (&["mount", "/dir", zfs], not_ours),
        (&["expandfs", zfs, "", "/dir", "2", "1"], not_ours),
        (&["provision", zfs], not_ours),
    ] {
        let assert = call(argv).failure().code(1);
        assert!(stderr(&assert).contains(said), "{argv:?}: {assert}");
        let reply = text(&assert.get_output().stdout);
        assert!(reply.contains("\"status\":\"Failure\""), "{reply}");
        points.add(1);
    }
    let assert = call(&["mout"]).failure().code(1);
    assert!(stderr(&assert).contains("is no callout"), "{assert}");
    call(&[]).failure().code(2);
}

/// A driver of another vendor, installed under the name `a/driver`.
fn install(plugins: &Path, script: &str) {
    let home = plugins.join("a~driver");
    fs::create_dir_all(&home).unwrap();
    let executable = home.join("driver");
    fs::write(&executable, script).unwrap();
    fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
}

fn broken_drivers(points: &Points) {
    let dir = tempfile::tempdir().unwrap();
    let named = ["--name", "a/driver", "--plugin-dir"];
    let run = |argv: &[&str]| {
        let mut command = flexvol();
        command
            .arg("call")
            .args(named)
            .arg(dir.path())
            .args(argv)
            .assert()
    };
    let assert = run(&["init"]).failure().code(1);
    assert!(stderr(&assert).contains("a/driver is not installed"));
    for (script, code, said) in [
        ("echo '{\"status\":\"Success\"}'; exit 3", 3, "an error"),
        (
            "echo '{\"status\":\"Success\"}'; echo log >&2",
            0,
            "spoils it",
        ),
        ("echo hello", 0, "not the JSON of a driver"),
        (
            "echo '{\"status\":\"Not supported\"}'; exit 1",
            1,
            "not supported",
        ),
        ("kill -9 $$", 137, "not the JSON of a driver"),
        ("echo '{\"status\":\"success\"}'", 0, "failed"),
    ] {
        install(dir.path(), &format!("#!/bin/sh\n{script}\n"));
        let assert = run(&["init"]).code(code);
        assert!(stderr(&assert).contains(said), "{script}: {assert}");
        points.add(1);
    }
}

fn record(_: &Points) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("calls.jsonl");
    let path = file.to_str().unwrap();
    let json = r#"{"kubernetes.io/pvOrVolumeName":"pv","kubernetes.io/secret/k":"aHVudGVyMg=="}"#;
    call(&["--record", path, "init"]).success();
    // Exit code 0, because kubelet logs the arguments on any other exit code.
    let assert = call(&["--record", path, "mount", "relative", json]).success();
    assert!(!stderr(&assert).contains("aHVudGVyMg"), "{assert}");
    let recorded = fs::read_to_string(&file).unwrap();
    assert!(!recorded.contains("aHVudGVyMg"), "{recorded}");
    let lines: Vec<serde_json::Value> = recorded
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["argv"], serde_json::json!(["init"]));
    assert_eq!(lines[0]["reply"]["status"], "Success");
    assert_eq!(lines[1]["argv"][0], "mount");
    assert_eq!(lines[1]["reply"]["status"], "Failure");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
