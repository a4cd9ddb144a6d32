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
        self.begun().watches.insert(of.to_owned(), Instant::now());
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
}
