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
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Runs the checks and returns their results, in the order of the checks.
pub fn run(
    run: &Run,
    checks: &[&'static Check],
    jobs: usize,
    keep: bool,
    progress: bool,
) -> Vec<Finished> {
    let finished = Mutex::new(Vec::new());
    let (alone, together): (VecDeque<_>, VecDeque<_>) =
        checks.iter().copied().partition(|check| check.alone);
    let work = |queue: &Mutex<VecDeque<&'static Check>>| {
        while let Some(check) = lock(queue).pop_front() {
            let one = one(run, check, keep);
            let mut finished = lock(&finished);
            if progress {
                let line = report::progress(&one, finished.len() + 1, checks.len());
                // If stdout fails, the report at the end fails too and returns the error.
                let _ = report::print(&format!("{line}\n"));
            }
            finished.push(one);
        }
    };
    let together = Mutex::new(together);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work(&together));
        }
    });
    work(&Mutex::new(alone));
    let mut finished = finished
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let place = |name: &str| checks.iter().position(|check| check.name == name);
    finished.sort_by_key(|one| place(one.check.name));
    finished
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn one(run: &Run, check: &'static Check, keep: bool) -> Finished {
    let started = Instant::now();
    let mut finished = Finished {
        check,
        ended: Ended::Passed,
        notes: Vec::new(),
        calls: Vec::new(),
        leftovers: Vec::new(),
        took: Duration::ZERO,
    };
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
