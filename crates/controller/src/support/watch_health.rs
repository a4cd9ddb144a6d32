//! Whether watches go on. A watch ends after minutes and is begun anew; one that is not, while the API server
//! answers other questions, is one that this process has lost, and only another process has it again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Longer than a watch, and everything that is tried in between.
const LOST: Duration = Duration::from_secs(1200);

/// The API server answers if it did so lately: a leader asks all the time, and an agent each minute.
const LATELY: Duration = Duration::from_secs(180);

/// When the watches of this process began last.
#[derive(Clone, Debug, Default)]
pub struct Watches(Arc<Mutex<Begun>>);

#[derive(Debug, Default)]
struct Begun {
    /// By what is watched.
    watches: BTreeMap<String, Instant>,
    /// When anything else was answered last.
    answered: Option<Instant>,
}

impl Watches {
    /// A watch is asked for.
    pub(crate) fn asked(&self, of: &str) {
        let mut begun = self.begun();
        let now = Instant::now();
        begun.watches.entry(of.to_owned()).or_insert(now);
    }

    /// A watch begins.
    pub(crate) fn began(&self, of: &str) {
        self.begun().watches.insert(of.to_owned(), Instant::now());
    }

    /// Another question was answered.
    pub(crate) fn answered(&self) {
        self.begun().answered = Some(Instant::now());
    }

    /// What is watched no more, although the API server answers.
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
