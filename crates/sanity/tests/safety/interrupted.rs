//! Interrupted runs, and what drivers leave.

use crate::{
    Verdict,
    vendor::{Running, Vendor, until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{fs, path::PathBuf, process::Stdio};

/// Starts a run, and waits until a volume is mounted in it.
fn under_way(vendor: &Vendor, words: &[&str]) -> (Running, PathBuf) {
    let mut command = vendor.tester(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    // As after the terminal was closed: writes to stdout and stderr fail.
    drop((running.0.stdout.take(), running.0.stderr.take()));
    until("a journal", || vendor.scratch().is_some());
    let scratch = vendor.scratch().unwrap();
    // The guard and the worker share a mount namespace.
    let mounts = format!("/proc/{}/mountinfo", running.0.id());
    until("a mounted volume", || {
        let text = fs::read(&mounts).unwrap_or_default();
        String::from_utf8_lossy(&text)
            .lines()
            .any(|line| line.contains(&*scratch.to_string_lossy()) && line.contains(" - xfs "))
    });
    (running, scratch)
}

pub fn signal(running: &Running, signal: Signal) {
    let id = i32::try_from(running.0.id()).unwrap();
    kill(Pid::from_raw(id), signal).unwrap();
}

fn nothing(left: Vec<String>) -> Verdict {
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("left: {left:?}"))
    }
}

pub fn by_a_signal() -> Verdict {
    for (which, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        // With attach, so that the driver has records of its own besides volumes and mounts.
        let vendor = Vendor::new("attached");
        vendor.configure("");
        let (mut running, scratch) = under_way(&vendor, &["run", "--filter", "kill.,life."]);
        signal(&running, which);
        let status = running.0.wait().unwrap();
        assert_eq!(status.code(), Some(code));
        nothing(vendor.left(&scratch))?;
        let attached = fs::read_dir(vendor.path("state/attached")).unwrap().count();
        assert_eq!(attached, 0, "what was attached is detached");
    }
    Ok(())
}

pub fn reported() -> Verdict {
    for which in [Signal::SIGINT, Signal::SIGTERM] {
        let vendor = Vendor::new("usage-without-arguments");
        vendor.configure("");
        let report = vendor.path("report.md");
        let printed = vendor.path("printed.xml");
        let mut command = vendor.tester(&["run", "--format", "junit", "--jobs", "1"]);
        command
            .args(["--filter", "cli.no-args,kill.", "--report"])
            .arg(&report)
            .stdout(fs::File::create(&printed).unwrap())
            .stderr(Stdio::null());
        let mut running = Running(command.spawn().unwrap());
        until("a volume of the second check", || {
            fs::read_dir(vendor.volumes()).unwrap().next().is_some()
                && vendor.scratch().is_some_and(|scratch| {
                    let scratch = scratch.join("kill.anywhere");
                    // It is in the mount namespace of the run.
                    let root = format!("/proc/{}/root", running.0.id());
                    std::path::Path::new(&format!("{root}{}", scratch.display())).exists()
                })
        });
        signal(&running, which);
        let status = running.0.wait().unwrap();
        assert_eq!(status.code(), Some(128 + which as i32));
        let printed = fs::read_to_string(printed).unwrap();
        assert!(printed.ends_with("</testsuite>\n"), "{printed}");
        assert!(printed.contains("<failure type="), "{printed}");
        assert!(printed.contains("interrupted before it ended"), "{printed}");
        let report = fs::read_to_string(report).unwrap();
        assert!(report.contains("### cli.no-args"), "{report}");
        assert!(report.contains("The run was interrupted"), "{report}");
        nothing(vendor.left(&vendor.path("nowhere")))?;
    }
    Ok(())
}

pub fn killed() -> Verdict {
    let vendor = Vendor::new("attached");
    vendor.configure("");
    let (mut running, scratch) = under_way(&vendor, &["run", "--filter", "kill.,life."]);
    signal(&running, Signal::SIGKILL);
    running.0.wait().unwrap();
    assert!(!vendor.left(&scratch).is_empty(), "nobody can undo yet");
    let next = vendor
        .tester(&["run", "--filter", "cli.no-args"])
        .output()
        .unwrap();
    assert!(next.status.success(), "{next:?}");
    let said = String::from_utf8_lossy(&next.stderr);
    assert!(said.contains("undid what an interrupted run"), "{said}");
    let attached = fs::read_dir(vendor.path("state/attached")).unwrap().count();
    assert_eq!(attached, 0, "what was attached is detached");
    nothing(vendor.left(&scratch))
}

pub fn kept() -> Verdict {
    let vendor = Vendor::new("deletes-on-unmount");
    vendor.configure("");
    let mut command = vendor.tester(&["run", "--keep", "--filter", "umt.keeps-data"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut said = std::io::BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.starts_with("kept, until Ctrl-C: nsenter"), "{line}");
    let scratch = vendor.scratch().unwrap();
    let words: Vec<_> = line
        .trim_start_matches("kept, until Ctrl-C: ")
        .split_whitespace()
        .collect();
    let look = std::process::Command::new(words[0])
        .args(&words[1..])
        .output()
        .unwrap();
    let seen = String::from_utf8_lossy(&look.stdout);
    assert!(seen.contains("umt.keeps-data"), "{look:?}");
    assert!(fs::read_dir(vendor.volumes()).unwrap().next().is_some());
    signal(&running, Signal::SIGINT);
    running.0.wait().unwrap();
    let mut report = String::new();
    let mut stdout = running.0.stdout.take().unwrap();
    std::io::Read::read_to_string(&mut stdout, &mut report).unwrap();
    assert!(report.contains("umt.keeps-data"), "{report}");
    assert!(report.contains("    $ "), "the calls are told: {report}");
    nothing(vendor.left(&scratch))
}

pub fn left_behind() -> Verdict {
    let vendor = Vendor::new("forgets-the-device");
    vendor.configure("");
    let output = vendor
        .tester(&["run", "--format", "json", "--filter", "umt.happy"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = report["checks"][0]["left-behind"].to_string();
    assert!(left.contains("a loop device on"), "{report:#}");
    Ok(())
}
