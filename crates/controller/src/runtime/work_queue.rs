//! Work queue of keys. Each key is queued once and processed by one worker at a time, with backoff while nothing
//! changes.
//!
//! Keys have owners, such as namespaces, that take turns: an owner with many keys delays another owner's key by at most
//! one of its own.

#[cfg(test)]
mod tests;

use super::backoff::Backoff;
use crate::support::metrics::QueueMetrics;
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// A work queue.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
    failures: Backoff,
    metrics: QueueMetrics,
}

#[derive(Debug, Default)]
struct State {
    ready: Turns,
    /// The owner of each key in the queue.
    owners: HashMap<String, Arc<str>>,
    /// Keys that are ready, or were pushed while a worker had them.
    wanted: HashSet<String>,
    working: HashSet<String>,
    later: BTreeSet<(Instant, String)>,
    /// The due time of each key in `later`.
    due: HashMap<String, Instant>,
    /// Number of failures in a row of each key, and when the first of them was.
    failures: HashMap<String, (u32, Instant)>,
    /// Number of fruitless attempts at a key since it was pushed.
    in_vain: HashMap<String, u32>,
}

impl Queue {
    /// Creates a queue with this backoff for keys that fail.
    #[must_use]
    pub fn new(failures: Backoff, metrics: QueueMetrics) -> Self {
        Queue {
            state: Mutex::default(),
            changed: Notify::new(),
            failures,
            metrics,
        }
    }

    /// Adds a key, because its object has changed.
    pub fn push(&self, owner: &str, name: &str) {
        let mut state = self.state();
        state.own(owner, name);
        state.in_vain.remove(name);
        if state.wanted.insert(name.to_owned()) && !state.working.contains(name) {
            state.get_ready(name.to_owned());
            self.count(&state);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Adds a key that is due at this time at the latest.
    pub fn push_by(&self, owner: &str, name: &str, due: Instant) {
        if due <= Instant::now() {
            return self.push(owner, name);
        }
        let mut state = self.state();
        let known = state.due.get(name).copied();
        if state.wanted.contains(name) || known.is_some_and(|known| known <= due) {
            return;
        }
        state.own(owner, name);
        state.in_vain.remove(name);
        state.forget_due(name);
        state.wait(name, due);
        drop(state);
        self.changed.notify_one();
    }

    /// Adds a key after a pause, unless it is queued or being processed already.
    pub fn push_later(&self, owner: &str, name: &str, pause: Duration) {
        let mut state = self.state();
        let known = state.working.contains(name)
            || state.wanted.contains(name)
            || state.due.contains_key(name);
        if !known {
            state.own(owner, name);
            state.wait(name, Instant::now() + pause);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Makes all waiting keys ready, because the reason for their pauses may be over.
    pub fn hurry(&self) {
        self.state().promote_all();
        self.changed.notify_one();
    }

    /// Returns the next key. No other worker gets this key before [`Queue::done`].
    pub async fn next(&self) -> String {
        loop {
            let wake = {
                let mut state = self.state();
                state.promote(Instant::now());
                let next = state.ready.next();
                self.count(&state);
                if let Some((name, since)) = next {
                    self.metrics.queued.observe(since.elapsed().as_secs_f64());
                    state.wanted.remove(&name);
                    state.forget_due(&name);
                    state.working.insert(name.clone());
                    if state.ready.waiting > 0 {
                        self.changed.notify_one();
                    }
                    return name;
                }
                state.later.first().map(|(due, _)| *due)
            };
            let far = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(wake.unwrap_or(far)) => {}
            }
        }
    }

    /// Finishes a key. It is queued again at once if it was pushed meanwhile, after the requested pause, or with
    /// backoff if it failed.
    pub fn done(&self, name: &str, outcome: Outcome) {
        let mut state = self.state();
        state.working.remove(name);
        // Pushed meanwhile by `push_by`.
        let known = state.forget_due(name);
        if !matches!(outcome, Outcome::Failed | Outcome::GoOn(_)) {
            state.failures.remove(name);
        }
        let changed = state.wanted.contains(name);
        if changed || !matches!(outcome, Outcome::RequeueWithBackoff(_) | Outcome::GoOn(_)) {
            state.in_vain.remove(name);
        }
        let pause = match outcome {
            Outcome::Done => None,
            Outcome::RequeueAfter(pause) | Outcome::GoOn(pause) => Some(pause),
            Outcome::Failed => {
                let first = (0, Instant::now());
                let (failures, _) = state.failures.entry(name.to_owned()).or_insert(first);
                *failures += 1;
                Some(self.failures.after(*failures))
            }
            Outcome::RequeueWithBackoff(_) if changed => None,
            Outcome::RequeueWithBackoff(backoff) => {
                let times = state.in_vain.entry(name.to_owned()).or_insert(0);
                *times += 1;
                Some(backoff.after(*times))
            }
        };
        let due = pause.map(|pause| Instant::now() + pause);
        let due = due.into_iter().chain(known).min();
        if let Some(due) = due {
            state.wait(name, due);
        }
        if changed {
            state.get_ready(name.to_owned());
        }
        if !changed && due.is_none() {
            state.owners.remove(name);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Returns for how long a key has failed, each time; zero if it did not when it was last processed.
    pub fn failing_for(&self, name: &str) -> Duration {
        let since = self.state().failures.get(name).map(|(_, since)| *since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn count(&self, state: &State) {
        let waiting = i64::try_from(state.ready.waiting).unwrap_or(i64::MAX);
        self.metrics.depth.set(waiting);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ready keys by owner.
#[derive(Debug, Default)]
struct Turns {
    /// Each key with the time at which it became ready.
    of: HashMap<Arc<str>, VecDeque<(String, Instant)>>,
    /// Owners with ready keys, the next one first.
    order: VecDeque<Arc<str>>,
    waiting: usize,
}

impl Turns {
    fn add(&mut self, owner: Arc<str>, name: String) {
        let names = self.of.entry(Arc::clone(&owner)).or_default();
        if names.is_empty() {
            self.order.push_back(owner);
        }
        names.push_back((name, Instant::now()));
        self.waiting += 1;
    }

    fn next(&mut self) -> Option<(String, Instant)> {
        let owner = self.order.pop_front()?;
        let names = self.of.get_mut(&owner)?;
        let name = names.pop_front()?;
        if names.is_empty() {
            self.of.remove(&owner);
        } else {
            self.order.push_back(owner);
        }
        self.waiting -= 1;
        Some(name)
    }
}

impl State {
    /// Sets the owner of a key. An unknown (empty) owner does not replace a known one.
    fn own(&mut self, owner: &str, name: &str) {
        let known = self.owners.get(name);
        if !known.is_some_and(|known| owner.is_empty() || **known == *owner) {
            self.owners.insert(name.to_owned(), owner.into());
        }
    }

    fn get_ready(&mut self, name: String) {
        let owner = self.owners.get(&name).cloned();
        self.ready.add(owner.unwrap_or_default(), name);
    }

    fn wait(&mut self, name: &str, due: Instant) {
        self.later.insert((due, name.to_owned()));
        self.due.insert(name.to_owned(), due);
    }

    fn forget_due(&mut self, name: &str) -> Option<Instant> {
        let due = self.due.remove(name)?;
        self.later.remove(&(due, name.to_owned()));
        Some(due)
    }

    fn promote_all(&mut self) {
        if let Some((last, _)) = self.later.last() {
            self.promote(*last);
        }
    }

    fn promote(&mut self, now: Instant) {
        while let Some((due, name)) = self.later.pop_first() {
            if due > now {
                self.later.insert((due, name));
                return;
            }
            self.due.remove(&name);
            if self.wanted.insert(name.clone()) && !self.working.contains(&name) {
                self.get_ready(name);
            }
        }
    }
}

/// The result of processing a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until the key is pushed again.
    Done,
    /// Process the key again after this pause.
    RequeueAfter(Duration),
    /// Go on with the key after this pause, when others had their turn. It is still the same attempt.
    GoOn(Duration),
    /// Processing failed: retry with the queue's backoff.
    Failed,
    /// Nothing can be done now: retry with this backoff, unless the key is pushed.
    RequeueWithBackoff(Backoff),
}
