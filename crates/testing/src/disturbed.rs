//! Disturbed callouts: SIGKILL or an injected error at every system call of a callout and its child processes.

use crate::{
    Baseline, Call, Driver, Outcome, Points, Progress, Random, Sandbox, budget, patience,
    trace::{Harm, Point, Traced},
};
use std::{fmt, time::Instant};

/// Kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// SIGKILL.
    Kill,
    /// SIGKILL, at system calls of one name only.
    KillAt(&'static str),
    /// Each error that disks, full file systems, full memory and other processes cause.
    Errors,
    /// Each such error, at system calls of one name only.
    ErrorsAt(&'static str),
}

/// Injected errors. All are tried at every point, even where Linux does not return them today.
const ERRORS: &[Harm] = &[
    Harm::Error("EIO"),
    Harm::Error("ENOSPC"),
    Harm::Error("ENOMEM"),
    Harm::Error("EBUSY"),
    Harm::Error("EROFS"),
    Harm::Error("EINTR"),
    Harm::Error("EMFILE"),
    Harm::ErrorFromThenOn("EIO"),
];

/// System calls that the kernel always carries out; an injected error would prevent that. `brk` returns the end of
/// memory even when it refuses: the C library takes an error for a very high end, and e2fsck then hangs in its crash
/// handler.
const INFALLIBLE: &[&str] = &[
    "brk",
    "close",
    "exit",
    "exit_group",
    "rt_sigreturn",
    "umask",
];

/// System calls with which the C library and the Rust runtime allocate memory, wait, read the clock, and initialise the
/// process. If one fails they end the process, which its caller sees as a crash.
const OF_THE_RUNTIME: &[&str] = &[
    "arch_prctl",
    "clock_gettime",
    "futex",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "poll",
    "prlimit64",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
];

/// Maximum duration of a callout in seconds.
const TIMEOUT: u64 = 60;

/// A callout that is disturbed, retried and undone, round after round.
///
/// Each round prepares the same state, disturbs the callout at one point, retries it until it succeeds, at most twice,
/// and undoes everything.
#[derive(Clone, Copy)]
pub struct Disturbed<'a, S> {
    /// Description for reports.
    pub name: &'a str,
    /// Sandbox with the node's state.
    pub sandbox: &'a Sandbox,
    /// Driver of the callout.
    pub driver: &'a Driver,
    /// Prepares the state before the callout.
    pub prepare: &'a dyn Fn() -> S,
    /// Returns the callout's arguments in that state.
    pub arguments: &'a dyn Fn(&S) -> Vec<String>,
    /// Whether the callout may create a file system in that state.
    pub formats: bool,
    /// Checks the result of a successful callout.
    pub check: &'a dyn Fn(&S, &Call),
    /// Undoes the callout and the preparation.
    pub undo: &'a dyn Fn(S),
}

impl<S> fmt::Debug for Disturbed<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disturbed").finish_non_exhaustive()
    }
}

/// Prints the current round if a test's own closure panics, which does not know the round.
struct PrintOnPanic<'a>(&'a str);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("in the round {}", self.0);
        }
    }
}

#[derive(Default)]
struct Tally {
    reached: u64,
    missed: u64,
    /// Number of reached points at which the call succeeded nevertheless.
    succeeded: u64,
    /// Number of reached points without an answer: the call had no memory, or its answer could not be written.
    unanswered: u64,
}

impl Tally {
    fn describe(&self, disturbance: Disturbance) -> String {
        let Tally {
            reached,
            missed,
            succeeded,
            unanswered,
        } = self;
        let (what, more) = match disturbance {
            Disturbance::Kill => ("system calls killed", String::new()),
            Disturbance::KillAt(_) => ("of these system calls killed", String::new()),
            Disturbance::Errors | Disturbance::ErrorsAt(_) => (
                "errors of system calls",
                format!(
                    "{} Failures, {succeeded} Successes, {unanswered} without an answer, ",
                    reached - succeeded - unanswered
                ),
            ),
        };
        format!("{what}, {more}{missed} not made again")
    }
}

impl<S> Disturbed<'_, S> {
    /// Enumerates the points of the callout. Tries those of each disturbance in the order of the run's seed, until its
    /// time box ends. Prints how many were reached.
    ///
    /// # Panics
    /// When the callout gives a wrong answer, a retry fails, or anything is left behind.
    pub fn run(&self, disturbances: &[Disturbance], points: &Points) {
        let before = Baseline::of(self.sandbox);
        let state = (self.prepare)();
        let arguments = (self.arguments)(&state);
        let whole = Traced::calls(self.sandbox, self.driver, only(disturbances), &arguments);
        (self.check)(&state, &whole.call.clone().success());
        let after = Baseline::of(self.sandbox).without_space();
        (self.undo)(state);
        before.expect(self.sandbox, &format!("{}, undisturbed", self.name));
        let all = whole.points();
        for disturbance in disturbances {
            self.disturb(*disturbance, &all, (&before, &after), points);
        }
    }

    fn disturb(
        &self,
        disturbance: Disturbance,
        all: &[Point],
        (before, after): (&Baseline, &Baseline),
        points: &Points,
    ) {
        let mut all = plan(disturbance, all);
        all.retain(|it| budget().points.has(it));
        Random::new(budget().seed).shuffle(&mut all);
        let mut tally = Tally::default();
        let (started, mut progress) = (Instant::now(), Progress::default());
        for (tried, (point, harm)) in (0..).zip(&all) {
            if !budget().allows(started) {
                break;
            }
            progress.print(self.name, tried, all.len());
            let when = format!("{}, {harm} at {point}", self.name);
            let _round = PrintOnPanic(&when);
            let state = (self.prepare)();
            let arguments = (self.arguments)(&state);
            let traced = Traced::harmed(self.sandbox, self.driver, point, *harm, &arguments);
            self.judge((point, *harm), &traced, &state, &when, &mut tally);
            let repeated = self.repeat(&traced.call, &when, &arguments);
            (self.check)(&state, &repeated);
            after.expect(self.sandbox, &format!("{when}, repeated"));
            (self.undo)(state);
            before.expect(self.sandbox, &format!("{when}, undone"));
        }
        points.report(
            self.name,
            tally.reached,
            all.len(),
            &tally.describe(disturbance),
        );
    }

    /// Checks the answer of the disturbed callout itself.
    fn judge(
        &self,
        (point, harm): (&Point, Harm),
        traced: &Traced,
        state: &S,
        when: &str,
        tally: &mut Tally,
    ) {
        let call = &traced.call;
        assert!(
            self.formats || !traced.formatted(),
            "{when}: a file system was made over one that is ready: {call}"
        );
        let patience = TIMEOUT * u64::from(patience());
        assert!(call.took.as_secs() < patience, "{when}: too long: {call}");
        // Rarely the kernel carries out the call anyway, and strace reports that within the callout's output.
        if !traced.is_harmed() || call.to_string().contains("strace: Failed to tamper") {
            tally.missed += 1;
            return;
        }
        tally.reached += 1;
        if harm == Harm::Kill {
            return;
        }
        match call.outcome() {
            Outcome::Success => {
                tally.succeeded += 1;
                (self.check)(state, call);
            }
            Outcome::Failure => {
                call.failure();
            }
            Outcome::Broken(_)
                if traced.lost_its_answer() || OF_THE_RUNTIME.contains(&point.call.as_str()) =>
            {
                assert_ne!(call.exit, Some(0), "{when}: {call}");
                tally.unanswered += 1;
            }
            outcome => panic!("{when}: {outcome:?}: {call}"),
        }
    }

    fn repeat(&self, disturbed: &Call, when: &str, arguments: &[String]) -> Call {
        let first = self.driver.call(arguments);
        if first.outcome() == Outcome::Success {
            return first;
        }
        let second = self.driver.call(arguments);
        assert_eq!(
            second.outcome(),
            Outcome::Success,
            "{when}:\n  {disturbed}\nrepeated:\n  {first}\nonce more:\n  {second}"
        );
        second
    }
}

/// Returns the name of the system calls that are disturbed, if it is the only one.
fn only(disturbances: &[Disturbance]) -> Option<&'static str> {
    let mut names = disturbances.iter().map(|disturbance| match disturbance {
        Disturbance::KillAt(name) | Disturbance::ErrorsAt(name) => Some(*name),
        Disturbance::Kill | Disturbance::Errors => None,
    });
    let first = names.next().flatten()?;
    names.all(|name| name == Some(first)).then_some(first)
}

fn plan(disturbance: Disturbance, points: &[Point]) -> Vec<(Point, Harm)> {
    let harms = match disturbance {
        Disturbance::Kill | Disturbance::KillAt(_) => &[Harm::Kill],
        Disturbance::Errors | Disturbance::ErrorsAt(_) => ERRORS,
    };
    let wanted = |point: &Point| match disturbance {
        Disturbance::KillAt(call) | Disturbance::ErrorsAt(call) => point.call == call,
        _ => true,
    };
    points
        .iter()
        .filter(|point| wanted(point))
        .flat_map(|point| harms.iter().map(move |harm| (point.clone(), *harm)))
        .filter(|(point, harm)| *harm == Harm::Kill || may_be_answered(point))
        .collect()
}

fn may_be_answered(point: &Point) -> bool {
    !INFALLIBLE.contains(&point.call.as_str()) && !point.before_a_release
}
