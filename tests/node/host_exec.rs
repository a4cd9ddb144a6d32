//! Child processes, with real programs.

use crate::bench::Bench;
use flexvol_host::exec::{AtDeadline, Limits, Output, Tool};
use flexvol_sdk::{ErrorKind, Result};
use flexvol_testing::{Points, eventually, tests};
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::signal::{SigSet, Signal},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::fd::AsRawFd,
    path::Path,
    time::{Duration, Instant},
};

tests! {
    "a program gets nothing of its starter's surroundings" => surroundings;
    "a program inherits no descriptor but its own three" => descriptors;
    "of a flood of output the beginning is kept" => flood;
    "a program is killed at its deadline with what it started" => killed;
    "a program that must not be cut goes on after its deadline, and may speak" => left;
    "what a program leaves running delays nobody" => daemon;
    "only the log hears what a failed program said" => failure;
    "a missing program names its package" => missing;
}

fn shell(script: &str, deadline: Duration, at_deadline: AtDeadline) -> Result<Output> {
    let limits = Limits {
        deadline,
        at_deadline,
        inherit: &[],
    };
    let arguments: [&OsStr; 2] = ["-c".as_ref(), script.as_ref()];
    Tool::find("sh").unwrap().run(&arguments, &limits)
}

fn says(script: &str) -> String {
    let output = shell(script, Duration::from_secs(20), AtDeadline::Kill).unwrap();
    let output = output.success("run a script").unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn surroundings(points: &Points) {
    // As a driver does, so that a limit on file sizes is reported as an error.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    // The parent of the tests may have set other signals to ignored.
    let ours = [Signal::SIGXFSZ, Signal::SIGPIPE].map(|signal| 1_u64 << (signal as i32 - 1));
    for set in ["SigBlk", "SigIgn"] {
        let said = says(&format!("exec grep {set} /proc/self/status"));
        let mask = said.trim().rsplit_once('\t').unwrap().1;
        let mask = u64::from_str_radix(mask, 16).unwrap();
        assert_eq!(mask & (ours[0] | ours[1]), 0, "{said}");
    }
    signals.thread_unblock().unwrap();
    let environment = says("exec env");
    let mut names: Vec<_> = environment
        .lines()
        .map(|line| line.split('=').next().unwrap())
        // The shell sets these itself.
        .filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["LC_ALL", "PATH"]);
    for (script, expected) in [
        ("pwd", "/\n"),
        ("umask", "0077\n"),
        ("cat", ""),
        // A session leader's pid is its session id, field 6.
        (
            "read -r stat < /proc/$$/stat; set -- ${stat##*)}; [ $4 = $$ ] && echo leader",
            "leader\n",
        ),
    ] {
        assert_eq!(says(script), expected, "{script}");
        points.add(1);
    }
}

fn descriptors(_: &Points) {
    // As if kubelet had passed a descriptor that is not close-on-exec.
    let file = File::open("/proc/self/status").unwrap();
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    // While it lists them, the shell itself has the directory open.
    let listed = says("for fd in /proc/$$/fd/*; do readlink $fd; done; true");
    let inherited: Vec<_> = listed
        .lines()
        .filter(|link| !link.contains("/proc/"))
        .collect();
    assert_eq!(inherited.len(), 3, "{listed}");
    assert!(!listed.contains("status"), "{listed}");
    assert!(file.as_raw_fd() > 2);
}

fn flood(_: &Points) {
    let script = "echo begin; head -c 200000000 /dev/zero; echo end >&2";
    let output = shell(script, Duration::from_secs(60), AtDeadline::Kill).unwrap();
    assert_eq!(output.stdout.len(), 64 << 10);
    assert!(output.stdout.starts_with(b"begin\n\0"));
    assert_eq!(output.stderr, b"end\n");
}

fn killed(_: &Points) {
    let bench = Bench::new();
    let pids = bench.path("pids");
    let script = format!("sleep 60 & echo $! $$ > {}; wait", pids.display());
    let started = Instant::now();
    let error = shell(&script, Duration::from_millis(500), AtDeadline::Kill).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let said = error.to_string();
    assert!(
        said.contains("sh waits in ") && said.contains(", sleep waits in "),
        "{said}"
    );
    assert!(started.elapsed() < Duration::from_secs(50));
    let pids = fs::read_to_string(pids).unwrap();
    for pid in pids.split_whitespace() {
        eventually(Duration::from_secs(10), "both are dead", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }
}

fn left(_: &Points) {
    let bench = Bench::new();
    let done = bench.path("done");
    let script = format!("sleep 0.5; echo loud && echo $? > {}", done.display());
    let error = shell(&script, Duration::from_millis(50), AtDeadline::Leave).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!done.exists());
    eventually(Duration::from_secs(10), "it finished", || {
        fs::read_to_string(&done).is_ok_and(|text| text == "0\n")
    });
}

fn daemon(_: &Points) {
    let started = Instant::now();
    assert_eq!(says("sleep 60 & echo done"), "done\n");
    assert!(started.elapsed() < Duration::from_secs(50));
}

fn failure(points: &Points) {
    for (script, ending) in [
        ("echo secret >&2; exit 3", "(exit status 3)"),
        ("echo secret; exit 1", "(exit status 1)"),
        ("echo secret >&2; kill -9 $$", "(signal 9)"),
    ] {
        let output = shell(script, Duration::from_secs(20), AtDeadline::Kill).unwrap();
        let error = output.success("do it").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot do it: sh failed {ending}")
        );
        assert!(error.report().ends_with(": secret"), "{}", error.report());
        points.add(1);
    }
}

fn missing(_: &Points) {
    let error = Tool::find("mkfs.nosuch").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ToolMissing);
    assert_eq!(
        error.to_string(),
        "mkfs.nosuch is not installed on the node"
    );
    assert!(Tool::find("../../bin/sh").is_err());
    assert!(Tool::find("").is_err());
    let found = Tool::find("sh").unwrap();
    assert!(found.path().starts_with("/usr/bin") || found.path().starts_with(Path::new("/bin")));
}
