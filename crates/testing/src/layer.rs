//! Test layers: one executable each, with named tests and counted points. Skipped tests are always reported.

use crate::{
    Need,
    budget::{budget, take_arguments},
    isolation::{isolate, older_kernel},
    kernel_log,
    need::in_virtual_machine,
};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    env,
    fs::OpenOptions,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Counter of the checks in a test that makes many similar ones.
#[derive(Debug, Default)]
pub struct Points(AtomicU64);

impl Points {
    /// Adds a number of checks.
    pub fn add(&self, points: u64) {
        self.0.fetch_add(points, Ordering::Relaxed);
    }

    /// Adds `reached` points and prints them in the format that `scripts/test` repeats in its summary.
    pub fn report(&self, name: &str, reached: u64, all: usize, what: &str) {
        self.add(reached);
        println!("{name}: {reached} of {all} {what}, seed {}", budget().name);
    }
}

/// A test of a layer; `name` states the promise that it checks. It fails by panicking.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The promise.
    pub name: &'static str,
    /// Requirements on the machine.
    pub needs: &'static [Need],
    /// The function that checks it.
    pub run: fn(&Points),
}

/// Defines the list of a file's tests, `TESTS` by default. Each has a promise, optional requirements on the machine,
/// and the function that checks it.
///
/// ```
/// use flexvol_testing::{Points, tests};
///
/// tests! {
///     "one and one are two" => sum;
/// }
///
/// fn sum(_: &Points) {
///     assert_eq!(1 + 1, 2);
/// }
/// # assert_eq!(TESTS.len(), 1);
/// ```
#[macro_export]
macro_rules! tests {
    (@needs) => { &[] };
    (@needs $needs:expr) => { $needs };
    ($list:ident: $($name:literal $(, $needs:expr)? => $run:expr;)+) => {
        pub const $list: &[$crate::Test] = &[$($crate::Test {
            name: $name,
            needs: $crate::tests!(@needs $($needs)?),
            run: $run,
        }),+];
    };
    ($name:literal $($rest:tt)+) => {
        $crate::tests! { TESTS: $name $($rest)+ }
    };
}

type Check = dyn FnOnce(&Points) -> Result<(), String> + Send;

/// A test of a layer that is created at run time.
pub struct Case {
    /// The promise.
    pub name: String,
    /// Requirements on the machine.
    pub needs: &'static [Need],
    /// The function that checks it; an error is the failure's message.
    pub run: Box<Check>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl From<Test> for Case {
    fn from(test: Test) -> Self {
        Case {
            name: test.name.to_owned(),
            needs: test.needs,
            run: Box::new(move |points| {
                (test.run)(points);
                Ok(())
            }),
        }
    }
}

/// Appends a test's result to the file in `FLEXVOL_REPORT`: `passed` or `FAILED`, seconds, and name, separated by tabs.
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

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    format!("test panicked: {}", text.unwrap_or_default())
}

/// Minimum duration of a test that prints how long it took.
const SLOW: Duration = Duration::from_secs(5);

static POINTS: Points = Points(AtomicU64::new(0));

/// Converts tests to cases.
#[must_use]
pub fn cases(tests: &[&[Test]]) -> Vec<Case> {
    let all = tests.iter().copied().flatten().copied();
    all.map(Case::from).collect()
}

/// Runs the tests of a layer with the usual arguments (filter, `--list`, `--exact` …) and a budget
/// (`--seconds N --seed S --every-point`). Ends with a summary line: tests, points, seconds, and skipped tests. As root
/// the process enters a mount namespace of its own first.
///
/// With `--needs` it only prints for each test whether it needs `this`, `another` or a `fresh` machine.
#[must_use]
pub fn run_layer(layer: &str, tests: &[&[Test]]) -> ExitCode {
    if env::args().nth(1).is_some_and(|first| first == "--needs") {
        for test in tests.iter().copied().flatten() {
            let any = |wants: fn(&Need) -> bool| test.needs.iter().any(wants);
            let machine = match (any(Need::wants_fresh), any(Need::wants_another)) {
                (true, _) => "fresh",
                (false, true) => "another",
                (false, false) => "this",
            };
            println!("{machine}\t{}", test.name);
        }
        return ExitCode::SUCCESS;
    }
    // A program started by one test inherits the descriptors of concurrent tests until it execs, which keeps their
    // mounts and devices busy. Tests that want concurrency start it themselves.
    run_cases(layer, cases(tests), 1)
}

/// Consequence of a missing requirement.
enum Lack {
    /// The test fails.
    Failure(String),
    /// The test is reported as not run.
    NotRun(String),
}

fn lack(needs: &[Need]) -> Option<Lack> {
    let strict = env::var_os("CI").is_some_and(|ci| ci == "true");
    let missing = |of_the_machine: bool| -> Vec<_> {
        needs
            .iter()
            .filter(|need| need.is_of_the_machine() == of_the_machine)
            .filter_map(|need| need.missing())
            .map(|what| format!("no {what}"))
            .collect()
    };
    let machine = missing(true);
    if !machine.is_empty() && !in_virtual_machine() {
        return Some(Lack::NotRun(format!(
            "{} here; runs in layer vm",
            machine.join(", ")
        )));
    }
    let all = [machine, missing(false)].concat().join(", ");
    match (all.is_empty(), strict) {
        (true, _) => None,
        (false, true) => Some(Lack::Failure(all)),
        (false, false) => Some(Lack::NotRun(all)),
    }
}

/// Runs the cases of a layer, `at_once` in parallel unless the arguments say otherwise. Ends as [`run_layer`] does.
#[must_use]
pub fn run_cases(layer: &str, cases: Vec<Case>, at_once: usize) -> ExitCode {
    let mut arguments = Arguments::from_iter(take_arguments());
    arguments.test_threads.get_or_insert(at_once);
    if let Err(error) = isolate() {
        println!("layer {layer}: cannot have a mount namespace of its own: {error}");
        return ExitCode::FAILURE;
    }
    let share = budget().share;
    let mut layer = layer.to_owned();
    if share.of > 1 {
        layer += &format!(", share {} of {}", share.one, share.of);
    }
    if older_kernel() {
        layer += " as on an old kernel";
    }
    let started = Instant::now();
    let mut skipped: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut trials = Vec::new();
    let mut names = HashSet::new();
    // Each share takes every n-th case, because adjacent cases take similar time.
    for case in share.take(cases) {
        let name = case.name;
        assert!(names.insert(name.clone()), "{name:?} is listed twice");
        let lack = lack(case.needs);
        if let Some(Lack::NotRun(reason)) = &lack {
            skipped
                .entry(reason.clone())
                .or_default()
                .push(name.clone());
        }
        let ignored = matches!(lack, Some(Lack::NotRun(_)));
        let title = name.clone();
        trials.push(
            Trial::test(title, move || {
                if let Some(Lack::Failure(reason) | Lack::NotRun(reason)) = lack {
                    return Err(Failed::from(format!("this machine has {reason}")));
                }
                let (started, log) = (Instant::now(), kernel_log::now());
                let ran = catch_unwind(AssertUnwindSafe(|| (case.run)(&POINTS)));
                report(&name, matches!(ran, Ok(Ok(()))), started.elapsed());
                match ran {
                    Err(panic) => {
                        let words = kernel_log::warnings_since(log);
                        return Err(Failed::from(format!("{}{words}", message(&*panic))));
                    }
                    Ok(Err(words)) => return Err(Failed::from(words)),
                    Ok(Ok(())) => {}
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
            skipped.values().map(Vec::len).sum::<usize>()
        );
        for (reason, names) in &skipped {
            match names.as_slice() {
                [name] => println!("  not run: {name}: {reason}"),
                names => println!("  not run: {} tests: {reason}", names.len()),
            }
        }
    }
    conclusion.exit_code()
}
