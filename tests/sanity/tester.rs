//! Runs the tester.

use crate::{executable, found::Found};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// All checks, each with its requirements.
pub fn list() -> Vec<(String, String)> {
    let output = Command::new(executable().with_file_name("flexvol-sanity"))
        .arg("list")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let checks = text.lines().map(|line| {
        let (check, needs) = line.split_once(" needs ").unwrap();
        let name = check.split_whitespace().next().unwrap();
        (name.to_owned(), needs.to_owned())
    });
    checks.collect()
}

/// Runs all checks except the skipped ones, with this configuration.
pub fn run(driver: &Path, directory: &Path, configuration: &str, more: &[&str]) -> Found {
    let config = directory.join("sanity.toml");
    fs::write(&config, configuration).unwrap();
    run_through(&[], driver, &config, more)
}

/// Like [`run`], with the tester started by another program. The journal is beside the configuration, so that
/// earlier runs on this machine do not matter.
pub fn run_through(through: &[&str], driver: &Path, config: &Path, more: &[&str]) -> Found {
    let tester = executable().with_file_name("flexvol-sanity");
    assert!(
        tester.exists(),
        "build it first: cargo build -p flexvol-sanity"
    );
    let mut line = through.to_vec();
    let tester = tester.to_str().unwrap();
    line.push(tester);
    let output = Command::new(line[0])
        .args(&line[1..])
        .args(["run", "--format", "json", "--driver"])
        .arg(driver)
        .arg("--config")
        .arg(config)
        .arg("--journal")
        .arg(config.with_file_name("journals"))
        .args(more)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report = String::from_utf8_lossy(&output.stdout);
    Found::of(&report, output.status.code().unwrap())
        .unwrap_or_else(|error| panic!("no report: {error}: {said}"))
}
