//! Runs checks in parallel, and checks that need the machine for themselves one by one.

mod environment;

use crate::{
    bench::Bench,
    check::{
        Check, Need,
        result::{Ended, Failure, Finished},
    },
    report,
    run::Run,
    system,
    verdict::Stop,
    volume::Source,
};
use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The results so far.
#[derive(Debug)]
pub struct Progress {
    checks: Vec<&'static Check>,
    /// A line is printed for each check that ends.
    is_shown: bool,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    finished: Vec<Finished>,
    is_reported: bool,
}

impl Progress {
    pub fn new(checks: Vec<&'static Check>, is_shown: bool) -> Self {
        Progress {
            checks,
            is_shown,
            started: Instant::now(),
            state: Mutex::default(),
        }
    }

    fn add(&self, one: Finished) {
        let mut state = lock(&self.state);
        if state.is_reported {
            return;
        }
        let (number, of) = (state.finished.len() + 1, self.checks.len());
        if self.is_shown {
            let per_done = (of - number) as f64 / number as f64;
            let left = self.started.elapsed().mul_f64(per_done);
            let left = io::stdout().is_terminal().then_some(left);
            let line = report::progress(&one, number, of, left);
            // If stdout fails, the report at the end fails too and returns the error.
            let _ = report::print(&format!("{line}\n"));
        }
        state.finished.push(one);
    }

    /// Returns the results, in the order of the checks, once. What ends later is dropped.
    pub fn report(&self) -> Option<Vec<Finished>> {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_reported, true) {
            return None;
        }
        let mut finished = std::mem::take(&mut state.finished);
        for check in &self.checks {
            if finished.iter().all(|one| one.check.name != check.name) {
                finished.push(unfinished(check, Ended::NotRun));
            }
        }
        let place = |name: &str| self.checks.iter().position(|check| check.name == name);
        finished.sort_by_key(|one| place(one.check.name));
        Some(finished)
    }
}

/// Runs the checks.
pub fn run(run: &Run, progress: &Progress, jobs: usize, keep: bool) {
    let (alone, together): (VecDeque<_>, VecDeque<_>) = progress
        .checks
        .iter()
        .copied()
        .partition(|check| check.alone);
    let work = |queue: &Mutex<VecDeque<&'static Check>>| {
        // The queue is not locked while a check runs.
        let next = || lock(queue).pop_front();
        while let Some(check) = next() {
            progress.add(one(run, check, keep));
        }
    };
    let together = Mutex::new(together);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work(&together));
        }
    });
    work(&Mutex::new(alone));
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unfinished(check: &'static Check, ended: Ended) -> Finished {
    Finished {
        check,
        ended,
        notes: Vec::new(),
        calls: Vec::new(),
        leftovers: Vec::new(),
        took: Duration::ZERO,
    }
}

fn one(run: &Run, check: &'static Check, keep: bool) -> Finished {
    let started = Instant::now();
    let mut finished = unfinished(check, Ended::Passed);
    if let Some(missing) = missing(run, check.needs) {
        finished.ended = Ended::Skipped(missing);
        return finished;
    }
    match Bench::new(run, check.name) {
        Ok(bench) => {
            finished.ended = match (check.run)(&bench) {
                Ok(()) => Ended::Passed,
                Err(Stop::Fault(fault)) => Ended::Failed(Box::new(Failure {
                    expected: fault.expected,
                    found: fault.found,
                    call: fault.call,
                    changes: Vec::new(),
                })),
                Err(Stop::NotApplicable(why)) => Ended::NotApplicable(why),
                Err(Stop::Skipped(why)) => Ended::Skipped(why),
                Err(Stop::Error(error)) => Ended::Error(format!("{error:#}")),
            };
            if matches!(finished.ended, Ended::Failed(_))
                && let Err(error) = bench.record_changes()
            {
                bench.note(format!("what changed is not known: {error:#}"));
            }
            if let Ended::Failed(failure) = &finished.ended
                && let Some(trouble) = environment::trouble(run)
            {
                let found = &failure.found;
                let why = format!("{trouble}, so this may not be the driver's fault: {found}");
                finished.ended = Ended::Error(why);
            }
            let closed = bench.close(keep);
            (finished.calls, finished.notes) = (closed.calls, closed.notes);
            finished.leftovers = closed.leftovers;
            if let Ended::Failed(failure) = &mut finished.ended {
                failure.changes = closed.changes;
                failure.call = failure
                    .call
                    .take()
                    .or_else(|| finished.calls.last().cloned());
            }
            if let (Err(error), Ended::Passed) = (&closed.cleared, &finished.ended) {
                finished.ended = Ended::Error(format!("clean up: {error:#}"));
            } else if let Err(error) = closed.cleared {
                finished.notes.push(format!("clean up: {error:#}"));
            }
        }
        Err(error) => finished.ended = Ended::Error(format!("{error:#}")),
    }
    finished.took = started.elapsed();
    finished.shown(&run.masks)
}

/// Returns the first requirement of the check that is not met.
fn missing(run: &Run, needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|need| match need {
        Need::Root if !system::is_root() => Some("root".to_owned()),
        Need::Volume | Need::Fresh | Need::Block if run.source == Source::None => {
            Some("volumes: give --options, or [volume] create and remove in sanity.toml".to_owned())
        }
        Need::Fresh | Need::Block if !run.source.is_fresh() => {
            Some("a volume of its own: give [volume] create and remove in sanity.toml".to_owned())
        }
        _ => None,
    })
}
