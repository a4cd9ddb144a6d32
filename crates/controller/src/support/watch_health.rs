//! Health of watches. A watch ends after minutes and is begun again. If one is not, although the API server answers
//! other requests, this process has lost the watch, and only a restart recovers it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A watch that began longer ago is lost. Longer than a watch and all retries between two.
const LOST: Duration = Duration::from_secs(1200);

/// The API server is reachable if it answered in this period. A leader sends requests all the time, an agent each
/// minute.
const LATELY: Duration = Duration::from_secs(180);

/// Start times of the last watches of this process.
#[derive(Clone, Debug, Default)]
pub struct Watches(Arc<Mutex<Begun>>);

#[derive(Debug, Default)]
struct Begun {
    /// By resource path.
    watches: BTreeMap<String, Instant>,
    /// When the watches that are open were last heard, by resource path.
    heard: BTreeMap<String, Instant>,
    /// The last answer to any other request.
    answered: Option<Instant>,
}

impl Watches {
    /// Records that a watch is requested.
    pub(crate) fn asked(&self, of: &str) {
        let mut begun = self.begun();
        let now = Instant::now();
        begun.watches.entry(of.to_owned()).or_insert(now);
    }

    /// Records that a watch has begun.
    pub(crate) fn began(&self, of: &str) {
        let mut begun = self.begun();
        let now = Instant::now();
        begun.watches.insert(of.to_owned(), now);
        begun.heard.insert(of.to_owned(), now);
    }

    /// Records that a watch said something.
    pub(crate) fn heard(&self, of: &str) {
        if let Some(heard) = self.begun().heard.get_mut(of) {
            *heard = Instant::now();
        }
    }

    /// Records that a watch has ended.
    pub(crate) fn ended(&self, of: &str) {
        self.begun().heard.remove(of);
    }

    /// Whether a watch is open, and was heard in this period.
    pub(crate) fn is_heard(&self, of: &str, within: Duration) -> bool {
        let begun = self.begun();
        begun.heard.get(of).is_some_and(|at| at.elapsed() < within)
    }

    /// Records an answer to any other request.
    pub(crate) fn answered(&self) {
        self.begun().answered = Some(Instant::now());
    }

    /// Returns a lost watch, if there is one although the API server answers.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        let begun = self.begun();
        begun.answered.filter(|when| when.elapsed() < LATELY)?;
        let mut watches = begun.watches.iter();
        let (of, _) = watches.find(|(_, when)| when.elapsed() >= LOST)?;
        Some(of.clone())
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_lost_if_it_does_not_begin_anew_while_the_api_server_answers() {
        let watches = Watches::default();
        assert_eq!(watches.lost(), None);
        watches.began("a");
        watches.asked("b");
        watches.answered();
        tokio::time::advance(LOST).await;
        watches.asked("b");
        assert_eq!(watches.lost(), None, "nothing is answered");
        watches.answered();
        assert_eq!(watches.lost().as_deref(), Some("a"));
        watches.began("a");
        assert_eq!(watches.lost().as_deref(), Some("b"), "it never began");
        watches.began("b");
        assert_eq!(watches.lost(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_heard_while_it_is_open_and_says_something() {
        let watches = Watches::default();
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let is_heard = || watches.is_heard("a", minute);
        watches.asked("a");
        watches.heard("a");
        assert!(!is_heard(), "it has not begun");
        watches.began("a");
        tokio::time::advance(minute - second).await;
        assert!(is_heard());
        tokio::time::advance(second).await;
        assert!(!is_heard(), "its connection may be dead");
        watches.heard("a");
        assert!(is_heard());
        watches.ended("a");
        assert!(!is_heard());
    }
}
