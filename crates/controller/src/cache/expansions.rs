//! Durations of claims' expansions, measured by their watch.

use crate::k8s::{claim, meta::uid};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Start of each expansion, by the claim's UID.
#[derive(Debug, Default)]
pub(crate) struct Expansions(Mutex<HashMap<String, Begun>>);

#[derive(Clone, Copy, Debug)]
struct Begun {
    /// When this process first saw the request.
    at: Instant,
    /// The capacity at that time.
    capacity: Bytes,
}

impl Expansions {
    /// Applies a watch's report of a claim. Returns the duration if an expansion has just reached its request.
    pub fn seen(&self, seen: &PersistentVolumeClaim) -> Option<Duration> {
        let (uid, capacity) = (uid(&seen.metadata), claim::capacity(seen));
        let mut all = self.all();
        if claim::is_expanding(seen) {
            let at = Instant::now();
            let begun = Begun { at, capacity };
            all.entry(uid.to_owned()).or_insert(begun);
            return None;
        }
        // Without a larger capacity, the request was lowered instead.
        let begun = all.remove(uid).filter(|begun| capacity > begun.capacity)?;
        Some(begun.at.elapsed())
    }

    /// Returns how long the expansion has taken that has not ended and was begun first.
    pub fn oldest(&self) -> Option<Duration> {
        let all = self.all();
        let first = all.values().map(|begun| begun.at).min()?;
        Some(first.elapsed())
    }

    /// Removes a deleted claim.
    pub fn forget(&self, gone: &PersistentVolumeClaim) {
        self.all().remove(uid(&gone.metadata));
    }

    /// Removes all claims except those with these UIDs.
    pub fn keep(&self, uids: &HashSet<String>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn claim(uid: &str, asked: &str, has: &str) -> PersistentVolumeClaim {
        from_value(json!({
            "metadata": {"uid": uid},
            "spec": {"resources": {"requests": {"storage": asked}}},
            "status": {"phase": "Bound", "capacity": {"storage": has}},
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn growth_is_timed_from_the_edit_to_the_status() {
        let expansions = Expansions::default();
        let wait = || tokio::time::advance(Duration::from_secs(1));
        assert_eq!(expansions.seen(&claim("1", "1Gi", "1Gi")), None);
        assert_eq!(expansions.oldest(), None);
        assert_eq!(expansions.seen(&claim("1", "2Gi", "1Gi")), None);
        wait().await;
        expansions.seen(&claim("2", "2Gi", "1Gi"));
        assert_eq!(expansions.oldest(), Some(Duration::from_secs(1)));
        assert_eq!(
            expansions.seen(&claim("1", "3Gi", "1Gi")),
            None,
            "edited again"
        );
        wait().await;
        let took = expansions.seen(&claim("1", "3Gi", "4Gi"));
        assert_eq!(took, Some(Duration::from_secs(2)));
        assert_eq!(
            expansions.seen(&claim("1", "3Gi", "4Gi")),
            None,
            "told once"
        );
        let younger = expansions.oldest();
        assert_eq!(younger, Some(Duration::from_secs(1)), "that of claim 2");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_or_gone_has_not_grown() {
        let expansions = Expansions::default();
        let (asks, has) = (claim("1", "2Gi", "1Gi"), claim("1", "2Gi", "2Gi"));
        expansions.seen(&asks);
        assert_eq!(expansions.seen(&claim("1", "1Gi", "1Gi")), None);
        expansions.seen(&asks);
        expansions.forget(&asks);
        assert_eq!(expansions.seen(&has), None);
        expansions.seen(&asks);
        expansions.keep(&HashSet::from(["2".to_owned()]));
        assert_eq!(expansions.seen(&has), None);
    }
}
