//! One executable a test layer: named tests, counted points, and nothing skipped in silence.

use crate::{
    budget::take_arguments,
    isolation::{isolate, older_kernel},
};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    collections::HashSet,
    env,
    fs::OpenOptions,
    io::Write,
    panic::{catch_unwind, resume_unwind},
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// What a test cannot do without. A machine that lacks it skips the test and says so by name;
/// under `CI=true` that is a failure.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// A program in one of the system's directories, and the Debian package that has it.
    Tool(&'static str, &'static str),
}

impl Need {
    fn missing(self) -> Option<String> {
        match self {
            Need::Root => (!nix::unistd::geteuid().is_root()).then(|| "not root".to_owned()),
            Need::Tool(name, package) => {
                let there = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
                    .iter()
                    .any(|dir| Path::new(dir).join(name).exists());
                (!there).then(|| format!("no {name} (package {package})"))
            }
        }
    }
}

/// Counts what a test checked, where one test checks many things of a kind.
#[derive(Debug, Default)]
pub struct Points(AtomicU64);

impl Points {
    /// One more thing was checked.
    pub fn add(&self, points: u64) {
        self.0.fetch_add(points, Ordering::Relaxed);
    }
}

/// A test of a layer; `name` reads as the promise it checks. It fails by panicking.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The promise.
    pub name: &'static str,
    /// What the machine must have.
    pub needs: &'static [Need],
    /// The check.
    pub run: fn(&Points),
}

/// Appends a line on a test to the file that `FLEXVOL_REPORT` names: `passed` or `FAILED`, seconds
/// and name, with tabs between them.
fn report(name: &str, passed: bool, took: Duration) {
    let Some(file) = env::var_os("FLEXVOL_REPORT") else {
        return;
    };
    let outcome = if passed { "passed" } else { "FAILED" };
    let line = format!("{outcome}\t{:.1}\t{name}\n", took.as_secs_f64());
    let file = OpenOptions::new().append(true).create(true).open(file);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("write the report");
}

/// A test that takes longer says how long.
const SLOW: Duration = Duration::from_secs(5);

static POINTS: Points = Points(AtomicU64::new(0));

/// Runs the tests of one layer with the usual test arguments (filter, `--list`, `--exact` …) and
/// a budget (`--seconds N --seed S --every-point`), and closes with one line: tests, points, seconds, and
/// what could not be run here. As root the process first leaves everybody else's mount namespace.
#[must_use]
pub fn run_layer(layer: &str, tests: &[&[Test]]) -> ExitCode {
    let mut arguments = Arguments::from_iter(take_arguments());
    // A program that one test starts has the descriptors of all others until it execs, and a
    // mount or device that is held so is busy. Tests that want company start it themselves.
    arguments.test_threads.get_or_insert(1);
    if let Err(error) = isolate() {
        println!("layer {layer}: cannot have a mount namespace of its own: {error}");
        return ExitCode::FAILURE;
    }
    let layer = &if older_kernel() {
        format!("{layer} as on an old kernel")
    } else {
        layer.to_owned()
    };
    let strict = env::var_os("CI").is_some_and(|ci| ci == "true");
    let started = Instant::now();
    let mut skipped = Vec::new();
    let mut trials = Vec::new();
    let mut names = HashSet::new();
    for test in tests.iter().copied().flatten().copied() {
        assert!(names.insert(test.name), "{:?} is listed twice", test.name);
        let missing: Vec<_> = test
            .needs
            .iter()
            .filter_map(|need| need.missing())
            .collect();
        let reason = missing.join(", ");
        if !missing.is_empty() && !strict {
            skipped.push(format!("{}: {reason}", test.name));
        }
        let ignored = !missing.is_empty() && !strict;
        trials.push(
            Trial::test(test.name, move || {
                if !reason.is_empty() {
                    return Err(Failed::from(format!("this machine lacks: {reason}")));
                }
                let started = Instant::now();
                let ran = catch_unwind(|| (test.run)(&POINTS));
                report(test.name, ran.is_ok(), started.elapsed());
                if let Err(panic) = ran {
                    resume_unwind(panic);
                }
                if started.elapsed() > SLOW {
                    print!("({:.1} s) ", started.elapsed().as_secs_f64());
                }
                POINTS.add(1);
                Ok(())
            })
            .with_ignored_flag(ignored),
        );
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!(
            "layer {layer}: {} tests, {} points, {:.1} s, {} not run here",
            conclusion.num_passed + conclusion.num_failed,
            POINTS.0.load(Ordering::Relaxed),
            started.elapsed().as_secs_f64(),
            skipped.len()
        );
        for line in &skipped {
            println!("  not run: {line}");
        }
    }
    conclusion.exit_code()
}
