//! Installs the driver `broken` with a fault, and runs the tester on it.

use serde_json::Value;
use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// A fault that `broken` can have.
#[derive(Clone, Debug)]
pub struct Fault {
    pub name: String,
    pub mode: String,
    /// The check that must catch it.
    pub check: String,
    /// The bug that it stands for.
    pub bug: String,
}

fn output(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

fn tester() -> PathBuf {
    env!("CARGO_BIN_EXE_flexvol-sanity").into()
}

/// The driver's executable, which another package builds.
fn broken() -> PathBuf {
    let path = tester().with_file_name("broken");
    let hint = "build it with cargo build --workspace --bins";
    assert!(path.is_file(), "there is no {}: {hint}", path.display());
    path
}

/// All faults that the driver knows.
pub fn faults() -> Vec<Fault> {
    let text = output(&broken(), &["faults"]);
    let fault = |line: &str| {
        let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
        let [name, mode, check, bug] = fields.try_into().unwrap();
        Fault {
            name,
            mode,
            check,
            bug,
        }
    };
    text.lines().map(fault).collect()
}

/// The names of all checks.
pub fn checks() -> Vec<String> {
    let text = output(&tester(), &["list"]);
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// The outcome of a check, with the reason.
#[derive(Debug)]
pub struct Ended {
    pub check: String,
    pub outcome: String,
    /// Shown when a test fails.
    #[allow(dead_code, reason = "read by Debug")]
    pub reason: String,
}

/// Installs the driver. The directory, with its records, is removed on drop.
fn install(words: &str) -> TempDir {
    let place = tempfile::Builder::new()
        .prefix("flexvol-matrix-")
        .tempdir()
        .unwrap();
    let beside = place.path().join("example.com~broken");
    let state = place.path().join("state");
    fs::create_dir(&beside).unwrap();
    fs::create_dir(&state).unwrap();
    symlink(broken(), beside.join("broken")).unwrap();
    symlink(&state, beside.join(".state")).unwrap();
    fs::write(beside.join(".broken"), words).unwrap();
    // Removing the image makes a volume unreadable without device-mapper.
    let gone = r#"mv -- "$SANITY_CONTENT" "$SANITY_CONTENT.gone""#;
    let pool = match words {
        "pooled" => "pool = 'fast'\n",
        _ => "",
    };
    let kind = match words {
        "ephemeral" => "kind = 'ephemeral'\n",
        _ => "",
    };
    let config = format!(
        "fs_type = 'xfs'\ndeadline = 20\nwrites = [{state:?}]\n[options]\nimage = '{{image}}'\n{pool}[volume]\n{kind}\
         break_reads = ['/bin/sh', '-c', '{gone}']\n"
    );
    fs::write(place.path().join("sanity.toml"), config).unwrap();
    place
}

/// Tests the driver with these words in its `.broken`, running `jobs` checks at a time.
pub fn test(words: &str, filter: Option<&str>, jobs: usize) -> Vec<Ended> {
    let place = install(words);
    let mut command = Command::new(tester());
    command
        .args(["run", "--format", "json", "--jobs", &jobs.to_string()])
        .arg("--driver")
        .arg(place.path().join("example.com~broken/broken"))
        .arg("--config")
        .arg(place.path().join("sanity.toml"));
    if let Some(filter) = filter {
        command.args(["--filter", filter]);
    }
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .map(|one| Ended {
            check: text(&one["check"]),
            outcome: text(&one["outcome"]),
            reason: text(&one["reason"]),
        })
        .collect()
}
