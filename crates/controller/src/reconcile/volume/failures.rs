//! Volumes whose steps fail again and again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Time after which a failure is reported, whatever it is. A restart of the API server takes less.
const PATIENCE: Duration = Duration::from_secs(10);

/// When each of them began to fail.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<String, Instant>>);

impl Failures {
    /// Notes a failure. Returns whether the volume has failed for some time.
    pub fn persists(&self, name: &str) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.entry(name.to_owned()).or_insert_with(Instant::now);
        since.elapsed() >= PATIENCE
    }

    /// Forgets a volume that has not failed this time.
    pub fn ended(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_reported_once_it_lasts() {
        let failures = Failures::default();
        assert!(!failures.persists("a"));
        tokio::time::advance(PATIENCE).await;
        assert!(failures.persists("a") && !failures.persists("b"));
        failures.ended("a");
        assert!(!failures.persists("a"));
    }
}
